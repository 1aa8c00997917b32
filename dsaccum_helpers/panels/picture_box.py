"""A place in a panel for one picture that is drawn again and again, with alternative text, without flicker."""

from __future__ import annotations

import anywidget
from traitlets import Bytes, Unicode

from dsaccum_helpers.plots import Picture

_MODULE = """
function render({ model, el }) {
  el.classList.add("dsaccum-picture");
  el.textContent = model.get("placeholder");
  let newest = 0;
  const show = async () => {
    const number = ++newest, png = model.get("png"), next = new Image();
    if (!png?.byteLength) return;
    next.alt = model.get("alt");
    next.src = URL.createObjectURL(new Blob([png], { type: "image/png" }));
    const old = el.querySelector("img");
    // Decoded before it takes the place of the old one: no frame is ever empty.
    await next.decode().catch(() => {});
    if (number === newest) { el.replaceChildren(next); el.classList.add("drawn"); }
    URL.revokeObjectURL(number === newest ? old?.src : next.src);
  };
  model.on("change:png", show);
  show();
  return () => model.off("change:png", show);
}
export default { render };
"""
_STYLE = """
.dsaccum-picture { width: calc(100% - 4px); max-width: 810px; margin: 2px; }
.dsaccum-picture.drawn { aspect-ratio: 9 / 5.5; }
.dsaccum-picture img { width: 100%; display: block; }
"""


class PictureBox(anywidget.AnyWidget):
    """One ``<img>`` with ``alt``, which ``ipywidgets.Image`` cannot carry; its place keeps its height."""

    _esm, _css = _MODULE, _STYLE
    png = Bytes(b"").tag(sync=True)
    alt = Unicode("").tag(sync=True)
    placeholder = Unicode("").tag(sync=True)

    def draw(self, picture: Picture) -> None:
        """The next picture."""
        with self.hold_sync():
            self.alt, self.png = picture.alt, picture.png
