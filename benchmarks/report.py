"""Medians, tables and the verdict on the goals; no measuring."""

from __future__ import annotations

import os
import platform
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

PACKAGES = ("torch", "deepspeed", "accelerate", "ipykernel", "jupyter_client")


@dataclass(frozen=True)
class Table:
    """A title, a sentence about what the numbers are, and cells of text."""

    title: str
    note: str
    head: list[str]
    rows: list[list[str]]

    def markdown(self) -> str:
        """The table as Markdown that also reads well as plain text."""
        widths = [max(len(row[column]) for row in (self.head, *self.rows)) for column in range(len(self.head))]
        lines = [f"| {' | '.join(map(str.ljust, row, widths))} |" for row in (self.head, *self.rows)]
        rule = f"|{'|'.join('-' * (width + 2) for width in widths)}|"
        return "\n".join([f"## {self.title}", "", self.note, "", lines[0], rule, *lines[1:], ""])


def median(values: Sequence[float]) -> float:
    """The median."""
    return statistics.median(values)


def spread(values: Sequence[float], unit: float = 1.0, digits: int = 3) -> str:
    """Median [smallest]: the smallest is nearest to what a quiet machine would give."""
    return f"{median(values) * unit:.{digits}f} [{min(values) * unit:.{digits}f}]"


def goals_table(goals: Sequence[tuple[str, float, str, float]]) -> Table:
    """Each goal with what was measured; nothing is asserted, because another machine or a busy one may differ."""
    rows = []
    for words, measured, sense, wanted in goals:
        met = measured >= wanted if sense == ">=" else measured <= wanted
        rows.append([words, f"{measured:.3g}", f"{'at least' if sense == '>=' else 'at most'} {wanted:g}", _word(met)])
    return Table("Goals", "Medians of this run.", ["goal", "measured", "wanted", "met"], rows)


def _word(met: bool) -> str:
    return "yes" if met else "no"


def machine() -> dict[str, str]:
    """Where this was measured, and how busy it was."""
    versions = {}
    for name in PACKAGES:
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "not installed"
    return {
        "processor": _processor(),
        "cores": str(len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()),
        "load average": " ".join(f"{value:.1f}" for value in os.getloadavg()),
        "python": platform.python_version(),
        **versions,
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()
