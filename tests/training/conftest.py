"""One runner for all tests that need no runner of their own, and the counting of processes."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from dsaccum_helpers.setting import Setting
from dsaccum_helpers.training import ORACLE, Run, Runner, RunResult


@pytest.fixture(scope="session")
def runner() -> Iterator[Runner]:
    with pytest.MonkeyPatch.context() as patch:
        # What a test process was told (by pytest-xdist, by a launcher) is not what a kernel is told.
        patch.delenv("PYTHONPATH", raising=False)
        made = Runner()
        made.ready()
        yield made
        made.close()


@pytest.fixture(scope="session")
def finish(runner: Runner) -> Callable[..., list[RunResult]]:
    """Run to the end: settings or (setting, code) pairs; gives the results. Every run must end as it should."""

    def run_all(
        *wanted: Setting | tuple[Setting, str], by: Runner = runner, keep_weights: bool = True
    ) -> list[RunResult]:
        pairs = [one if isinstance(one, tuple) else (one, "matched") for one in wanted]
        runs = [by.start(*pair, keep_weights=keep_weights) for pair in pairs]
        stream_to_end(by, runs)
        for run in runs:
            assert run.result.ended in ("finished", "refused"), f"{run.result.sentence}\n{run.result.log}"
        return [run.result for run in runs]

    return run_all


@pytest.fixture(scope="session")
def oracle(finish: Callable[..., list[RunResult]]) -> Callable[[Setting], RunResult]:
    """The plain-PyTorch run of a setting; one for all settings that mean the same full batches."""
    known: dict[Setting, RunResult] = {}

    def ask(setting: Setting) -> RunResult:
        full = setting.change(
            train_micro_batch_size_per_gpu=setting.train_batch_size,
            gradient_accumulation_steps=1,
            processes=1,
            zero_stage=0,
        )
        if full not in known:
            (known[full],) = finish((full, ORACLE))
        return known[full]

    return ask


def stream_to_end(runner: Runner, runs: Sequence[Run]) -> None:
    for _ in runner.stream(runs):
        pass


class Watch:
    """Counts processes, and waits."""

    def until(self, holds: Callable[[], object], seconds: float) -> float:
        """Wait until it holds; gives the seconds that it took. Fails where it does not hold in time."""
        began = time.monotonic()
        while not holds():
            assert time.monotonic() - began < seconds, f"still not so after {seconds} seconds"
            time.sleep(0.01)
        return time.monotonic() - began

    def children(self, parent: int | None = None) -> list[psutil.Process]:
        """The processes of the package below a process (this one), the dead but not yet collected included."""
        found = psutil.Process(parent or os.getpid()).children(recursive=True)
        return [one for one in found if self.is_ours(one)]

    def is_ours(self, process: psutil.Process) -> bool:
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                return True
            return "dsaccum_helpers.training.template" in process.cmdline()
        except psutil.NoSuchProcess:
            return False

    def folder(self, template: psutil.Process) -> Path:
        """The private folder of a template: the last word of its command line, which the ranks inherit."""
        return Path(template.cmdline()[-1])

    def with_folder(self, folder: Path) -> list[psutil.Process]:
        """Every living process that was started for this folder, wherever it hangs by now."""
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if any(str(folder) in word for word in process.cmdline()):
                    found.append(process)
        return found

    def gone(self, processes: Sequence[psutil.Process]) -> bool:
        return not any(map(self.lives, processes))

    def lives(self, process: psutil.Process) -> bool:
        """A process whose parent is dead too is collected by the first process of the system, some moment later."""
        try:
            return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False


@pytest.fixture(scope="session")
def watch() -> Watch:
    return Watch()
