"""The one way to run a training: start it, stream its points, cancel it. Imports no torch.

    runner = Runner()
    for run, event in runner.stream([runner.start(setting), runner.start(setting, "loss-divided-twice")]):
        ...

Every run has processes of its own, forked from a template that has imported everything, so that a bug in one run never
changes the next. One spare set of processes stands ready: a press gives its first point in hundredths of a second.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from dsaccum_helpers.mismatches import runnable
from dsaccum_helpers.setting import MAXIMUM, Setting, SettingError, check_setting
from dsaccum_helpers.training import endings
from dsaccum_helpers.training.events import ORACLE, Point, RunError
from dsaccum_helpers.training.processes import ProcessSet, Template
from dsaccum_helpers.training.run import Run

STALL_SECONDS = 60.0
"""A run that gives no sign of life for so long is ended: a hung rank never ends by itself."""


def begins_adam_ahead(setting: Setting) -> bool:
    """Does DeepSpeed 0.19 take one Adam step with an empty gradient when it makes its optimizer for this setting?"""
    return (setting.dtype, setting.optimizer, setting.zero_stage) == ("bf16", "Adam", 0)


class Runner:
    """Starts runs on this machine's devices: the GPUs there are, otherwise the CPU. One template serves all runs."""

    def __init__(self, stall_seconds: float = STALL_SECONDS) -> None:
        self.stall_seconds = stall_seconds
        self.lock = threading.RLock()
        self._template: Template | None = None
        self._spare: ProcessSet | None = None
        self._runs: set[Run] = set()
        self._owner = os.getpid()

    @property
    def machine(self) -> dict[str, Any]:
        """What there is: accelerator, gpus, cores, versions. Starts the template where it is not running yet."""
        return self.ready().machine

    def ready(self) -> Template:
        """The template, started anew where it has died. Takes a few seconds the first time. Raises ``RunError``."""
        if os.getpid() != self._owner:  # a process that the kernel forked: what it inherits belongs to the kernel
            self.lock, self._template, self._spare, self._runs = threading.RLock(), None, None, set()
            self._owner = os.getpid()
        with self.lock:
            if self._template is None or not self._template.alive:
                self._drop()
                self._template = Template()
                atexit.register(self.close)  # without it a kernel's end takes seconds
            return self._template

    def most_processes(self) -> int:
        """The largest number of processes that a setting may ask for here."""
        machine = self.machine
        return machine["gpus"] if machine["accelerator"] == "cuda" else MAXIMUM["processes"]

    def warning(self, setting: Setting) -> str:
        """A plain word about a setting that will be slow or odd here; empty where there is nothing to say."""
        machine, words = self.machine, []
        if machine["accelerator"] == "cpu" and setting.processes > machine["cores"]:
            words.append(
                f"{setting.processes} processes share {machine['cores']} processor cores: "
                "the numbers stay right, the run is slower."
            )
        if begins_adam_ahead(setting):
            words.append(
                "With bf16 and Adam at ZeRO-0, DeepSpeed 0.19 begins with Adam one step ahead: "
                "the right run differs from the oracle too. ZeRO-1 does not."
            )
        return " ".join(words)

    def start(
        self,
        setting: Setting,
        mismatch: str | None = None,
        *,
        keep_weights: bool = False,
        to_the_end: bool = False,
        watch: bool = False,
    ) -> Run:
        """A run: the right one, a mismatch of the catalogue, or ``"oracle"``. Checked here, begun by ``stream``.

        ``to_the_end``: let plain PyTorch predict the whole run, not only its first update. ``watch``: under the live
        observer.
        Raises ``SettingError``, ``UnknownMismatchError`` or ``RunError``; then nothing has been started.
        """
        check_setting(setting)
        code = ORACLE if mismatch == ORACLE else runnable(mismatch, setting).code
        if setting.processes > self.most_processes():
            raise SettingError(
                f"processes is {setting.processes}, and this machine has {self.most_processes()} GPUs, one for each. "
                f"Smallest fix: processes {self.most_processes()}."
            )
        return Run(setting, code, keep_weights, to_the_end, watch)

    def stream(self, runs: Sequence[Run], *, parallel: int | None = None) -> Iterator[tuple[Run, Point | None]]:
        """Begin the runs in order, as many at a time as there are cores, and yield each point as it comes.

        ``None`` in place of a point says that the run has ended. Leaving the loop early, or interrupting it, cancels
        what is still going on and waits until it is gone.
        """
        if len(set(map(id, runs))) < len(runs) or any(run.set or run.result.ended for run in runs):
            raise RunError("A run can be streamed once. Smallest fix: make a new one with runner.start.")
        machine = self.machine
        # Every run takes the GPUs from the first on, so there they run one after the other.
        cores = 1 if machine["accelerator"] == "cuda" else machine["cores"]
        waiting, going = deque(runs), list[Run]()
        with selectors.DefaultSelector() as selector:
            try:
                while waiting or going:
                    while waiting and len(going) < (parallel or max(1, cores // waiting[0].result.setting.processes)):
                        run = waiting.popleft()
                        going.append(run)  # before it begins: an interrupt in between must find it
                        if not self._begin(run, selector):
                            going.remove(run)
                            yield run, None
                    yield from self._turn(selector, going)
            finally:
                self._abandon(going, selector)

    def _begin(self, run: Run, selector: selectors.BaseSelector) -> bool:
        """Give the run its processes; False where it was cancelled before, or cannot begin."""
        if run.cancelled.is_set():
            endings.conclude_unstarted(run.result)
            return False
        try:
            with self.lock:
                one = self._take_set(1 if run.result.code == ORACLE else run.result.setting.processes)
            run.begin(one)
        except RunError as error:
            run.result.ended, run.result.sentence = "failed", str(error)
            if run.set is not None:
                self._discard(run.set)
            return False
        self._runs.add(run)
        selector.register(one.events, selectors.EVENT_READ, (run, "events"))
        selector.register(one.status, selectors.EVENT_READ, (run, "status"))
        return True

    def _take_set(self, processes: int) -> ProcessSet:
        template = self.ready()
        one, self._spare = self._spare, None
        if one is not None and (one.processes != processes or not one.waiting()):
            self._discard(one)
            one = None
        return one or template.fork(processes)

    def _turn(self, selector: selectors.BaseSelector, going: list[Run]) -> Iterator[tuple[Run, Point | None]]:
        ready = selector.select(timeout=0.1)
        # Before the points are handed out: how long that takes says nothing about the processes.
        now = time.monotonic()
        for key, _ in ready:
            run, pipe = key.data
            if run.result.ended is not None:  # ended in this very turn, by its other pipe
                continue
            try:
                for point in run.read(pipe):
                    yield run, point
            except EOFError:
                selector.unregister(key.fd)
                # The template closes the status pipe when the last process has been collected.
                if pipe == "status":
                    yield from self._drain(run, selector)
                    going.remove(run)
                    yield run, None
        for run in going:
            run.check(now, self.stall_seconds)

    def _drain(self, run: Run, selector: selectors.BaseSelector) -> Iterator[tuple[Run, Point | None]]:
        assert run.set is not None
        with contextlib.suppress(EOFError):
            while True:
                for point in run.read("events"):
                    yield run, point
        with contextlib.suppress(KeyError):
            selector.unregister(run.set.events)
        processes = run.set.processes
        run.finish()
        with self.lock:
            self._runs.discard(run)
        if not self._runs:
            self.prepare(processes)

    def _abandon(self, going: list[Run], selector: selectors.BaseSelector) -> None:
        for run in list(going):
            run.cancel()
            if run not in self._runs:  # interrupted while it was being given its processes
                going.remove(run)
                if run.set is not None:
                    self._discard(run.set)
        limit = time.monotonic() + 5.0
        while going and time.monotonic() < limit:
            for _ in self._turn(selector, going):
                pass

    def prepare(self, processes: int) -> None:
        """Have a spare set ready for the next press; costs nothing that anybody waits for."""
        with self.lock, contextlib.suppress(RunError):
            if self._spare is None and self._template is not None and self._template.alive:
                self._spare = self._template.fork(processes)

    def _discard(self, one: ProcessSet) -> None:
        one.kill()
        one.close()

    def _drop(self) -> None:
        if self._spare is not None:
            self._discard(self._spare)
            self._spare = None
        if self._template is not None:
            self._template.close()
            self._template = None

    def close(self) -> None:
        """End every run and the template; leaves no process and no file. They begin anew when they are needed again."""
        if os.getpid() != self._owner:  # a process that the kernel forked runs the kernel's exit hooks
            return
        for run in list(self._runs):
            run.cancel()
        with self.lock:
            self._drop()
        atexit.unregister(self.close)
