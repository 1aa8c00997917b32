"""One of several sentences to choose: native radio buttons with a legend, which ipywidgets' own lack."""

from __future__ import annotations

import anywidget
from traitlets import Int, List, Unicode

_MODULE = """
function render({ model, el }) {
  const name = "choice-" + Math.random().toString(36).slice(2);
  el.classList.add("dsaccum-choice");
  // The arrow keys choose; JupyterLab would take them to select another cell.
  el.addEventListener("keydown", (event) => { if (event.key.startsWith("Arrow")) event.stopPropagation(); });
  const build = () => {
    const group = document.createElement("fieldset"), legend = document.createElement("legend");
    legend.textContent = model.get("description");
    group.append(legend);
    model.get("options").forEach((text, number) => {
      const label = document.createElement("label"), button = document.createElement("input");
      Object.assign(button, { type: "radio", name, value: number, checked: number === model.get("value") });
      button.addEventListener("change", () => { model.set("value", number); model.save_changes(); });
      label.append(button, text);
      group.append(label);
    });
    el.hidden = model.get("options").length < 2;
    el.replaceChildren(group);
  };
  const mark = () => {
    el.querySelectorAll("input").forEach((button, number) => { button.checked = number === model.get("value"); });
  };
  model.on("change:options", build);
  model.on("change:value", mark);
  build();
  return () => { model.off("change:options", build); model.off("change:value", mark); };
}
export default { render };
"""
_STYLE = """
.dsaccum-choice[hidden] { display: none; }
.dsaccum-choice fieldset { border: 1px solid var(--jp-border-color0, #767676); margin: 4px 2px; padding: 4px 10px; }
.dsaccum-choice legend { width: auto; margin: 0; padding: 0 4px; border: 0; font-size: inherit; font-weight: bold; }
.dsaccum-choice label { display: flex; align-items: baseline; gap: 6px; line-height: 1.6; }
.dsaccum-choice input:focus-visible { outline: 2px solid var(--jp-brand-color1, #0072B2); outline-offset: 1px; }
"""


class ChoiceList(anywidget.AnyWidget):
    """``value`` is the place of the chosen one in ``options``; nothing is shown where there is no choice."""

    _esm, _css = _MODULE, _STYLE
    value = Int(0).tag(sync=True)
    description = Unicode("").tag(sync=True)
    options = List(Unicode()).tag(sync=True)
