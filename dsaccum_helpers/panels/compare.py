"""The compare panel: the right run and mismatched ones side by side, with real DeepSpeed."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from typing import Any

import ipywidgets as widgets

from dsaccum_helpers.errors import DsaccumError
from dsaccum_helpers.exports import export
from dsaccum_helpers.mismatches import RUNNABLE
from dsaccum_helpers.panels import results
from dsaccum_helpers.panels.fields import message, mimebundle
from dsaccum_helpers.panels.key_guard import guarded
from dsaccum_helpers.panels.picture_box import PictureBox
from dsaccum_helpers.panels.press import Press, sentence
from dsaccum_helpers.panels.pressing import Pressing
from dsaccum_helpers.panels.settings import SettingFields
from dsaccum_helpers.plots import Curves, Picture, alt_text, progress_text
from dsaccum_helpers.setting import Setting
from dsaccum_helpers.training.comparison import Comparison, check, with_mended

STARTING = "Preparing the training processes. The first time this takes some seconds."
WHILE_WAITING = "The cell waits for the end; interrupt it to stop the runs."
NOTHING_YET = "Nothing has been measured yet. Smallest fix: press Run."
STILL_RUNNING = "The runs of this panel are still going on. Smallest fix: press Stop, or wait for their end."


class Interrupted(KeyboardInterrupt):
    """The cell was interrupted, and the runs with it. IPython shows one line, and runs no further cell."""

    def _render_traceback_(self) -> list[str]:
        return ["Interrupted: the runs were stopped, and nothing goes on in the background."]


class ComparePanel(Pressing):
    """Choose a setting and mismatches, press Run, and see the curves grow; then predicted stands beside measured.

    ``run(**changes)`` is the same without a front end. ``comparison`` is the last one. ``runner=None`` takes the
    kernel's own runner, when Run is pressed first.
    """

    def __init__(
        self, setting: Setting | None = None, mismatches: Sequence[str] = ("loss-divided-twice",), runner: Any = None
    ) -> None:
        self.runner = runner
        self.press: Press | None = None
        self.comparison: Comparison | None = None
        self.settings = SettingFields(Setting() if setting is None else setting)
        self.boxes = {code: _box(f"{code}: {entry.title}") for code, entry in RUNNABLE.items()}
        self.mended_box = _box("mended: each mismatch once more, with its mistake put right")
        self.oracle_box = _box("oracle: the same batch in plain PyTorch, without accumulation")
        self.run_button = widgets.Button(description="Run", button_style="primary")
        self.stop_button = widgets.Button(description="Stop", disabled=True)
        self.export_button = widgets.Button(description="Export", disabled=True)
        self.progress = widgets.FloatProgress(min=0.0, max=1.0, layout={"width": "250px"})
        self.left, self.status, self.table, self.exported = (widgets.HTML() for _ in range(4))
        self.picture = PictureBox(placeholder="The curves appear here when Run is pressed.")
        self._curves: Curves | None = None
        self._began = 0.0
        self._unknown: list[str] = []
        self._writing = threading.Lock()  # only one press at a time writes to the widgets
        self._choose(mismatches)
        self.widget = guarded(self._assemble())

    def _assemble(self) -> widgets.VBox:
        self.run_button.on_click(self._on_run)
        self.stop_button.on_click(self._on_stop)
        self.export_button.on_click(self._on_export)
        self.settings.observe(self._review)
        for box in self.boxes.values():
            box.observe(self._ticked, "value")
        head = widgets.HTML("<strong>Mismatches to run beside the right setting (at most five)</strong>")
        buttons = widgets.HBox(
            [self.run_button, self.stop_button, self.export_button, self.progress, self.left],
            layout={"flex_flow": "row wrap"},
        )
        # Longer than a screen: it scrolls in itself, so that Run stays near.
        frame = {"border": "1px solid #767676", "padding": "2px 6px"}  # seen to be cut where no scroll bar shows
        boxes = widgets.VBox(
            list(self.boxes.values()), layout={"max_height": "300px", "overflow": "hidden auto", **frame}
        )
        besides = widgets.VBox([self.mended_box, self.oracle_box])
        parts = [
            self.settings.widget,
            head,
            boxes,
            besides,
            buttons,
            self.status,
            self.picture,
            self.table,
            self.exported,
        ]
        return widgets.VBox(parts)

    @property
    def codes(self) -> list[str]:
        """The mismatches that are ticked, and those asked for by name that are not in the catalogue."""
        return [*(code for code, box in self.boxes.items() if box.value), *self._unknown]

    @property
    def text(self) -> str:
        """What the panel shows of its last comparison, as text."""
        return NOTHING_YET if self.comparison is None else f"{alt_text(self.comparison)}\n{self.comparison}"

    def run(self, mismatches: Sequence[str] | None = None, **changes: Any) -> Comparison | None:
        """Train, wait, and show it in the panel as a press of Run does. ``changes`` are fields of ``Setting``.

        What cannot be run is said in one printed sentence, and ``None`` is returned. Interrupting stops all runs.
        """
        if self.running:
            print(STILL_RUNNING)
            return None
        try:
            setting, values = self.settings.changed(changes)
            codes = self.codes if mismatches is None else _as_list(mismatches)
            check(setting, codes)
            self.settings.write(values)
            self._choose(codes)
            press = self._begin(waiting=True)
        except DsaccumError as error:
            self._say(str(error), wrong=True)
            print(error)
            return None
        try:
            press.wait()
        except KeyboardInterrupt:
            press.stop()
            press.wait(10.0)
            raise Interrupted from None
        if press.error:
            print(press.error)
            return None
        return press.comparison

    def _choose(self, mismatches: Sequence[str]) -> None:
        wanted = _as_list(mismatches)
        for code, box in self.boxes.items():
            box.value = code in wanted
        self._unknown = [code for code in wanted if code not in list(self.boxes)]
        self._review()

    def _ticked(self, _: Any) -> None:
        self._unknown = []
        self._review()

    def _review(self, _: Any = None) -> None:
        """Say at once what Run would refuse; while runs go on, the status is theirs."""
        if self.running:
            return
        try:
            check(self.settings.setting, self.codes)
        except DsaccumError as error:
            self._say(str(error), wrong=True)
        else:
            self._say("")

    def _say(self, text: str, *, wrong: bool = False) -> None:
        self.status.value = message(text, wrong=wrong)

    def _begin(self, *, waiting: bool = False) -> Press:
        """Start a press. Raises ``DsaccumError`` where nothing can be run; then nothing has been started."""
        setting, codes = self.settings.setting, self.codes
        check(setting, codes)
        with self._writing:
            wanted = with_mended(codes) if self.mended_box.value else codes
            self.press = Press(setting, wanted, self._get_runner, self._show, oracle=self.oracle_box.value)
            self._curves = None
            self.table.value = self.exported.value = self.left.value = ""
            self.progress.value = 0.0
            self.run_button.disabled = self.export_button.disabled = True
            # A cell that waits keeps the kernel from hearing of the button; interrupting the cell stops the runs.
            self.stop_button.disabled = waiting
            self._say(f"{STARTING} {WHILE_WAITING}" if waiting else STARTING)
            self.press.start()
        return self.press

    def _on_export(self, _: Any) -> None:
        if self.running or self.comparison is None or self.press is None:
            return
        try:
            folder = export(self.comparison, machine=self.press.machine)
            self.exported.value = results.exported(self.comparison, folder)
        except Exception as error:
            self.exported.value = message(sentence(error), wrong=True)

    def _show(self, press: Press) -> None:
        """Called on the drawing thread of a press."""
        with self._writing:
            if press is not self.press:
                return
            if press.comparison is not None and not press.undrawable:
                self._show_runs(press, press.comparison)
            if press.over:
                self._show_end(press)

    def _show_runs(self, press: Press, comparison: Comparison) -> None:
        if self._curves is None:
            self.comparison, self._curves, self._began = comparison, Curves(comparison), time.monotonic()
            self._say(f"Training {', '.join(result.code for result in comparison.results)}. {press.warning}")
        self._curves.update()
        picture = Picture(self._curves.png(), alt_text(comparison))
        self.picture.draw(picture)
        if press.stopped:
            self.left.value = "stopped"  # a cancelled run has ended too, so its progress would read 100 %
        else:
            self.progress.value, self.left.value = comparison.progress, progress_text(comparison, self._began)

    def _show_end(self, press: Press) -> None:
        comparison = press.comparison
        failed = [r for r in comparison.results if r.ended == "failed"] if comparison else []
        if press.error or failed:
            self._say(press.error or f"{failed[0].code}: {failed[0].sentence}", wrong=True)
        elif press.stopped:
            self._say("Stopped. What was measured so far is shown." if comparison else "Stopped before anything began.")
        else:
            self._say("All runs have ended.")
        if comparison:
            self.table.value = results.tables(comparison)
        self.stop_button.disabled = True
        self.export_button.disabled = comparison is None
        self.run_button.disabled = False

    def _repr_mimebundle_(self, **keywords: Any) -> dict[str, Any]:
        return mimebundle(self.widget, self.text, **keywords)


def _as_list(codes: Sequence[str] | None) -> list[str]:
    if codes is None:
        return []
    return list(codes) if isinstance(codes, list | tuple | set | dict) else [codes]  # type: ignore[list-item]


def _box(text: str) -> widgets.Checkbox:
    return widgets.Checkbox(description=text, indent=False, layout={"width": "auto"})
