"""Logs and tracebacks: what a run said of its batch and accumulation settings, in whatever shape it was kept.

The kinds of events are listed in ``log_patterns.PATTERNS`` and in ``log_faults``, ``log_started`` and
``log_summary``. The same words of several ranks are one event with a count.
"""

from __future__ import annotations

import re

from dsaccum_helpers.job import Event, Source
from dsaccum_helpers.readers.log_lines import Log
from dsaccum_helpers.readers.log_patterns import PATTERNS

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import Any

    from dsaccum_helpers.job import Job
    from dsaccum_helpers.readers.log_lines import Frame
    from dsaccum_helpers.readers.log_patterns import Pattern

__all__ = ["Events", "read"]

_MOST = 300  # hits of one word that are looked at; more are the same words of more ranks
_BUDGET = 1500  # hits in all
_MESSAGE = 400  # characters that a message may have
_WITH_TRACEBACK = {"product-assertion", "positive-assertion", "no-sync", "batch-missing", "init-alone"}
_SPEAKING = (
    ("openrlhf", re.compile(r"[/\\]openrlhf[/\\]")),
    ("trl", re.compile(r"[/\\]trl[/\\](?:trainer|scripts)")),
    ("lightning", re.compile(r"[/\\](?:pytorch_lightning|lightning|lightning_fabric)[/\\]")),
    ("transformers", re.compile(r"transformers[/\\](?:trainer|training_args|deepspeed|integrations[/\\]deepspeed)")),
    ("accelerate", re.compile(r"accelerate[/\\](?:accelerator|utils[/\\])")),
    ("megatron", re.compile(r"[/\\](?:megatron|megatron[_-]\w+)[/\\]")),
)
_CALL = re.compile(r"([A-Za-z_][\w.]{0,120})\s*\(")
_DULL = {"<module>", "__init__", "wrapper", "__call__", "inner", "_call_impl", "_wrapped_call_impl", ""}


class Events:
    """The events of one log as they are found; the same one of several ranks is counted, not repeated."""

    def __init__(self, log: Log, file: str, job: Job) -> None:
        self.log, self.file, self.job = log, file, job
        self.found: dict[tuple[str, str], tuple[int, Event]] = {}
        self.budget = _BUDGET

    def source(self, at: int, key: str | None = None) -> Source:
        """The Source of a place."""
        return Source(self.file, self.log.number(at), None, key)

    def add(self, kind: str, values: dict[str, Any], at: int, count: int = 1) -> bool:
        """Take an event in; is it a new one?"""
        known = (kind, repr(values))
        if known in self.found:
            place, event = self.found[known]
            self.found[known] = place, event._replace(count=event.count + count)
            return False
        self.found[known] = at, Event(kind, values, self.source(at), count)
        return True

    def of(self, pattern: Pattern) -> None:
        """Every event of a pattern."""
        seen: set[int] = set()
        read_to = 0
        for at in sorted({at for word in pattern.words for at in self.log.hits(word, _MOST)}):
            if at < read_to or self.budget <= 0:
                continue
            self.budget -= 1
            window = self.log.window(at, ahead=pattern.ahead)
            read_to = window.hit.end - (_MESSAGE if self.log.text[window.hit.end : window.hit.end + 1] != "\n" else 0)
            for match in re.finditer(pattern.pattern, window.text, re.IGNORECASE):
                place = window.place(match.start())
                if place not in seen:
                    seen.add(place)
                    self._take(pattern, match, place)

    def _take(self, pattern: Pattern, match: re.Match[str], place: int) -> None:
        """One match: its values, its traceback and the framework that speaks."""
        values = pattern.values(match)
        if values is None or not self.add(pattern.kind, values, place):
            return
        if pattern.speaks:
            self.job.speak(pattern.speaks, self.source(place))
        if pattern.kind in _WITH_TRACEBACK:
            values["through"] = self.through(self.log.frames(place), place)

    def through(self, frames: list[Frame], at: int) -> list[str]:
        """The functions, classes and files of a traceback; the frameworks among them speak."""
        names: list[str] = []
        for frame in frames:
            base = frame.path.replace("\\", "/").split("/")[-1]
            names += [base] if frame.function in _DULL else [base, frame.function]
            if base == "partition_parameters.py":
                names.append("zero.Init")
            if re.search(r"activation_checkpointing[/\\]checkpointing\.py", frame.path):
                names.append("checkpointing.configure")
            for called in _CALL.findall(frame.code[:400]):
                parts = called.split(".")
                names += [".".join(parts[-2:]), parts[-1]]
        for framework, sign in _SPEAKING:
            if any(sign.search(frame.path) for frame in frames):
                self.job.speak(framework, self.source(at))
        return list(dict.fromkeys(names))[:120]


def read(text: str, file: str, job: Job) -> None:
    """Put everything that a log says into the job: events, processes, versions, printed configs, arguments."""
    from dsaccum_helpers.readers import log_config, log_faults, log_started, log_summary

    events = Events(Log(text), file, job)
    for pattern in PATTERNS:
        events.of(pattern)
    _rows_without_a_head(events)
    log_faults.read(events)
    log_started.read(events)
    log_summary.read(events)
    log_config.read(events)
    job.events += [event for _, event in sorted(events.found.values(), key=lambda pair: pair[0])]


def _rows_without_a_head(events: Events) -> None:
    """``- ds x=1 vs hf y=2`` lines whose first line was not kept."""
    if any(kind == "trainer-disagrees" for kind, _ in events.found):
        return
    pattern = next(pattern for pattern in PATTERNS if pattern.kind == "trainer-disagrees")
    for at in events.log.hits(" vs hf ", 1):
        window = events.log.window(at, 1, pattern.ahead)
        values = pattern.values(re.match(r"[\s\S]*", window.text))
        if values and events.add(pattern.kind, values, at):
            events.job.speak("transformers", events.source(at))
