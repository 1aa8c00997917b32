"""The first fix of each finding that can be written into a file, one finding after the other until none is left."""

from __future__ import annotations

from itertools import combinations

from dsaccum_helpers.job import BATCH_KEYS, Job
from dsaccum_helpers.mend import mended, placed
from dsaccum_helpers.mend.files import Originals, encoded
from dsaccum_helpers.mend.tree import Unmendable

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import Any

    from dsaccum_helpers.findings import Finding, Fix, Report

    Change = tuple[tuple[str, tuple[str, ...]], Any]

__all__ = ["Repair", "repair", "repair_files"]

ROUNDS = 8  # a job with more faults than this is better mended by hand


class Repair:
    """What was mended.

    ``texts``: file to (text before, text after). ``originals``: the files as they are. ``done``: (code, Fix) in the
    order applied. ``report``: what is said of the mended job.
    """

    def __init__(self, report: Report, originals: Originals) -> None:
        self.originals = originals
        self.texts: dict[str, tuple[str, str]] = {}
        self.done: list[tuple[str, Fix]] = []
        #: code to the first fix of its finding, where that one is no change of a file and another one was made
        self.passed_over: dict[str, Fix] = {}
        self.report = report

    def content(self, name: str) -> bytes:
        """The mended file as bytes, in the encoding that it has."""
        return encoded(self.texts[name][1], self.originals.encoding[name], self.originals.content[name])

    def diff(self, name: str) -> str:
        """A unified diff of one file, which ``patch -p1`` and ``git apply`` take."""
        from difflib import unified_diff

        shown = name.lstrip("/")
        old, new = (text.splitlines(keepends=True) for text in self.texts[name])
        lines = unified_diff(old, new, f"a/{shown}", f"b/{shown}")
        return "".join(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines)


def repair_files(
    job: Job, paths: Sequence[Any], read: Callable[[Sequence[Any]], Job], diagnose: Callable[[Job], Report]
) -> Repair:
    """The repair of what ``paths`` hold, checked again on the mended texts as they would be read from the disk."""
    result = repair(job, diagnose, Originals(paths))
    if not result.texts:
        return result
    pairs: dict[str, Any] = {name: (name, after) for name, (_, after) in result.texts.items()}
    names = [path[0] if isinstance(path, tuple) else "" if isinstance(path, dict) else str(path) for path in paths]
    again = [pairs.get(name, path) for name, path in zip(names, paths, strict=True)]
    result.report = diagnose(read([*(pairs[name] for name in pairs if name not in names), *again]))
    if {code for code, _ in result.done} & {*result.report.codes}:
        return Repair(result.report, result.originals)
    return result


def repair(job: Job, diagnose: Callable[[Job], Report], originals: Originals) -> Repair:
    """Mend what can be mended by changing files; nothing is written. ``diagnose`` judges every step."""
    result = Repair(diagnose(job), originals)
    changes: list[Change] = []
    for _ in range(ROUNDS):
        step = next(_steps(job, result.report, diagnose, originals), None)
        if step is None:
            break
        finding, fix, places, job, result.report = step
        changes = [*(old for old in changes if old[0] not in dict(places)), *places]
        result.done.append((finding.code, fix))
        if finding.fixes[0].description != fix.description:
            result.passed_over[finding.code] = finding.fixes[0]
    after = mended(changes, originals.text)
    result.texts = {name: (originals.text(name), text) for name, text in after.items() if text != originals.text(name)}
    return result


def _steps(
    job: Job, report: Report, diagnose: Callable[[Job], Report], originals: Originals
) -> Iterator[tuple[Finding, Fix, list[Change], Job, Report]]:
    """Fixes that mend a finding, bring no other, and can be written: with the fewest changes first."""
    for finding in report.findings:
        for fix in finding.fixes:
            changed = {name: value for name, value in fix.set.items() if repr(job.value(name)) != repr(value)}
            places = _places(job, changed, originals)
            for names in _choices(job, changed) if places else ():
                trial = job.clone()
                for name in names:
                    trial.set(name, changed[name])
                after = diagnose(trial)
                if _mended(finding, fix, report, after):
                    yield finding, fix, [(places[name], changed[name]) for name in names], trial, after
                    break


def _places(job: Job, changed: dict[str, Any], originals: Originals) -> dict[str, Any]:
    """Where each change belongs; empty unless all of them can be written."""
    places = {}
    try:
        for name in changed:
            place = placed(job, name, originals.text)
            if place is None:
                return {}
            places[name] = place
        mended([(places[name], changed[name]) for name in changed], originals.text)
    except Unmendable:
        return {}
    return places


def _choices(job: Job, changed: dict[str, Any]) -> Iterator[list[str]]:
    """The names to change: without the batch keys that are missing and can stay so, then with more of them."""
    free = [name for name in BATCH_KEYS if name in changed and job.fact(name) is None]
    needed = [name for name in changed if name not in free]
    for size in range(len(free) + 1):
        for more in combinations(free, size):
            if needed or more:
                yield [*needed, *more]


def _mended(finding: Finding, fix: Fix, before: Report, after: Report) -> bool:
    """Is the finding gone, nothing new there, and every batch number as the fix promised?"""
    if finding.code in after.codes or (after.missing and not before.missing):
        return False
    wrong = {found.code for found in after.findings if found.severity != "note"}
    numbers = {name: fix.set[name] for name in BATCH_KEYS if isinstance(fix.set.get(name), int)}
    kept = all(after.batch.get(name) in (value, None) for name, value in numbers.items())
    return kept and wrong <= set(before.codes)
