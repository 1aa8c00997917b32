"""DeepSpeed configs that a log holds: a printed dict, JSON over many lines, the engine's own dump (pure)."""

from __future__ import annotations

import re

from dsaccum_helpers.batch import KEYS
from dsaccum_helpers.job import Config
from dsaccum_helpers.readers.literal import parse
from dsaccum_helpers.readers.log_patterns import number

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
#: What the engine (and GPT-NeoX, for its arguments) calls a key of the config where it prints all of them.
_DUMPED_KEYS = {
    **{key: (key,) for key in KEYS},
    "gradient_clipping": ("gradient_clipping",),
    "grad_accum_dtype": ("data_types", "grad_accum_dtype"),
    "managed_gradient_accumulation": ("managed_gradient_accumulation",),
    "optimizer_name": ("optimizer", "type"),
    "bfloat16_enabled": ("bf16", "enabled"),
    "fp16_enabled": ("fp16", "enabled"),
    "load_universal_checkpoint": ("checkpoint", "load_universal"),
    "zero_optimization_stage": ("zero_optimization", "stage"),
    "model_parallel_size": ("model_parallel_size",),
    "pipe_parallel_size": ("pipe_parallel_size",),
}
#: A name, dots up to a common column (none behind the longest name), the value; GPT-NeoX adds where it is from.
_DUMPED = re.compile(
    rf"(?:^|\s)({'|'.join((*_DUMPED_KEYS, 'world_size'))})(?:\s+\.+\s*|\s{{2,}})"
    r"([^\s.]\S*?)(?:\.{2,}[a-z]\w*)?\s*$"
)
_STAGES = {"disabled": 0, "optimizer_states": 1, "gradients": 2, "weights": 3}  # Python 3.12 prints the enum's name
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
    """The numbers that the engine really uses, as it prints them one in a line."""
    rows = _rows(events)
    if not any(rows.get(key, (None, 0))[0] for key in KEYS[:2]):
        return
    world, at = rows.pop("world_size", (None, 0))
    if isinstance(world, int) and world > 0:
        # GPT-NeoX counts all processes, the engine only those that see different samples.
        name = "processes" if "model_parallel_size" in rows else "replicas"
        events.add("engine-world", {name: world}, at)
    if known:
        return
    config = Config({}, events.file, {}, "log")
    for name, (value, place) in rows.items():
        if value is not None:
            config.change(_DUMPED_KEYS[name], value)
            config.places[_DUMPED_KEYS[name]] = (events.log.number(place), events.log.column(place))
    events.job.configs.append(config)


def _rows(events: Events) -> dict[str, tuple[Any, int]]:
    """The first block of such lines: each name with its value and place. Another rank's or run's block begins anew."""
    words = (f"{name} ." for name in _DUMPED_KEYS)
    places = (at for word in (*words, f"{KEYS[1]}  ") for at in events.log.hits(word, 3))
    first = min((at for at in places if _DUMPED.search(events.log.line(at).body)), default=None)
    rows: dict[str, tuple[Any, int]] = {}
    if first is None:
        return rows
    hit = events.log.line(first)
    for line in (hit, *events.log.after(hit, 400, 80_000)):
        match = _DUMPED.search(line.body)
        if match and match[1] in rows:
            break
        if match:
            value = _STAGES.get(match[2].rpartition(".")[2], number(match[2]))
            rows[match[1]] = value, line.begin + match.start(1)
    return rows
