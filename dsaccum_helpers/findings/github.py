"""Findings as annotations of GitHub Actions: lines that the runner turns into remarks beside the changed files."""

from __future__ import annotations

from dsaccum_helpers.findings.text import headline, plain, short

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsaccum_helpers.findings import Finding, Report

__all__ = ["as_github"]

LEVELS = {"error": "error", "warning": "warning", "note": "notice"}


def as_github(reports: dict[int, Report]) -> str:
    """One annotation a finding; the reports stand under their number of processes, 0 for the job as it is."""
    lines = []
    for size, report in reports.items():
        on = f"On {size} processes: " if size else ""
        lines += [_annotation(finding, on) for finding in report.findings]
        lines += [_command("notice", {"title": "dsaccum: a fact is missing"}, on + words) for words in report.missing]
        lines.append(plain(on + headline(report)))
    return "\n".join(lines) + "\n"


def _annotation(finding: Finding, on: str) -> str:
    place = next((source for source in finding.where if is_file(source.file)), None)
    values = {"file": place.file, "line": place.line, "col": place.line and place.column} if place else {}
    message = [on + short(finding), finding.consequence, *remedies(finding)]
    return _command(
        LEVELS[finding.severity],
        {**values, "title": f"{finding.code}: {finding.title}"},
        "\n".join(filter(None, message)),
    )


def is_file(name: str | None) -> bool:
    """Is this a file's name, and neither an option nor standard input?"""
    return bool(name) and not str(name).startswith("-") and name != "standard input"


def remedies(finding: Finding) -> Iterable[str]:
    """The fixes, one line each, the smallest first."""
    for number, fix in enumerate(finding.fixes):
        yield f"{'or' if number else 'Smallest fix'}: {fix.description}"


def _command(level: str, values: dict[str, object], message: str) -> str:
    """One workflow command; what could end it early is escaped as the runner's toolkit does."""
    said = [f"{name}={_escaped(value, ':,')}" for name, value in values.items() if value is not None]
    return f"::{level} {','.join(said)}::{_escaped(message)}"


def _escaped(value: object, more: str = "") -> str:
    text = str(value)
    for char in "%\r\n" + more:
        text = text.replace(char, f"%{ord(char):02X}")
    return plain(text)
