"""Pictures from measured points: colour-blind-safe, with line styles besides, and with alternative text in numbers.

Figures are drawn without pyplot, so that they have no global state and one thread may draw while another one works.
"""

from __future__ import annotations

import base64
import io
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from html import escape
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from dsaccum_helpers.batch import Batch
from dsaccum_helpers.mismatches import MATCHED, RUNNABLE
from dsaccum_helpers.mismatches.mended import SUFFIX
from dsaccum_helpers.training.comparison import Comparison, number
from dsaccum_helpers.training.events import ORACLE, RunResult

BLACK, GREY = "#000000", "#999999"
# The colours of Okabe and Ito without black (the right run's), grey (the oracle's) and yellow (too pale on white).
COLOURS = ("#D55E00", "#0072B2", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
# 6 colours, 11 line styles and 13 markers have no common factor: any two of 66 entries differ in two of the three.
DASHES = (
    *((0, dashes) for dashes in ((6, 2), (6, 2, 1, 2), (3, 1.5), (6, 2, 1, 2, 1, 2), (10, 3), (1.5, 1.5))),
    *((0, dashes) for dashes in ((10, 2, 3, 2), (3, 3), (10, 2, 1, 2), (4, 1, 4, 4), (8, 4, 2, 4))),
)
MARKERS = ("s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*", "d", "8")

QUANTITIES = {
    "loss": "loss on the evaluation set",
    "update_norm": "update norm",
    "gradient_norm": "gradient norm",
    "learning_rate": "learning rate",
}
LOGARITHMIC = ("update_norm", "gradient_norm")
_WIDE_LOSS = 30.0  # from this ratio of largest to smallest loss the axis is logarithmic
_MARKS = 8  # markers on one line
MOST_ROWS, MOST_COLUMNS = 8, 12


@dataclass(frozen=True)
class Style:
    """How one run is drawn in every picture of the course."""

    colour: str
    dashes: Any
    marker: str
    width: float = 1.8


def style(code: str) -> Style:
    """The style of a run: by its place in the catalogue, so that it never changes from one press to the next."""
    if code == MATCHED.code:
        return Style(BLACK, "-", "", 2.8)
    if code == ORACLE:
        return Style(GREY, ":", "o", 1.4)
    wrong = code.removesuffix(SUFFIX)
    place = list(RUNNABLE).index(wrong)
    if code != wrong:  # the colour of its mistake, in a line that no mistake has
        return Style(COLOURS[place % len(COLOURS)], (0, (1, 1)), MARKERS[(place + 6) % len(MARKERS)], 1.2)
    return Style(COLOURS[place % len(COLOURS)], DASHES[place % len(DASHES)], MARKERS[place % len(MARKERS)])


@dataclass(frozen=True)
class Picture:
    """PNG bytes and the text that says the same in numbers. Shows itself in a notebook as an image with that text."""

    png: bytes
    alt: str

    @property
    def html(self) -> str:
        """An ``<img>`` with everything inside."""
        data = base64.b64encode(self.png).decode()
        return f'<img src="data:image/png;base64,{data}" alt="{escape(self.alt)}" style="max-width: 100%">'

    def _repr_mimebundle_(self, **_: Any) -> dict[str, str]:
        # JupyterLab 4 drops the alternative text of image/png outputs, so the picture travels as HTML.
        return {"text/html": self.html, "text/plain": self.alt}


class Drawing:
    """A figure of one comparison that saves itself, with its alternative text inside."""

    comparison: Comparison
    figure: Figure

    def png(self) -> bytes:
        """The figure as PNG."""
        return self._save("png", {"Description": alt_text(self.comparison)})

    def svg(self) -> bytes:
        """The figure as SVG; its ``<title>`` is the alternative text."""
        return self._save("svg", {"Title": alt_text(self.comparison), "Date": None})

    def _save(self, kind: str, metadata: dict[str, str | None]) -> bytes:
        buffer = io.BytesIO()
        self.figure.savefig(buffer, format=kind, metadata=metadata)
        return buffer.getvalue()


class Curves(Drawing):
    """The figure of one comparison: made once, then ``update`` moves the lines to what has been measured so far.

    ``axes`` by quantity (``QUANTITIES``), ``lines`` by code and quantity.
    """

    def __init__(self, comparison: Comparison, size: tuple[float, float] = (9.0, 5.5), dpi: int = 90) -> None:
        self.comparison = comparison
        self.figure = Figure(figsize=size, dpi=dpi)
        FigureCanvasAgg(self.figure)
        self.axes = self._make_axes()
        self.lines = {
            result.code: {quantity: self._make_line(result.code, quantity) for quantity in QUANTITIES}
            for result in comparison.results
        }
        handles = [lines["loss"] for lines in self.lines.values()]
        self.legend = self.figure.legend(
            handles=handles, loc="lower center", ncols=3, fontsize=8, frameon=False, handlelength=5
        )
        self.optimum = self.axes["loss"].axhline(0.0, color=BLACK, linestyle=(0, (1, 4)), linewidth=1.0, visible=False)
        self.update()

    def _make_axes(self) -> dict[str, Any]:
        grid = self.figure.add_gridspec(
            3, 2, width_ratios=(1.5, 1), left=0.075, right=0.985, top=0.94, bottom=0.215, hspace=0.42, wspace=0.2
        )
        places = (grid[:, 0], grid[0, 1], grid[1, 1], grid[2, 1])
        axes = {quantity: self.figure.add_subplot(place) for quantity, place in zip(QUANTITIES, places, strict=True)}
        for quantity, one in axes.items():
            one.set_title(QUANTITIES[quantity], fontsize=9, loc="left", pad=3)
            one.tick_params(labelsize=8)
            one.grid(True, color="#dddddd", linewidth=0.6)
            one.set_axisbelow(True)
            one.spines[["top", "right"]].set_visible(False)
            if quantity in LOGARITHMIC:
                one.set_yscale("log", nonpositive="clip")
                one.minorticks_off()
        for quantity in ("loss", "learning_rate"):
            axes[quantity].set_xlabel("optimizer steps", fontsize=8)
        return axes

    def _make_line(self, code: str, quantity: str) -> Any:
        own = style(code)
        (line,) = self.axes[quantity].plot(
            *([], []), color=own.colour, linestyle=own.dashes, linewidth=own.width, label=code, gid=f"{code} {quantity}"
        )
        line.set(marker=own.marker, markersize=5, markeredgecolor="#333333", markeredgewidth=0.5, clip_on=True)
        if code == MATCHED.code:
            line.set_zorder(1.9)  # under the others, which would vanish behind the thick line
        return line

    def update(self) -> None:
        """Show all points measured so far."""
        drawn: dict[str, list[float]] = {quantity: [] for quantity in QUANTITIES}
        # While runs go on the axis shows what is planned; a comparison that was stopped early fills it.
        last = 1 if self.comparison.done else self.comparison.setting.optimizer_steps
        for result, text in zip(self.comparison.results, self.legend.get_texts(), strict=True):
            points = list(result.points)  # the thread that receives goes on appending
            for quantity, line in self.lines[result.code].items():
                pairs = [(p.step, value) for p in points if (value := getattr(p, quantity)) is not None]
                steps, values = zip(*pairs, strict=True) if pairs else ((), ())
                line.set_data(steps, values)
                line.set_markevery(max(1, len(pairs) // _MARKS))
                drawn[quantity] += values
                last = max(last, *steps) if steps else last
            text.set_text(_legend_text(result))
        self._draw_optimum(drawn["loss"])
        for quantity, one in self.axes.items():
            one.set_xlim(0, last * 1.02)
            _fit(one, quantity, drawn[quantity])

    def _draw_optimum(self, losses: list[float]) -> None:
        """The least loss that any weights can reach, where it is known in closed form."""
        optimum = self.comparison.matched.optimum
        if optimum is not None:
            self.optimum.set_ydata([optimum, optimum])
            self.optimum.set_visible(True)
            losses.append(optimum)


def _fit(axes: Any, quantity: str, values: Iterable[float]) -> None:
    """Limits around all finite values; what is not positive has no place on a logarithmic axis."""
    finite = [value for value in values if math.isfinite(value)]
    if quantity == "loss" and finite and min(finite) > 0:
        wanted = "log" if max(finite) > _WIDE_LOSS * min(finite) else "linear"
        if axes.get_yscale() != wanted:
            axes.set_yscale(wanted)
    if axes.get_yscale() == "log":
        finite = [value for value in finite if value > 0]
        if finite:
            axes.set_ylim(min(finite) / 1.5, max(finite) * 1.5)
    elif finite:
        room = 0.05 * (max(finite) - min(finite)) or 0.05 * abs(max(finite)) or 1.0
        axes.set_ylim(min(finite) - room, max(finite) + room)


def _legend_text(result: RunResult) -> str:
    return result.code if result.ended in (None, "finished") else f"{result.code} ({result.ended})"


def alt_text(comparison: Comparison) -> str:
    """What the curves show, in numbers."""
    runs = "; ".join(_run_text(result) for result in comparison.results)
    optimum = next((result.optimum for result in comparison.results if result.optimum is not None), None)
    floor = "" if optimum is None else f" No weights can reach less than {number(optimum)}, the thin dotted line."
    return f"Loss on the evaluation set against optimizer steps, with norms and learning rate beside it. {runs}.{floor}"


def _run_text(result: RunResult) -> str:
    points = list(result.points)
    ending = "" if result.ended in (None, "finished") else f" ({result.ended})"
    if len(points) < 2:
        return f"{result.code}: no curve{ending}" if result.ended else f"{result.code}: no step yet"
    first, last = points[0], points[-1]
    text = f"{result.code}: loss {number(first.loss)} to {number(last.loss)} in {_steps(last.step)}{ending}"
    return f"{text}, first update norm {number(points[1].update_norm)}"


def _steps(count: int) -> str:
    return f"{count} step" + "s" * (count != 1)


def show(comparison: Comparison) -> Picture:
    """The curves of a comparison as a still picture for a notebook."""
    return Picture(Curves(comparison).png(), alt_text(comparison))


def progress_text(comparison: Comparison, began: float) -> str:
    """How far all runs have come since ``began`` (``time.monotonic()``), and about how long the rest will take."""
    share = comparison.progress
    if share <= 0.0 or comparison.done:
        return f"{share:.0%}"
    left = (time.monotonic() - began) * (1.0 - share) / share
    return f"{share:.0%}, about {left:.0f} s left" if left < 90 else f"{share:.0%}, about {left / 60:.0f} min left"


def equation(batch: Batch) -> Picture:
    """The product with its units: processes as rows, accumulation steps as columns, samples in each block."""
    _, micro, steps, processes, *_ = batch
    rows, columns = min(processes, MOST_ROWS), min(steps, MOST_COLUMNS)
    figure = Figure(figsize=(8.0, 1.5 + 0.34 * (rows + (processes > rows))), dpi=90)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.01, 0.01, 0.98, 0.98))
    axes.set_axis_off()
    axes.set(xlim=(-2.6, MOST_COLUMNS + 0.8), ylim=(rows + (processes > rows) + 0.9, -2.2))
    total, product = str(batch).split(" (derived")[0].split(" = ")
    axes.text(-2.5, -1.7, f"{total:.90}", fontsize=12, weight="bold", va="center")
    axes.text(-2.5, -0.95, f"= {product:.90}".replace(" x ", " × "), fontsize=11)
    for row in range(rows):
        axes.text(-0.15, row + 0.45, f"process {row}", ha="right", va="center", fontsize=9)
        for column in range(columns):
            colour = COLOURS[column % len(COLOURS)]
            axes.add_patch(_block(column, row, colour))
            axes.text(column + 0.45, row + 0.45, _short(micro), ha="center", va="center", fontsize=8)
        if steps > columns:
            axes.text(columns + 0.2, row + 0.45, "…", ha="center", va="center")
    if processes > rows:
        axes.text(-0.15, rows + 0.3, "…", ha="right", va="center")
    below = rows + (processes > rows) + 0.3
    axes.text(0, below, f"accumulation steps 1 to {steps:,}, each with one micro-batch per process →", fontsize=8)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png")
    return Picture(buffer.getvalue(), _equation_alt(batch, rows, columns))


def _block(column: int, row: int, colour: str) -> Any:
    from matplotlib.patches import Rectangle

    return Rectangle((column, row), 0.9, 0.9, facecolor=colour + "55", edgecolor=BLACK, linewidth=0.8)


def _short(count: int) -> str:
    return f"{count:,}" if count < 100_000 else f"≈10^{len(str(count)) - 1}"


def _equation_alt(batch: Batch, rows: int, columns: int) -> str:
    train, micro, steps, processes, *_ = batch
    text = (
        f"{train:,} samples per optimizer step, drawn as a grid of {processes:,} processes (rows) by {steps:,} "
        f"accumulation steps (columns) with {micro:,} samples in each block"
    )
    if rows < processes or columns < steps:
        text += f"; only the first {rows} rows and {columns} columns are drawn"
    return text + "."
