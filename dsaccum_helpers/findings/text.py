"""A report as text that is understood in ten seconds: verdict, numbers, then what is wrong and the smallest change."""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from dsaccum_helpers.findings import Report

__all__ = ["as_table", "as_text"]


def as_text(report: Report) -> str:
    """The report as plain text."""
    lines = [report.verdict, str(report.batch)]
    for finding in report.findings:
        lines += [f"{finding.code} {finding.severity}: {finding.title}", f"  {finding.message}"]
        lines += [f"  Smallest fix: {fix.description}" for fix in finding.fixes]
    return "\n".join([*lines, *report.missing, *report.reasons]) + "\n"


def as_table(reports: dict[int, Report]) -> str:
    """One line a number of processes."""
    return "".join(f"{size}: {report.verdict} {report.batch}\n" for size, report in reports.items())
