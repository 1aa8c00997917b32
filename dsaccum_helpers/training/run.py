"""One run as it goes on: what has arrived from its processes, and the watchdog over them. Imports no torch."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Iterator
from typing import Any, Protocol

from dsaccum_helpers.setting import Setting
from dsaccum_helpers.training import endings
from dsaccum_helpers.training.events import Expected, Point, RunResult
from dsaccum_helpers.training.processes import ProcessSet

GRACE_SECONDS = 1.0
"""How long the other ranks may explain themselves after one has died."""


class AnyRun(Protocol):
    """A run as a panel sees it: real or recorded."""

    result: RunResult

    def cancel(self) -> None:
        """End the run; returns at once, and may be called from any thread and more than once."""


class Run:
    """One real run. It waits until ``Runner.stream`` begins it; ``result`` grows while it goes on."""

    def __init__(
        self, setting: Setting, code: str, keep_weights: bool, to_the_end: bool = False, watch: bool = False
    ) -> None:
        self.result = RunResult(code, setting)
        self.keep_weights, self.to_the_end, self.watch = keep_weights, to_the_end, watch
        self.cancelled = threading.Event()
        self.set: ProcessSet | None = None
        self.exits: dict[int, int] = {}
        self.report: dict[str, Any] | None = None
        self.heard = 0.0
        self.kill_after: float | None = None  # the moment from which the watchdog ends what is left of the set
        self.hung = False
        self.note = ""  # what the watchdog saw
        self.buffers = {"events": b"", "status": b""}

    def cancel(self) -> None:
        """End the run and free everything; nothing happens where it has ended."""
        self.cancelled.set()
        self.kill()

    def kill(self) -> None:
        """Send the processes away; the stream notices when they are gone."""
        self.kill_after = time.monotonic()
        if self.set is not None and self.result.ended is None:
            self.set.kill()

    def begin(self, one: ProcessSet) -> None:
        """Hand the job to a set of processes. Raises ``RunError`` where the disk is full."""
        self.set, self.heard = one, time.monotonic()
        job = {"setting": self.result.setting.to_dict(), "mismatch": self.result.code}
        wishes = {"keep_weights": self.keep_weights, "to_the_end": self.to_the_end, "watch": self.watch}
        one.give(job | wishes)
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
        elif kind == "seen":
            self.result.seen = event["findings"]
        elif kind == "alive":
            self.result.micro_batches_read = event["micro_batches"]
        elif kind == "report":
            self.result.reports.append(event["value"])
        elif kind == "expected":
            self.result.optimum = event.pop("optimum")
            self.result.expected = Expected(**event)
        elif kind == "ended" and (self.report is None or endings.explains_more(event, self.report)):
            self.report = event
            self.result.micro_batches_read = event.get("micro_batches", self.result.micro_batches_read)
            self.result.distance, self.result.first_error = event.get("distance"), event.get("first_error")

    def check(self, now: float, stall_seconds: float) -> None:
        """The watchdog: end what hangs, and what a dead rank has left behind."""
        if self.set is None:
            return
        if self.kill_after is None and now - self.heard > stall_seconds:
            self.hung = True
            self.note = endings.stopped_note(self.set.pids)
            self.kill()
        elif self.kill_after is not None and now > self.kill_after:
            self.kill()

    def finish(self) -> None:
        """All processes are gone: say how it ended, keep what is wanted, remove the folder."""
        assert self.set is not None
        endings.conclude(self)
        if self.keep_weights and self.result.ended == "finished":
            import numpy

            self.result.weights = numpy.load(self.set.folder / "weights.npy")
        self.set.close()
