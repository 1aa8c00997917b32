"""A number as a slider and as a field to type into, side by side.

ipywidgets has both, and neither does here: its sliders have no name for assistive technology and silently correct what
is typed into them, and a learner must be told why 2.5 cannot be. So this is a native range and a native text input.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anywidget
from traitlets import Bool, List, Unicode

_MODULE = """
function render({ model, el }) {
  const make = (tag, kind) => Object.assign(document.createElement(tag), kind ? { type: kind } : {});
  const label = make("label"), slider = make("input", "range"), box = make("input", "text");
  box.id = label.htmlFor = "number-" + Math.random().toString(36).slice(2);
  box.autocomplete = "off";
  el.classList.add("dsaccum-number");
  // These keys move the slider; JupyterLab would take them to fold headings and to select another cell.
  const moves = ["ArrowLeft", "ArrowRight", "ArrowUp", "ArrowDown", "Home", "End", "PageUp", "PageDown"];
  el.addEventListener("keydown", (event) => { if (moves.includes(event.key)) event.stopPropagation(); });
  el.replaceChildren(label, slider, box);

  const stops = () => model.get("stops");
  const nearest = () => {
    const wanted = Number(model.get("value"));
    const distances = stops().map((stop) => Math.abs(stop - wanted));
    return Math.max(0, distances.indexOf(Math.min(...distances)));
  };
  const show = () => {
    label.textContent = model.get("description");
    el.style.setProperty("--label-width", model.get("label_width"));
    slider.hidden = stops().length < 2;
    slider.min = 0;
    slider.max = Math.max(0, stops().length - 1);
    slider.value = nearest();
    slider.setAttribute("aria-label", model.get("description") + ", slider");
    // What holds is what is typed; the slider only stands near it.
    slider.setAttribute("aria-valuetext", model.get("value") || model.get("placeholder"));
    slider.disabled = box.disabled = model.get("disabled");
    box.placeholder = model.get("placeholder");
    if (box.value !== model.get("value")) box.value = model.get("value");
  };
  const write = (text) => { model.set("value", text); model.save_changes(); };
  slider.addEventListener("input", () => write(String(stops()[slider.value])));
  box.addEventListener("input", () => write(box.value));
  model.on("change", show);
  show();
  return () => model.off("change", show);
}
export default { render };
"""

_STYLE = """
.dsaccum-number { display: flex; align-items: center; gap: 8px; min-height: 28px; margin: 2px; }
.dsaccum-number label { flex: 0 1 var(--label-width); text-align: right; }
.dsaccum-number input[type="range"] { flex: 1 1 60px; min-width: 60px; margin: 0; }
.dsaccum-number input[type="text"] { flex: 0 0 80px; min-width: 0; box-sizing: border-box; padding: 2px 6px;
  font: inherit;
  color: var(--jp-ui-font-color1, inherit); background: var(--jp-layout-color0, white);
  border: 1px solid var(--jp-border-color0, #767676); }
.dsaccum-number input:focus-visible { outline: 2px solid var(--jp-brand-color1, #0072B2); outline-offset: 1px; }
"""


class NumberField(anywidget.AnyWidget):
    """``value`` is the text as typed; the slider writes one of ``stops``, and shows the one nearest to it."""

    _esm = _MODULE
    _css = _STYLE
    value = Unicode("").tag(sync=True)
    description = Unicode("").tag(sync=True)
    placeholder = Unicode("").tag(sync=True)
    disabled = Bool(False).tag(sync=True)
    stops = List().tag(sync=True)
    label_width = Unicode("190px").tag(sync=True)

    def __init__(self, value: str, description: str, stops: Sequence[float] = (), **traits: Any) -> None:
        super().__init__(value=value, description=description, stops=list(stops), **traits)
