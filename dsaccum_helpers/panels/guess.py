"""The guess panel: read a mistake, say what it will do, run it, see it, and see it mended."""

from __future__ import annotations

import json
from html import escape
from itertools import product
from typing import Any

import ipywidgets as widgets

from dsaccum_helpers.errors import DsaccumError
from dsaccum_helpers.mismatches import RUNNABLE, UnknownMismatchError, find, runnable
from dsaccum_helpers.panels.compare import STILL_RUNNING, WHILE_WAITING, Interrupted
from dsaccum_helpers.panels.fields import choice_field, message, mimebundle, number_field, read, table, typed
from dsaccum_helpers.panels.key_guard import guarded
from dsaccum_helpers.panels.picture_box import PictureBox
from dsaccum_helpers.panels.press import Press
from dsaccum_helpers.panels.pressing import Pressing
from dsaccum_helpers.plots import Curves, Picture, alt_text
from dsaccum_helpers.setting import ZERO_STAGES, Setting
from dsaccum_helpers.training.comparison import Comparison, with_mended
from dsaccum_helpers.training.guess import Guess

ASK = "Say what you expect first: the ratio of the first gradient norm, and the number of optimizer steps."
TRAINING = "Training the right run, the mistake and the mended one."
NO_FIELD = "There is no field for that here; in a cell, panel.run(code, name=value) changes it."


