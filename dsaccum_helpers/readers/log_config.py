"""DeepSpeed configs that a log holds: a printed dict, JSON over many lines, the engine's own dump (pure)."""

from __future__ import annotations

import re

from dsaccum_helpers.job import Config
from dsaccum_helpers.readers.literal import parse

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import Any

    from dsaccum_helpers.readers.log import Events
    from dsaccum_helpers.readers.log_lines import Line

_OWN = frozenset(("train_micro_batch_size_per_gpu", "zero_optimization"))
_SHARED = frozenset(("train_batch_size", "gradient_accumulation_steps"))
_BESIDE = frozenset(
    (
        "fp16",
        "bf16",
        "optimizer",
        "scheduler",
        "gradient_clipping",
        "steps_per_print",
        "wall_clock_breakdown",
        "zero_stage",
    )
)
_WORDS = ("train_micro_batch_size_per_gpu", "zero_optimization", "train_batch_size")
_BRACE = re.compile(r"[{}]")
_DUMPED = re.compile(
    r"\b(train_batch_size|train_micro_batch_size_per_gpu|gradient_accumulation_steps|world_size|zero_optimization_stage|"
    r"gradient_clipping)\s+\.*\s*(\d+(?:\.\d+)?)\s*$"
)
_BACK = 20_000  # characters before a key in which its block must open
_LINES, _LARGEST = 600, 60_000
_MOST = 60


def read(events: Events) -> None:
    """Every config that is printed, the same one of several ranks once."""
    known: list[dict[str, Any]] = [config.values for config in events.job.configs if config.kind == "log"]
    done: list[tuple[int, int]] = []
    for word in _WORDS:
        for at in events.log.hits(word, _MOST):
            if events.log.text[at - 1 : at] not in ("'", '"') or any(start <= at < end for start, end in done):
                continue
            opened = _opening(events.log.text, at)
            if opened is None:
                continue
            config, end = _config(events, opened)
            done.append((opened, max(end, at + 1)))
            if config and config.values not in known and len(known) < 6:
                known.append(config.values)
                events.job.configs.append(config)
    _dump(events, bool(known))


def _opening(text: str, at: int) -> int | None:
    """The place of the bracket that opens the block around ``at``."""
    depth = 0
    for match in reversed(list(_BRACE.finditer(text, max(0, at - _BACK), at))[-2000:]):
        depth += 1 if match[0] == "}" else -1
        if depth < 0:
            return match.start()
    return None


def _config(events: Events, opened: int) -> tuple[Config | None, int]:
    """The config whose bracket opens at a place, and where it ends."""
    log = events.log
    first = log.line(opened, _LARGEST)
    skipped = max(0, opened - first.begin)
    lines: list[Line] = [first._replace(body=first.body[skipped:], begin=opened)]
    lines += log.after(first, _LINES, _LARGEST)
    text = "\n".join(line.body for line in lines)[:_LARGEST]
    found = parse(text)
    if found is None:
        return None, opened
    values, places, end = found
    starts, at = [], 0
    for line in lines:
        starts.append((at, line.begin))
        at += len(line.body) + 1

    def place(offset: int) -> int:
        start, begin = max(pair for pair in starts if pair[0] <= offset)
        return begin + offset - start

    end_place = place(max(0, end - 1)) + 1
    if not is_config(values):
        return None, end_place
    where = {
        path: (log.number(place(offset)), log.column(place(offset))) for path, offset in list(places.items())[:200]
    }
    return Config(values, events.file, where, "log"), end_place


def is_config(values: Any) -> bool:
    """Is a dict a DeepSpeed config, not somebody's arguments?"""
    if not isinstance(values, dict) or any(str(key).startswith("per_device") for key in values):
        return False
    keys = {str(key).strip() for key in values}
    return bool(keys & _OWN) or bool(keys & _SHARED and keys & _BESIDE)


def _dump(events: Events, known: bool) -> None:
    """``DeepSpeedEngine configuration:``: the numbers that the engine really uses."""
    for at in events.log.hits("DeepSpeedEngine configuration", 1):
        hit = events.log.line(at)
        said: dict[str, Any] = {}
        places: dict[tuple[str, ...], tuple[int, int]] = {}
        for line in events.log.after(hit, 300, 60_000):
            if match := _DUMPED.search(line.body):
                said[match[1]] = float(match[2]) if "." in match[2] else int(match[2])
                places[(match[1],)] = (events.log.number(line.start), 1)
        world, stage = said.pop("world_size", None), said.pop("zero_optimization_stage", None)
        if world and not events.job.all("processes"):
            events.job.add("processes", world, events.source(at))
        if not known and "train_batch_size" in said:
            if stage is not None:
                said["zero_optimization"] = {"stage": stage}
            events.job.configs.append(Config(said, events.file, places, "log"))
