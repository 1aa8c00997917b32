"""One page with a small picture for each mistake: its curve over the right run's. Drawn from measured points only."""

from __future__ import annotations

import math
import textwrap
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dsaccum_helpers.mismatches import MATCHED, find
from dsaccum_helpers.mismatches.mended import SUFFIX
from dsaccum_helpers.plots import QUANTITIES, Drawing, style
from dsaccum_helpers.training.comparison import Comparison
from dsaccum_helpers.training.events import ORACLE, RunResult

COLUMNS = 3
_SIZE = (3.4, 2.3)  # inches of one small picture


class Atlas(Drawing):
    """The page of one comparison with any number of mistakes. ``axes`` by code."""

    def __init__(self, comparison: Comparison, dpi: int = 90) -> None:
        self.comparison = comparison
        self.mended = {result.code: result for result in comparison.results if result.code.endswith(SUFFIX)}
        besides = (ORACLE, MATCHED.code, *self.mended)
        shown = [result for result in comparison.results if result.code not in besides]
        rows = -(-len(shown) // COLUMNS)
        self.figure = Figure(figsize=(COLUMNS * _SIZE[0], rows * _SIZE[1] + 0.4), dpi=dpi, layout="constrained")
        FigureCanvasAgg(self.figure)
        self.figure.suptitle(f"{QUANTITIES['loss']} over optimizer steps; the right run is black", fontsize=10)
        grid = self.figure.add_gridspec(rows, COLUMNS)
        self.axes = {
            result.code: self._draw(self.figure.add_subplot(grid[divmod(place, COLUMNS)]), result)
            for place, result in enumerate(shown)
        }

    def _draw(self, axes: Any, result: RunResult) -> Any:
        title = "\n".join(textwrap.wrap(find(result.code).title, 46))
        axes.set_title(f"{result.code}\n{title}", fontsize=7, loc="left", pad=3)
        axes.tick_params(labelsize=7)
        axes.grid(True, color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
        mended = self.mended.get(result.code + SUFFIX)
        for one in (self.comparison.matched, result, *([mended] if mended else [])):
            points = [(point.step, point.loss) for point in one.points if point.loss is not None]
            own = style(one.code)
            # What is not finite has no place on the page: the line ends there.
            line = [(step, loss if math.isfinite(loss) else math.nan) for step, loss in points]
            steps, losses = zip(*line, strict=True) if line else ((), ())
            axes.plot(steps, losses, color=own.colour, linestyle=own.dashes, linewidth=own.width, gid=one.code)
        if len(result.points) < 2:
            words = f"no curve: {result.ended}"
            axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", fontsize=8)
        return axes
