"""A place in a panel for one picture that is drawn again and again, with alternative text, without flicker."""

from __future__ import annotations

import ipywidgets as widgets
from traitlets import Unicode

from dsaccum_helpers.plots import Picture


class NamedImage(widgets.Image):
    """An ``ipywidgets.Image`` whose ``tooltip`` arrives in the browser, as the title of the ``<img>``.

    ipywidgets 8.1 offers no ``alt``, and its view takes a tooltip only where the model has a description as well.
    Assistive technology reads the title of an image that has no ``alt``.
    """

    description = Unicode("").tag(sync=True)


class PictureBox(widgets.Box):
    """``live`` while a run goes on: the browser keeps the old picture until the new one is there, so nothing flickers.
    ``still`` afterwards: an ``<img>`` with ``alt``.
    """

    def __init__(self, height: str, placeholder: str = "") -> None:
        self.still = widgets.HTML(placeholder, layout={"width": "100%", "flex": "0 0 auto"})
        self.live = NamedImage(
            format="png", layout={"max_width": "100%", "display": "none", "align_self": "flex-start"}
        )
        self.height = height
        super().__init__(children=(self.still, self.live), layout={"overflow": "hidden", "flex_flow": "column"})

    def draw(self, picture: Picture) -> None:
        """The next picture of a run that goes on."""
        # From the first picture on the height is fixed, so that nothing below moves when one takes the other's place.
        self.layout.min_height = self.layout.height = self.height
        with self.live.hold_sync():
            self.live.value, self.live.tooltip = picture.png, picture.alt
        self.live.layout.display, self.still.layout.display = None, "none"

    def settle(self, picture: Picture) -> None:
        """The last picture."""
        self.layout.min_height = self.layout.height = self.height
        self.still.value = picture.html
        self.still.layout.display, self.live.layout.display = None, "none"

    @property
    def alt(self) -> str:
        """The alternative text of the picture that is shown while a run goes on."""
        return self.live.tooltip or ""
