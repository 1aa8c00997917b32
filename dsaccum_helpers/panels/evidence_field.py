"""A place to paste a whole file into: its name above it, and no spelling marks under code.

ipywidgets' own text area has its name beside it, which leaves half of a narrow notebook for the text, and
Shift+Enter in it would run the cell of the panel again, and with that lose what was pasted.
"""

from __future__ import annotations

import anywidget
from traitlets import Int, Unicode

_MODULE = """
function render({ model, el }) {
  const make = (tag, text) => Object.assign(document.createElement(tag), { textContent: text });
  const label = make("label", model.get("description")), hint = make("div", model.get("hint"));
  const area = make("textarea", "");
  area.id = label.htmlFor = "evidence-" + Math.random().toString(36).slice(2);
  hint.id = area.id + "-hint";
  area.setAttribute("aria-describedby", hint.id);
  Object.assign(area, { rows: model.get("rows"), spellcheck: false, autocapitalize: "off", autocomplete: "off" });
  el.classList.add("dsaccum-evidence");
  el.replaceChildren(label, hint, area);

  const show = () => { if (area.value !== model.get("value")) area.value = model.get("value"); };
  // Once, when the field is left: a log of megabytes must not travel with every key.
  area.addEventListener("change", () => { model.set("value", area.value); model.save_changes(); });
  area.addEventListener("keydown", (event) => { if (event.key === "Enter") event.stopPropagation(); });
  model.on("change:value", show);
  show();
  return () => model.off("change:value", show);
}
export default { render };
"""
_STYLE = """
.dsaccum-evidence { display: flex; flex-direction: column; margin: 4px 2px; }
.dsaccum-evidence label { font-weight: bold; }
.dsaccum-evidence textarea { box-sizing: border-box; width: 100%; min-height: 2.5em; resize: vertical; padding: 4px 6px;
  white-space: pre-wrap; overflow: auto; font-family: var(--jp-code-font-family, monospace); font-size: inherit;
  line-height: 1.3; color: var(--jp-ui-font-color1, inherit); background: var(--jp-layout-color0, white);
  border: 1px solid var(--jp-border-color0, #767676); }
.dsaccum-evidence textarea:focus-visible { outline: 2px solid var(--jp-brand-color1, #0072B2); outline-offset: 1px; }
"""


class EvidenceField(anywidget.AnyWidget):
    """``value`` is the text as pasted; ``hint`` says under the name what belongs there."""

    _esm, _css = _MODULE, _STYLE
    value = Unicode("").tag(sync=True)
    description = Unicode("").tag(sync=True)
    hint = Unicode("").tag(sync=True)
    rows = Int(6).tag(sync=True)
