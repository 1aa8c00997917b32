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
from dsaccum_helpers.atlas import Atlas
from dsaccum_helpers.mismatches import MATCHED, RUNNABLE
from dsaccum_helpers.plots import QUANTITIES, Curves, Drawing, alt_text
from dsaccum_helpers.training import ORACLE, Point, Runner, RunResult
from dsaccum_helpers.training.comparison import MOST_MISMATCHES

ROOT = Path(__file__).resolve().parents[1]
IMAGES = ROOT / "images"
ALT_TEXTS = "alt_texts.json"
#: The time of day is no part of a figure: without it the same runs give the same file.
COLUMNS = [field.name for field in fields(Point) if field.name != "seconds"]
#: A salt of our own gives the same names inside the SVG every time; every point stays a corner of its line.
DRAWING = {"svg.hashsalt": "dsaccum", "path.simplify": False}


@dataclass(frozen=True)
class Figure:
    """One comparison that is shown: the right run, the oracle where it is drawn, the mismatches with these codes."""

    setting: Setting
    codes: tuple[str, ...]
    drawing: type[Drawing] = Curves

    @property
    def runs(self) -> list[str]:
        """The codes of all runs, in their order."""
        return [*([ORACLE] if self.drawing is Curves else []), MATCHED.code, *self.codes]

    def lines(self) -> list[str]:
        """The names of the lines in the SVG."""
        if self.drawing is Curves:
            return [f"{code} {quantity}" for code in self.runs for quantity in QUANTITIES]
        return self.runs

    def measure(self, runner: Any = None) -> Comparison:
        """Train it, with real DeepSpeed, a few runs at a time."""
        results: list[RunResult] = []
        for first in range(0, len(self.codes), MOST_MISMATCHES):
            press = self.codes[first : first + MOST_MISMATCHES]
            done = compare(*press, setting=self.setting, runner=runner, oracle=self.runs[0] == ORACLE)
            results += [result for result in done.results if not first or result.code in press]
        return Comparison(self.setting, results)


def _curves(setting: Setting) -> tuple[str, ...]:
    """The mismatches that have a curve in this setting."""
    entries = (entry for entry in RUNNABLE.values() if not entry.refused)
    return tuple(entry.code for entry in entries if not entry.needs(setting) and not entry.stops(setting))


#: Small steps, so that no run of the atlas goes past the edge of stability, where rounding decides; ZeRO-1, where more
#: mistakes show than at other stages.
ATLAS = Setting(task="digits", zero_stage=1, learning_rate=0.05, optimizer_steps=40)
FIGURES = {
    "matched_or_mismatched": Figure(
        Setting(task="digits", seed=0),
        ("loss-divided-twice", "guarded-engine-step", "scheduler-unit", "manual-accumulation"),
    ),
    "atlas": Figure(ATLAS, _curves(ATLAS), Atlas),
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


def draw(figure: Figure, comparison: Comparison) -> tuple[bytes, bytes]:
    """PNG and SVG."""
    with matplotlib.rc_context(DRAWING):
        drawing = figure.drawing(comparison)  # type: ignore[call-arg]
        return drawing.png(), drawing.svg()


def write(folder: Path, measure: Callable[[Figure], Comparison]) -> None:
    """Write every figure into the folder."""
    folder.mkdir(exist_ok=True)
    alt_texts = {}
    for name, figure in FIGURES.items():
        comparison = measure(figure)
        ended = [(result.code, result.ended) for result in comparison.results]
        assert ended == [(code, "finished") for code in figure.runs]
        png, svg = draw(figure, comparison)
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
