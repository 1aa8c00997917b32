"""Draw the figures of the README and the course anew, from real runs: ``make images``.

For each figure ``images/`` holds the picture (PNG and SVG), the measured points behind it (CSV) and, in
``alt_texts.json``, what it shows in words and numbers. The same machine draws the same files again.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import matplotlib

from dsaccum_helpers import Comparison, Setting, compare
from dsaccum_helpers.plots import Curves, alt_text
from dsaccum_helpers.training import ORACLE, Point, Runner, RunResult

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "images"
ALT_TEXTS = "alt_texts.json"
#: The time of day is no part of a figure: without it the same runs give the same file.
COLUMNS = [field.name for field in fields(Point) if field.name != "seconds"]
#: A salt of our own gives the same names inside the SVG every time; every point stays a corner of its line.
DRAWING = {"svg.hashsalt": "dsaccum", "path.simplify": False}


@dataclass(frozen=True)
class Figure:
    """One comparison that is shown: the right run, the oracle, and the mismatches with these codes."""

    setting: Setting
    codes: tuple[str, ...]

    def measure(self, runner: Any = None) -> Comparison:
        """Train it, with real DeepSpeed."""
        return compare(*self.codes, setting=self.setting, runner=runner, oracle=True)


FIGURES = {
    "matched_or_mismatched": Figure(
        Setting(task="digits", seed=0),
        ("loss-divided-twice", "guarded-engine-step", "scheduler-unit", "manual-accumulation"),
    ),
}


def points_csv(comparison: Comparison) -> str:
    """One line for each point of each run; what a point does not have is left empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["run", *COLUMNS])
    for result in comparison.results:
        for values in map(asdict, result.points):
            writer.writerow([result.code, *("" if values[name] is None else values[name] for name in COLUMNS)])
    return text.getvalue()


def from_csv(figure: Figure, text: str) -> Comparison:
    """The comparison behind a committed figure."""
    results: dict[str, RunResult] = {}
    for line in csv.DictReader(io.StringIO(text)):
        code = line.pop("run")
        result = results.setdefault(code, RunResult(code, figure.setting, ended="finished"))
        result.points.append(Point(**{name: _number(value) for name, value in line.items()}, seconds=0.0))
    return Comparison(figure.setting, list(results.values()))


def _number(text: str) -> Any:
    return json.loads(text) if text else None


def draw(comparison: Comparison) -> tuple[bytes, bytes]:
    """PNG and SVG."""
    with matplotlib.rc_context(DRAWING):
        curves = Curves(comparison)
        return curves.png(), curves.svg()


def write(folder: Path, measure: Callable[[Figure], Comparison]) -> None:
    """Write every figure into the folder."""
    folder.mkdir(exist_ok=True)
    alt_texts = {}
    for name, figure in FIGURES.items():
        comparison = measure(figure)
        assert [result.ended for result in comparison.results] == ["finished"] * (2 + len(figure.codes))
        assert comparison.results[0].code == ORACLE
        png, svg = draw(comparison)
        (folder / f"{name}.png").write_bytes(png)
        (folder / f"{name}.svg").write_bytes(svg)
        (folder / f"{name}.csv").write_text(points_csv(comparison), encoding="utf-8")
        alt_texts[name] = alt_text(comparison)
    text = json.dumps(alt_texts, indent=2, ensure_ascii=False) + "\n"
    (folder / ALT_TEXTS).write_text(text, encoding="utf-8")


def main() -> None:
    """Measure and write."""
    runner = Runner()
    try:
        write(IMAGES, lambda figure: figure.measure(runner))
    finally:
        runner.close()


if __name__ == "__main__":
    main()
