"""``make benchmark``: measure, print the tables, keep them and every raw number in ``build/benchmarks``."""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from benchmarks import check, loop, press, watch
from benchmarks.report import Table, goals_table, machine

PARTS = {"check": check, "loop": loop, "press": press, "watch": watch}


def say(text: str) -> None:
    """Progress, apart from the tables."""
    print(f"{time.strftime('%H:%M:%S')} {text}", file=sys.stderr, flush=True)


def options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="make benchmark ARGS=...", description=__doc__)
    parser.add_argument("--repeats", type=int, default=5, help="how often everything is measured (default: 5)")
    parser.add_argument("--short", action="store_true", help="one repeat of the smallest work, to see that it runs")
    parser.add_argument("--only", choices=PARTS, help="one part alone")
    parser.add_argument("--output", type=Path, default=Path("build", "benchmarks"), help="the folder for the numbers")
    chosen = parser.parse_args()
    if chosen.repeats < 1:
        parser.error("--repeats must be at least 1")
    return chosen


def main() -> None:
    """Measure part by part; what has been measured is kept even if a later part fails."""
    chosen = options()
    chosen.output.mkdir(parents=True, exist_ok=True)
    before, goals, text = machine(), list[tuple[str, float, str, float]](), list[str]()
    for name, part in PARTS.items():
        if chosen.only in (None, name):
            raw = part.measure(1 if chosen.short else chosen.repeats, chosen.short, say)
            (chosen.output / f"{name}.json").write_text(json.dumps({"machine": before, **raw}, indent=1) + "\n")
            text += [table.markdown() for table in part.tables(raw)]
            goals += part.goals(raw)
    rows = [[key, value] for key, value in (before | {"load average afterwards": machine()["load average"]}).items()]
    text += [goals_table(goals).markdown(), Table("Machine", "Where and when.", ["what", "value"], rows).markdown()]
    (chosen.output / "benchmarks.md").write_text("\n".join(["# Benchmarks\n", *text]), encoding="utf-8")
    print("\n".join(text))


if __name__ == "__main__":
    main()
