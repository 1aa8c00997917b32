"""What panels with a Run and a Stop button share: one press at a time, and one runner for the kernel."""

from __future__ import annotations

from typing import Any

from dsaccum_helpers.panels.press import Press, sentence
from dsaccum_helpers.training.comparison import default_runner


class Pressing:
    """A panel that presses. It brings ``_begin``, which starts a press, and ``_say``, which shows a sentence."""

    runner: Any = None
    press: Press | None = None

    @property
    def running(self) -> bool:
        """Is a press of Run still going on?"""
        return self.press is not None and not self.press.over

    def _begin(self) -> Press:
        raise NotImplementedError

    def _say(self, text: str, *, wrong: bool = False) -> None:
        raise NotImplementedError

    def _get_runner(self) -> Any:
        self.runner = default_runner() if self.runner is None else self.runner
        return self.runner

    def _on_run(self, _: Any) -> None:
        if self.running:
            return
        try:
            self._begin()
        except Exception as error:
            self._say(sentence(error), wrong=True)

    def _on_stop(self, _: Any) -> None:
        if self.press is not None:
            self.press.stop()
