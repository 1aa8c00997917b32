"""Keeps what is typed in a panel from JupyterLab, whose commands of one letter would cut or delete the panel's cell."""

from __future__ import annotations

import anywidget
import ipywidgets as widgets

_CLASS = "dsaccum-panel"
_MODULE = """
function render({ el }) {
  el.style.display = "none";
  const guard = (event) => {
    const command = event.ctrlKey || event.metaKey || event.altKey || event.key === "Escape";
    if (!command && !(event.shiftKey && event.key === "Enter")) event.stopPropagation();
  };
  let root = null, over = false;
  const attach = () => {
    root = el.closest(".dsaccum-panel");
    if (root) root.addEventListener("keydown", guard);
    else if (!over) requestAnimationFrame(attach);
  };
  attach();
  return () => { over = true; root?.removeEventListener("keydown", guard); };
}
export default { render };
"""
# A long label or line of code goes on in the next line in place of being cut off.
# Messages of several lines stay together.
_STYLE = """
.dsaccum-panel .widget-checkbox, .dsaccum-panel .widget-checkbox .widget-label-basic { height: auto; }
.dsaccum-panel .widget-checkbox .widget-label-basic { white-space: normal; overflow: visible; line-height: 1.4; }
.dsaccum-panel .widget-html-content { line-height: 1.5; }
.dsaccum-panel .widget-html-content pre:not([tabindex]) { white-space: pre-wrap; word-break: normal;
  overflow-wrap: anywhere; }
"""


class KeyGuard(anywidget.AnyWidget):
    """Shows nothing. Ctrl+S, Shift+Enter and Escape still reach JupyterLab."""

    _esm, _css = _MODULE, _STYLE


def guarded(panel: widgets.Box) -> widgets.Box:
    """The panel, with a guard in it."""
    panel.children = (*panel.children, KeyGuard())
    panel.add_class(_CLASS)
    return panel
