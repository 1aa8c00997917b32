"""Hostfiles, and how many processes ``--include``, ``--exclude`` and their kin take of one."""

from __future__ import annotations

import re
from collections import namedtuple

from dsaccum_helpers.readers.launcher_options import count

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["Count", "hosts_of", "include_count", "is_hostfile", "selected"]

Count = namedtuple("Count", "processes nodes")
Count.__doc__ = "How many processes a launch starts, and on how many nodes; None where it is not known."

_LINE = re.compile(r"([\w.@-]+)[ \t]+slots[ \t]*=[ \t]*(\d{1,5})\b.*|([\w.-]+):(\d{1,5})")
_LONGEST = 100_000


def is_hostfile(text: str) -> bool:
    """Has every line a node and its slots?"""
    return bool(hosts_of(text))


def hosts_of(text: str) -> dict[str, int]:
    """Node to slots; empty where the text is no hostfile."""
    hosts: dict[str, int] = {}
    for line in text[:_LONGEST].splitlines():
        line = line.partition("#")[0].strip()
        if not line:
            continue
        match = _LINE.fullmatch(line)
        if not match:
            return {}
        hosts[match[1] or match[3]] = hosts.get(match[1] or match[3], 0) + int(match[2] or match[4])
    return hosts


def _parts(selection: str) -> dict[str, list[int] | None]:
    """``node1@node2:0,2`` as node to slots, None for all of a node's slots."""
    parts: dict[str, list[int] | None] = {}
    for part in selection.split("@"):
        name, colon, slots = part.strip().partition(":")
        numbers = [slot.strip() for slot in slots.split(",") if slot.strip()]
        if name and all(re.fullmatch(r"[0-9]{1,5}", number) for number in numbers):
            parts[name] = sorted({int(number) for number in numbers}) if colon else None
        elif name:
            return {}
    return parts


def include_count(include: str) -> Count:
    """The processes of an ``--include`` that names every slot; unknown where it does not."""
    parts = _parts(include)
    sizes = [len(slots) for slots in parts.values() if slots]
    if not parts or len(sizes) != len(parts):
        return Count(None, len(parts) or None)
    return Count(sum(sizes), len(sizes))


def selected(hosts: Mapping[str, int], options: Mapping[str, str]) -> Count:
    """The processes that ``deepspeed`` starts on the nodes of a hostfile."""
    chosen = {name: list(range(slots)) for name, slots in hosts.items()}
    if include := _parts(options.get("include", "")):
        chosen = {name: chosen[name] if slots is None else slots for name, slots in include.items() if name in chosen}
    for name, slots in _parts(options.get("exclude", "")).items():
        if name in chosen:
            chosen[name] = [] if slots is None else [slot for slot in chosen[name] if slot not in slots]
    sizes = [len(slots) for slots in chosen.values() if slots]
    sizes = sizes[: count(options.get("num_nodes"))]
    if gpus := count(options.get("num_gpus")):
        sizes = [gpus] * len(sizes)
    return Count(sum(sizes), len(sizes)) if sizes else Count(None, None)