class GuessPanel(Pressing):
    """A mistake of the catalogue: guess, run, see, mend. ``run(code, ratio, steps, **changes)`` does it without clicks.

    ``ratio``: the first gradient norm divided by the right run's. ``steps``: optimizer steps of the whole run, 0 where
    you expect that DeepSpeed stops. ``changes`` are fields of ``Setting``, ``zero_stage`` and ``processes`` first.
    """

    def __init__(self, code: str, setting: Setting | None = None, runner: Any = None) -> None:
        self.setting = Setting(optimizer_steps=12) if setting is None else setting
        self.entry = _asked(code, self.setting)
        self.codes = choice_field("Mistake", list(RUNNABLE), self.entry.code)
        self.codes.layout.width, self.codes.layout.max_width = "450px", "100%"  # the longest code is not cut off
        self.question = widgets.HTML()
        self.runner = runner
        self.press: Press | None = None
        self.guess: Guess | None = None
        self.ratio = number_field("First gradient norm, × right", None, (0.0, 0.25, 0.5, 1.0, 2.0, 4.0))
        self.steps = number_field("Optimizer steps", None, (0, 3, 6, 12, 24, 48))
        self.stage = choice_field("ZeRO stage", ZERO_STAGES, self.setting.zero_stage)
        self.processes = choice_field("Processes (world size)", _counts(self.setting), self.setting.processes)
        self.button = widgets.Button(description="Guess and run", button_style="primary")
        self.stop_button = widgets.Button(description="Stop", disabled=True)
        self.status, self.answer = widgets.HTML(), widgets.HTML()
        self.picture = PictureBox(placeholder="The curves appear here when you have guessed.")
        self.button.on_click(self._on_run)
        self.stop_button.on_click(self._on_stop)
        self._wrong, self._settled = False, True
        self.codes.observe(self._choose, "value")
        for field in (self.ratio, self.steps, self.stage, self.processes):
            field.observe(self._review, "value")
        fields = widgets.VBox([self.ratio, self.steps, self.stage, self.processes])
        buttons = widgets.HBox([self.button, self.stop_button])
        parts = [self.codes, self.question, fields, buttons, self.status, self.picture, self.answer]
        self.widget = guarded(widgets.VBox(parts))
        self._choose()

    def _choose(self, _: Any = None) -> None:
        """Ask about the chosen mistake."""
        if not self._settled:
            return
        self.entry, self.guess = find(self.codes.value), None
        self.answer.value = ""
        self._say(ASK)
        self._review()

    def _review(self, _: Any = None) -> None:
        """Say at once what the button would refuse; while runs go on, the status is theirs."""
        if not self._settled or self.running:
            return
        try:
            self.question.value = self._question()
            self._read()
        except DsaccumError as error:
            self._say(f"{error} {self._way_out()}".strip(), wrong=True)
        else:
            if self._wrong:
                self._say(ASK)

    def _way_out(self) -> str:
        """A word where no choice of this panel lets the mistake run; it has no fields for the rest of a setting."""
        for stage, processes in product(ZERO_STAGES, self.processes.options):
            try:
                runnable(self.entry.code, self.setting.change(zero_stage=stage, processes=processes))
            except DsaccumError:
                continue
            return ""
        return NO_FIELD

    def _say(self, text: str, *, wrong: bool = False) -> None:
        self._wrong, self.status.value = wrong, message(text, wrong=wrong)

    def _chosen(self) -> Setting:
        """The setting with what stands in the two lists. Raises ``SettingError``."""
        return self.setting.change(zero_stage=self.stage.value, processes=self.processes.value)

    def _read(self) -> Guess:
        """The guess as it stands in the fields. Raises ``DsaccumError`` where it cannot be run."""
        setting = self._chosen()
        runnable(self.entry.code, setting)
        return Guess(self.entry, setting, read(self.ratio.value), read(self.steps.value))

    def _question(self) -> str:
        setting = self._chosen()
        given = (
            f"The right run: {setting.train_micro_batch_size_per_gpu} samples per micro-batch, accumulation steps "
            f"{setting.gradient_accumulation_steps}, optimizer steps {setting.optimizer_steps}. What will this one do?"
        )
        loop = self.entry.loop_source()
        parts = [f"<strong>{escape(self.entry.title)}</strong>", f"<p>{escape(self.entry.symptom)}</p>"]
        parts += [f"<pre>{escape(loop)}</pre>"] if loop else []
        parts += [f"<p>In the configuration: <code>{escape(line)}</code></p>" for line in self._config_lines(setting)]
        return "".join(parts) + f"<p>{given}</p>"

    def _config_lines(self, setting: Setting) -> list[str]:
        """What the wrong configuration says otherwise than the right one."""
        wrong, right = self.entry.config(setting), setting.ds_config()
        if not isinstance(wrong, dict):
            return [str(wrong)]
        changed = {key: wrong.get(key) for key in {**right, **wrong} if wrong.get(key) != right.get(key)}
        return [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in changed.items()]

    @property
    def text(self) -> str:
        """The answer as text, or the question."""
        return str(self.guess) if self.guess else f"{self.entry.code}: {self.entry.title}\n{ASK}"

    def run(
        self, code: str | None = None, ratio: float | None = None, steps: int | None = None, **changes: Any
    ) -> None:
        """Guess, train, wait, and print the answer. What cannot be run is one printed sentence.

        Interrupting stops the runs, and the rest of the cell.
        """
        if self.running:
            print(STILL_RUNNING)
            return
        try:
            self._write(code, ratio, steps, changes)
            press = self._begin(waiting=True)
        except DsaccumError as error:
            print(error)
            return
        try:
            press.wait()
        except KeyboardInterrupt:
            press.stop()
            press.wait(10.0)
            raise Interrupted from None
        print(_failure(press) or self.text)

    def _write(self, code: str | None, ratio: float | None, steps: int | None, changes: dict[str, Any]) -> None:
        """Put it all into the fields, and then look at it once. Raises ``DsaccumError``; then nothing is written."""
        setting = self._chosen().change(**changes)
        entry = _asked(self.entry.code if code is None else code, setting)
        self._settled = False
        try:
            self.setting, self.codes.value = setting, entry.code
            if setting.processes not in self.processes.options:
                self.processes.options = _counts(setting)
            self.stage.value, self.processes.value = setting.zero_stage, setting.processes
            self.ratio.value, self.steps.value = typed(ratio), typed(steps)
        finally:
            self._settled = True
        self._choose()

    def _begin(self, *, waiting: bool = False) -> Press:
        """Start a press. Raises ``DsaccumError`` where nothing can be run; then nothing has been started."""
        self.guess = self._read()
        self.setting = self.guess.setting
        codes = with_mended([self.entry.code])
        self.press = Press(self.setting, codes, self._get_runner, self._show, to_the_end=True, watch=True)
        self.answer.value = ""
        # The answer is about the mistake that was asked about, so no other can be chosen meanwhile.
        self.button.disabled = self.codes.disabled = True
        # A cell that waits keeps the kernel from hearing of the button; interrupting the cell stops the runs.
        self.stop_button.disabled = waiting
        self._say(f"{TRAINING} {WHILE_WAITING}" if waiting else TRAINING)
        self.press.start()
        return self.press

    def _show(self, press: Press) -> None:
        """Called on the drawing thread of a press."""
        if press is not self.press or not press.over:
            return
        failure, comparison = _failure(press), press.comparison
        if failure:
            self._say(failure, wrong=True)
        elif press.stopped or comparison is None:
            self._say("Stopped.")
        else:
            self._show_answer(comparison)
        self.button.disabled = self.codes.disabled = False
        self.stop_button.disabled = True

    def _show_answer(self, comparison: Comparison) -> None:
        assert self.guess is not None
        self.guess.comparison = comparison
        self.picture.draw(Picture(Curves(comparison).png(), alt_text(comparison)))
        self._say(self.guess.verdict)
        head = ("Quantity", "Your guess", "Predicted", "Measured", "Your guess is")
        mended = self.entry.mended_source()
        parts = [table("Guessed, predicted, measured", head, self.guess.lines())]
        words = comparison.result(self.entry.code).engine_words
        parts += [f"<p><strong>DeepSpeed:</strong> {escape(words)}</p>"] if words else []
        parts.append(f"<p><strong>Why:</strong> {escape(self.entry.consequence)}</p>")
        parts.append(f"<p><strong>Seen live:</strong> {escape(self.guess.seen)}</p>")
        parts.append(f"<p><strong>Mended:</strong> {escape(self.entry.remedy)} {escape(self.guess.mended)}</p>")
        parts += [f"<pre>{escape(mended)}</pre>"] if mended else []
        self.answer.value = "".join(parts)

    def _repr_mimebundle_(self, **keywords: Any) -> dict[str, Any]:
        return mimebundle(self.widget, self.text, **keywords)


def _counts(setting: Setting) -> tuple[int, ...]:
    """One process and two can be chosen, and what the setting asks for."""
    return tuple(sorted({1, 2, setting.processes}))


def _failure(press: Press) -> str:
    """One sentence where a press, or a run of it, broke; a run that DeepSpeed refuses has not."""
    results = press.comparison.results if press.comparison else []
    failed = [f"{result.code}: {result.sentence}" for result in results if result.ended == "failed"]
    return press.error or next(iter(failed), "")


def _asked(code: Any, setting: Setting) -> Any:
    """The entry with this code. Raises ``DsaccumError`` where there is nothing to guess."""
    entry = runnable(code, setting)
    if entry.code not in RUNNABLE:
        raise UnknownMismatchError(f"{entry.code} is right, so there is nothing to guess. Smallest fix: another code.")
    return entry
