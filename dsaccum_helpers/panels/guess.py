"""The guess panel: read a mistake, say what it will do, run it, see it, and see it mended."""

from __future__ import annotations

import json
from html import escape
from typing import Any

import ipywidgets as widgets

from dsaccum_helpers.errors import DsaccumError
from dsaccum_helpers.mismatches import RUNNABLE, find, runnable
from dsaccum_helpers.panels.fields import choice_field, message, mimebundle, number_field, read, table, typed
from dsaccum_helpers.panels.key_guard import guarded
from dsaccum_helpers.panels.picture_box import PictureBox
from dsaccum_helpers.panels.press import Press, sentence
from dsaccum_helpers.plots import Curves, Picture, alt_text
from dsaccum_helpers.setting import ZERO_STAGES, Setting
from dsaccum_helpers.training.comparison import Comparison, default_runner, with_mended
from dsaccum_helpers.training.guess import Guess

STILL_RUNNING = "The runs of this panel are still going on. Smallest fix: press Stop, or wait for their end."
ASK = "Say what you expect first: the ratio of the first gradient norm, and the number of optimizer steps."


class GuessPanel:
    """A mistake of the catalogue: guess, run, see, mend. ``run(code, ratio, steps, **changes)`` does it without clicks.

    ``ratio``: the first gradient norm divided by the right run's. ``steps``: optimizer steps of the whole run, 0 where
    you expect that DeepSpeed stops. ``changes`` are fields of ``Setting``, ``zero_stage`` and ``processes`` first.
    """

    def __init__(self, code: str, setting: Setting | None = None, runner: Any = None) -> None:
        self.setting = Setting(optimizer_steps=12) if setting is None else setting
        self.entry = runnable(code, self.setting)
        self.codes = choice_field("Mistake", list(RUNNABLE), self.entry.code)
        self.question = widgets.HTML()
        self.runner = runner
        self.press: Press | None = None
        self.guess: Guess | None = None
        self.ratio = number_field("First gradient norm, × right", None, (0.0, 0.25, 0.5, 1.0, 2.0, 4.0))
        self.steps = number_field("Optimizer steps", None, (0, 3, 6, 12, 24, 48))
        self.stage = choice_field("ZeRO stage", ZERO_STAGES, self.setting.zero_stage)
        self.processes = choice_field("Processes (world size)", (1, 2), self.setting.processes)
        self.button = widgets.Button(description="Guess and run", button_style="primary")
        self.stop_button = widgets.Button(description="Stop", disabled=True)
        self.status, self.answer = widgets.HTML(), widgets.HTML()
        self.picture = PictureBox(placeholder="The curves appear here when you have guessed.")
        self.button.on_click(self._on_run)
        self.stop_button.on_click(self._on_stop)
        self.codes.observe(self._choose, "value")
        fields = widgets.VBox([self.ratio, self.steps, self.stage, self.processes])
        buttons = widgets.HBox([self.button, self.stop_button])
        parts = [self.codes, self.question, fields, buttons, self.status, self.picture, self.answer]
        self.widget = guarded(widgets.VBox(parts))
        self._choose()

    def _choose(self, _: Any = None) -> None:
        """Ask about the chosen mistake."""
        self.entry, self.guess = find(self.codes.value), None
        self.question.value = self._question()
        reason = self.entry.needs(self.setting)
        self.status.value = message(reason, wrong=True) if reason else message(ASK)
        self.answer.value = ""

    def _question(self) -> str:
        count = self.setting.optimizer_steps
        given = f"The right run makes {count} optimizer steps. What will this one do?"
        loop = self.entry.loop_source()
        parts = [f"<strong>{escape(self.entry.title)}</strong>", f"<p>{escape(self.entry.symptom)}</p>"]
        parts += [f"<pre>{escape(loop)}</pre>"] if loop else []
        parts += [f"<p>In the configuration: <code>{escape(line)}</code></p>" for line in self._config_lines()]
        return "".join(parts) + f"<p>{given}</p>"

    def _config_lines(self) -> list[str]:
        """What the wrong configuration says otherwise than the right one."""
        wrong, right = self.entry.config(self.setting), self.setting.ds_config()
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
        """Guess, train, wait, and print the answer. What cannot be run is one printed sentence."""
        if self.running:
            print(STILL_RUNNING)
            return
        try:
            self._write(code, ratio, steps, changes)
            press = self._begin()
        except DsaccumError as error:
            print(error)
            return
        try:
            press.wait()
        except KeyboardInterrupt:
            press.stop()
            press.wait(10.0)
            print("Stopped; nothing goes on in the background.")
            return
        print(press.error or self.text)

    @property
    def running(self) -> bool:
        """Is a press still going on?"""
        return self.press is not None and not self.press.over

    def _write(self, code: str | None, ratio: float | None, steps: int | None, changes: dict[str, Any]) -> None:
        setting = self.setting.change(**changes)
        entry = runnable(self.entry.code if code is None else code, setting)
        self.setting, self.codes.value = setting, entry.code
        self._choose()
        self.stage.value = self.setting.zero_stage
        if self.setting.processes in self.processes.options:
            self.processes.value = self.setting.processes
        self.ratio.value, self.steps.value = typed(ratio), typed(steps)

    def _begin(self) -> Press:
        """Start a press. Raises ``DsaccumError`` where nothing can be run."""
        self.setting = self.setting.change(zero_stage=self.stage.value, processes=self.processes.value)
        runnable(self.entry.code, self.setting)
        self.guess = Guess(self.entry, self.setting, read(self.ratio.value), read(self.steps.value))
        codes = with_mended([self.entry.code])
        self.press = Press(self.setting, codes, self._get_runner, self._show, to_the_end=True, watch=True)
        self.answer.value = ""
        self.button.disabled, self.stop_button.disabled = True, False
        self.status.value = message("Training the right run, the mistake and the mended one.")
        self.press.start()
        return self.press

    def _get_runner(self) -> Any:
        self.runner = default_runner() if self.runner is None else self.runner
        return self.runner

    def _on_run(self, _: Any) -> None:
        if self.running:
            return
        try:
            self._begin()
        except Exception as error:
            self.status.value = message(sentence(error), wrong=True)

    def _on_stop(self, _: Any) -> None:
        if self.press is not None:
            self.press.stop()

    def _show(self, press: Press) -> None:
        """Called on the drawing thread of a press."""
        if press is not self.press or not press.over:
            return
        self.button.disabled, self.stop_button.disabled = False, True
        if press.error or press.stopped or press.comparison is None:
            self.status.value = message(press.error or "Stopped.", wrong=bool(press.error))
            return
        self._show_answer(press.comparison)

    def _show_answer(self, comparison: Comparison) -> None:
        assert self.guess is not None
        self.guess.comparison = comparison
        self.picture.draw(Picture(Curves(comparison).png(), alt_text(comparison)))
        self.status.value = message(self.guess.verdict)
        head = ("Quantity", "Your guess", "Predicted", "Measured", "Your guess is")
        mended = self.entry.mended_source()
        parts = [table("Guessed, predicted, measured", head, self.guess.lines())]
        parts.append(f"<p><strong>Why:</strong> {escape(self.entry.consequence)}</p>")
        parts.append(f"<p><strong>Seen live:</strong> {escape(self.guess.seen)}</p>")
        parts.append(f"<p><strong>Mended:</strong> {escape(self.entry.remedy)} {escape(self.guess.mended)}</p>")
        parts += [f"<pre>{escape(mended)}</pre>"] if mended else []
        self.answer.value = "".join(parts)

    def _repr_mimebundle_(self, **keywords: Any) -> dict[str, Any]:
        return mimebundle(self.widget, self.text, **keywords)
