"""The one way to run a training: start it, stream its points, cancel it. Imports no torch.

    runner = Runner()
    for run, event in runner.stream([runner.start(setting), runner.start(setting, "loss-divided-twice")]):
        ...

Every run has processes of its own, forked from a template that has imported everything, so that a bug in one run never
changes the next. One spare set of processes stands ready, so that a press gives its first point in some hundredths of a second.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import selectors
import threading
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

from dsaccum_helpers.mismatches import find
from dsaccum_helpers.setting import Setting, SettingError
from dsaccum_helpers.training import endings
from dsaccum_helpers.training.events import ORACLE, Expected, Point, RunError, RunResult
from dsaccum_helpers.training.processes import ProcessSet, Template

STALL_SECONDS = 60.0
"""A run that gives no sign of life for so long is ended: a hung rank never ends by itself."""
GRACE_SECONDS = 1.0
"""How long the other ranks may explain themselves after one has died."""


class AnyRun(Protocol):
    """A run as a panel sees it: real or recorded."""

    result: RunResult

    def cancel(self) -> None:
        """End the run; returns at once, and may be called from any thread and more than once."""


class Run:
    """One real run. It waits until ``Runner.stream`` begins it; ``result`` grows while it goes on."""

    def __init__(self, setting: Setting, code: str, keep_weights: bool) -> None:
        self.result = RunResult(code, setting)
        self.keep_weights = keep_weights
        self.cancelled = threading.Event()
        self.set: ProcessSet | None = None
        self.template: Template | None = None
        self.exits: dict[int, int] = {}
        self.report: dict[str, Any] | None = None
        self.heard = 0.0
        self.kill_after: float | None = None  # the moment from which the watchdog ends what is left of the set
        self.hung = False
        self.buffers = {"events": b"", "status": b""}

    def cancel(self) -> None:
        """End the run and free everything; nothing happens where it has ended."""
        self.cancelled.set()
        self.kill()

    def kill(self) -> None:
        """Send the processes away; the stream notices when they are gone."""
        self.kill_after = time.monotonic()
        if self.set is not None and self.template is not None and self.result.ended is None:
            self.template.kill(self.set)

    def begin(self, template: Template, one: ProcessSet) -> None:
        """Hand the job to a set of processes."""
        self.template, self.set, self.heard = template, one, time.monotonic()
        one.give({"setting": self.result.setting.to_dict(), "mismatch": self.result.code})
        if self.cancelled.is_set():
            self.kill()

    def read(self, pipe: str) -> Iterator[Point]:
        """Take in what has arrived on one of the two pipes; yields new points. Raises ``EOFError`` at its end."""
        data = os.read(getattr(self.set, pipe), 65536)
        if not data:
            raise EOFError
        self.heard = time.monotonic()
        *lines, self.buffers[pipe] = (self.buffers[pipe] + data).split(b"\n")
        for line in lines:
            event = json.loads(line)
            kind = event.pop("event")
            if kind == "point":
                self.result.micro_batches_read = event.pop("micro_batches")
                point = Point(**event)
                self.result.points.append(point)
                yield point
            else:
                self._take(kind, event)

    def _take(self, kind: str, event: dict[str, Any]) -> None:
        assert self.set is not None
        if kind == "forked":
            self.set.pids = event["pids"]
        elif kind == "exited":
            self.exits[event["rank"]] = event["status"]
            if event["status"] and self.kill_after is None:
                # The others may be waiting for the dead one for ever; what they have to say, they say at once.
                self.kill_after = time.monotonic() + GRACE_SECONDS
        elif kind == "alive":
            self.result.micro_batches_read = event["micro_batches"]
        elif kind == "expected":
            self.result.expected = Expected(**event)
        elif kind == "ended" and (self.report is None or endings.explains_more(event, self.report)):
            self.report = event
            self.result.micro_batches_read = event.get("micro_batches", self.result.micro_batches_read)

    def check(self, now: float, stall_seconds: float) -> None:
        """The watchdog: end what hangs, and what a dead rank has left behind."""
        if self.set is None:
            return
        if self.kill_after is None and now - self.heard > stall_seconds:
            self.hung = True
            self.result.log = endings.stopped_note(self.set.pids)
            self.kill()
        elif self.kill_after is not None and now > self.kill_after:
            self.kill()

    def finish(self) -> None:
        """All processes are gone: say how it ended, keep what is wanted, remove the folder."""
        assert self.set is not None
        endings.conclude(self.result, self.report, self.exits, self.cancelled.is_set(), self.hung, self.set)
        if self.keep_weights and self.result.ended == "finished":
            import numpy

            self.result.weights = numpy.load(self.set.folder / "weights.npy")
        self.set.close()


class Runner:
    """Starts runs on this machine's devices: the GPUs there are, otherwise the CPU. One template serves all runs."""

    def __init__(self, stall_seconds: float = STALL_SECONDS) -> None:
        self.stall_seconds = stall_seconds
        self.lock = threading.RLock()
        self._template: Template | None = None
        self._spare: ProcessSet | None = None
        self._runs: set[Run] = set()
        atexit.register(self.close)  # without it a kernel's end takes seconds

    @property
    def machine(self) -> dict[str, Any]:
        """What there is: accelerator, gpus, cores, versions. Starts the template where it is not running yet."""
        return self.ready().machine

    def ready(self) -> Template:
        """The template, started anew where it has died. Takes a few seconds the first time. Raises ``RunError``."""
        with self.lock:
            if self._template is None or not self._template.alive:
                self._drop()
                self._template = Template()
            return self._template

    def most_processes(self) -> int:
        """The largest number of processes that a setting may ask for here."""
        from dsaccum_helpers.setting import MAXIMUM

        machine = self.machine
        return machine["gpus"] if machine["accelerator"] == "cuda" else MAXIMUM["processes"]

    def warning(self, setting: Setting) -> str:
        """A plain word about a setting that will be slow here; empty where there is nothing to say."""
        machine = self.machine
        if machine["accelerator"] == "cpu" and setting.processes > machine["cores"]:
            return (
                f"{setting.processes} processes share {machine['cores']} processor cores: "
                "the numbers stay right, the run is slower."
            )
        return ""

    def start(self, setting: Setting, mismatch: str | None = None, *, keep_weights: bool = False) -> Run:
        """A run of this setting: the right one, a mismatch of the catalogue, or ``"oracle"``. Checked here, begun by ``stream``.

        Raises ``SettingError``, ``UnknownMismatchError`` or ``RunError``; then nothing has been started.
        """
        entry = None if mismatch == ORACLE else find(mismatch)
        reason = entry.needs(setting) if entry else None
        if reason:
            raise SettingError(f"{mismatch}: {reason}")
        if setting.processes > self.most_processes():
            raise SettingError(
                f"processes is {setting.processes}, and this machine has {self.most_processes()} GPUs, one for each process. "
                f"Smallest fix: processes {self.most_processes()}."
            )
        return Run(setting, entry.code if entry else ORACLE, keep_weights)

    def stream(self, runs: Sequence[Run], *, parallel: int | None = None) -> Iterator[tuple[Run, Point | None]]:
        """Begin the runs in order, as many at a time as there are cores, and yield each point as it comes.

        ``None`` in place of a point says that the run has ended. Leaving the loop early, or interrupting it, cancels what
        is still going on and waits until it is gone.
        """
        cores = self.machine["gpus"] or self.machine["cores"]
        waiting, going = deque(runs), list[Run]()
        with selectors.DefaultSelector() as selector:
            try:
                while waiting or going:
                    while waiting and len(going) < (parallel or max(1, cores // waiting[0].result.setting.processes)):
                        run = waiting.popleft()
                        if self._begin(run, selector):
                            going.append(run)
                        else:
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
                self._runs.add(run)
            run.begin(self.ready(), one)
        except RunError as error:
            run.result.ended, run.result.sentence = "failed", str(error)
            self._runs.discard(run)
            if run.set is not None:
                self._discard(run.set)
            return False
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
        for key, _ in selector.select(timeout=0.1):
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
        now = time.monotonic()
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
        for run in going:
            run.cancel()
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
        if self._template is not None:
            self._template.kill(one)
        one.close()

    def _drop(self) -> None:
        if self._spare is not None:
            self._discard(self._spare)
            self._spare = None
        if self._template is not None:
            self._template.close()
            self._template = None

    def close(self) -> None:
        """End every run and the template; leaves no process and no file."""
        for run in list(self._runs):
            run.cancel()
        with self.lock:
            self._drop()
        atexit.unregister(self.close)
