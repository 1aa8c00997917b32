"""``dsaccum explain``: the catalogue as a list, or one entry of it."""

from __future__ import annotations

from dsaccum_helpers.commands import say
from dsaccum_helpers.mismatches import GROUPS, find

__all__ = ["run"]


def run(words: list[str]) -> int:
    """The command, with the words after ``explain``; the exit status."""
    for code in words:
        entry = find(code)
        say(f"{entry.code}: {entry.title}\n\n{entry.symptom}\n{entry.cause}\n{entry.consequence}\n{entry.remedy}\n")
    if not words:
        say("\n".join(code for group in GROUPS.values() for code in group) + "\n")
    return 0
