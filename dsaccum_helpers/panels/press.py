"""One press of Run: points are received on one thread and drawn on another, so that the kernel stays free."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from dsaccum_helpers.errors import DsaccumError
from dsaccum_helpers.setting import Setting
from dsaccum_helpers.training.comparison import Comparison, plan

INTERVAL = 0.2
"""Seconds between two pictures: drawing at every point would make a run seven times slower."""
_LONGEST_END = 10.0  # seconds that cancelled runs may take to go


class Press:
    """The runs of one press, from the click to the last picture.

    ``show(press)`` is called on the drawing thread, at the start, whenever there is news, and once when all is over;
    ``press.over`` tells. ``wishes``: those of ``Runner.start``. ``error`` is one sentence, or empty. Nothing here
    raises into a thread.
    """

    def __init__(
        self,
        setting: Setting,
        codes: Sequence[str],
        get_runner: Callable[[], Any],
        show: Callable[[Press], None],
        *,
        oracle: bool = False,
        **wishes: bool,
    ) -> None:
        self.setting, self.codes, self.get_runner, self.show = setting, codes, get_runner, show
        self.oracle, self.wishes = oracle, wishes
        self.runs: list[Any] = []
        self.comparison: Comparison | None = None
        self.machine: dict[str, Any] = {}
        self.warning = self.error = ""
        self.stopped = False
        self.undrawable = False  # a picture could not be drawn, so no further one is tried
        self.over = False
        self._received, self._wake, self._done = threading.Event(), threading.Event(), threading.Event()
        self._news = threading.Event()

    def start(self) -> None:
        """Begin; returns at once."""
        for work in (self._receive, self._draw):
            threading.Thread(target=work, name=f"dsaccum{work.__name__}", daemon=True).start()

    def stop(self) -> None:
        """Cancel every run; returns at once, from any thread."""
        self.stopped = True
        for run in self.runs:
            run.cancel()
        self._wake.set()

    def wait(self, seconds: float | None = None) -> bool:
        """Wait until all is over and shown; False where that takes longer."""
        return self._done.wait(seconds)

    def _receive(self) -> None:
        try:
            self._follow_runs()
        except Exception as error:
            self.error = sentence(error)
        finally:
            self._received.set()
            self._wake.set()

    def _follow_runs(self) -> None:
        runner = self.get_runner()
        runs = plan(self.setting, self.codes, runner, oracle=self.oracle, **self.wishes)
        self.machine, self.warning = dict(runner.machine), runner.warning(self.setting)
        self.comparison, self.runs = Comparison(self.setting, [run.result for run in runs]), runs
        if self.stopped:  # pressed while the processes were still being prepared
            self.stop()
        with closing(runner.stream(runs)) as events:
            for _ in events:
                self._news.set()

    def _draw(self) -> None:
        try:
            while not (self._received.is_set() or (self.stopped and self.comparison is None)):
                self._wake.wait(INTERVAL)
                self._wake.clear()
                if self._news.is_set():
                    self._news.clear()
                    self.show(self)
        except Exception as error:
            self._give_up(error)
            self._received.wait(_LONGEST_END)
        self.over = True
        try:
            self.show(self)
        except Exception as error:
            self._give_up(error)
            self.show(self)
        finally:
            self._done.set()

    def _give_up(self, error: Exception) -> None:
        self.error, self.undrawable = sentence(error), True
        self.stop()


def sentence(error: Exception) -> str:
    """What a learner reads of an error: its own message, or one sentence for what nobody foresaw."""
    if isinstance(error, DsaccumError):
        return str(error)
    words = " ".join(str(error).split())[:200]
    return f"Something unexpected went wrong ({type(error).__name__}: {words}). Smallest fix: press Run again."
