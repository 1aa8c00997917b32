"""A runner that replays a comparison measured before, for tests of panels and pictures where no training may start."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from copy import copy

from dsaccum_helpers.mismatches import runnable
from dsaccum_helpers.setting import Setting, SettingError
from dsaccum_helpers.training.endings import conclude_unstarted
from dsaccum_helpers.training.events import ORACLE, Point, RunResult


class RecordedRun:
    """One run that replays; ``result`` grows like that of a real one."""

    def __init__(self, setting: Setting, recorded: RunResult) -> None:
        self.recorded = recorded
        self.result = RunResult(recorded.code, setting)
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        """Stop replaying."""
        self.cancelled.set()


class RecordedRunner:
    """Replays results of real runs by their codes, one after the other, with ``delay`` seconds before each point."""

    def __init__(self, results: Sequence[RunResult], delay: float = 0.0) -> None:
        self.results, self.delay = {result.code: result for result in results}, delay
        self.machine = {"accelerator": "cpu", "gpus": 0, "cores": 2, "versions": {"torch": "-", "deepspeed": "-"}}

    def most_processes(self) -> int:
        """As on a CPU."""
        return 8

    def warning(self, setting: Setting) -> str:
        """As on two cores."""
        return f"{setting.processes} processes share 2 processor cores." if setting.processes > 2 else ""

    def start(self, setting: Setting, mismatch: str | None = None, **_: bool) -> RecordedRun:
        """A run of this code, if it was recorded. Raises as ``Runner.start`` does."""
        code = ORACLE if mismatch == ORACLE else runnable(mismatch, setting).code
        if code not in self.results:
            raise SettingError(f"{code} was not recorded. Smallest fix: use the real Runner.")
        return RecordedRun(setting, self.results[code])

    def stream(self, runs: Sequence[RecordedRun]) -> Iterator[tuple[RecordedRun, Point | None]]:
        """Replay the runs in order."""
        for run in runs:
            for point in () if run.cancelled.is_set() else run.recorded.points:
                time.sleep(self.delay)
                if run.cancelled.is_set():
                    run.result.ended = "cancelled"
                    run.result.sentence = f"Stopped after {len(run.result.steps)} optimizer steps."
                    break
                run.result.points.append(point)
                yield run, point
            if run.cancelled.is_set():
                if run.result.ended is None:
                    conclude_unstarted(run.result)
            else:
                points = run.result.points
                vars(run.result).update(vars(copy(run.recorded)) | {"points": points, "setting": run.result.setting})
            yield run, None

    def close(self) -> None:
        """Nothing to end."""
