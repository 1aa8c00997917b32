"""Installed versions as people paste them: requirements, ``pip freeze``, ``pip list``, the list of a conda file."""

from __future__ import annotations

import re

from dsaccum_helpers.job import Source

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Sequence

    from dsaccum_helpers.job import Job
    from dsaccum_helpers.readers.files import Document

_REQUIREMENT = re.compile(
    r"(?:[A-Za-z0-9][\w.-]*(?:\[[\w, .-]*\])?\s*(?:(?:===?|[<>~!]=?)\s*[\w.*+!-]+(?:\s*,\s*[<>~!=]=?\s*[\w.*+!-]+)*)?"
    r"(?:\s*;.*)?|[A-Za-z0-9][\w.-]*\s*@\s*\S+|-[-\w]+[ =].*)\s*(?:#.*)?$"
)
_PINNED = re.compile(r"([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?\s*={1,3}\s*([0-9][\w.!+]*)")
_HEAD = re.compile(r"Package\s+Version")
_CONDA = "# packages in environment"
_LOCKED = re.compile(
    r'^name = "((?:deepspeed|transformers|accelerate|trl|torch|lightning|pytorch-lightning))"\nversion = "([^"\n]+)"',
    re.M,
)
_ROW = re.compile(r"([A-Za-z0-9][\w.-]*)\s+([0-9][\w.!+]*)(?:\s+\S.*)?$")


def is_list(document: Document) -> bool:
    """Does every line name a package?"""
    if _is_table(document) or _LOCKED.search(document.text[:500_000]):
        return True
    rows = _rows(document)
    listed = re.search(r"require|constraint|freeze|packages", document.name, re.I)
    return bool(
        rows
        and (listed or any("==" in row for row in rows))
        and all(len(row) < 300 and _REQUIREMENT.match(row) for row in rows)
    )


def read(document: Document, job: Job) -> None:
    """Put the versions of such a document into the job."""
    lines = document.text[:500_000].split("\n")
    for locked in _LOCKED.finditer(document.text[:5_000_000]):
        line = document.text.count("\n", 0, locked.start()) + 1
        job.have(locked[1], locked[2], Source(document.name, line))
    if not _is_table(document):
        read_lines(lines, document.name, job)
        return
    for number, line in enumerate(lines, 1):
        row = _ROW.match(line.strip())
        if row:
            job.have(row[1], row[2], Source(document.name, number))


def _is_table(document: Document) -> bool:
    """Is it what ``pip list`` or ``conda list`` prints: name and version side by side?"""
    rows = _rows(document)
    return document.text.startswith(_CONDA) or bool(rows and _HEAD.match(rows[0]))


def _rows(document: Document) -> list[str]:
    """The lines that say something."""
    lines = (line.strip() for line in document.text[:500_000].split("\n"))
    return [line for line in lines if line and not line.startswith("#")]


def read_lines(lines: Sequence[str], file: str, job: Job) -> None:
    """Put the pinned versions of these lines into the job."""
    for number, line in enumerate(lines, 1):
        pinned = _PINNED.match(line.strip())
        if pinned:
            job.have(pinned[1], pinned[2], Source(file, number))
