"""The picture shows the measured points, in colours and styles that can be told apart, and says so in numbers."""

from __future__ import annotations

import itertools
import math
import re
import time
import xml.etree.ElementTree as ElementTree
from copy import deepcopy
from dataclasses import replace

import pytest

from dsaccum_helpers import Comparison, Setting, plots, resolve_batch
from dsaccum_helpers.mismatches import RUNNABLE
from dsaccum_helpers.training import ORACLE, RunResult
from dsaccum_helpers.training.comparison import number

# Okabe, Ito: Color Universal Design (2008), with the grey that R adds.
OKABE_ITO = {"#000000", "#E69F00", "#56B4E9", "#009E73", "#F0E442", "#0072B2", "#D55E00", "#CC79A7", "#999999"}


def test_lines_are_the_measured_points(measured: Comparison) -> None:
    curves = plots.Curves(measured)
    drawn = 0
    for result in measured.results:
        for quantity in plots.QUANTITIES:
            points = [p for p in result.points if getattr(p, quantity) is not None]
            line = curves.lines[result.code][quantity]
            assert list(line.get_xdata()) == [point.step for point in points]
            assert list(line.get_ydata()) == [getattr(point, quantity) for point in points]
            assert line.axes is curves.axes[quantity]
            drawn += len(points)
    assert drawn > 150
    assert len(curves.lines["matched"]["loss"].get_xdata()) == 13
    assert len(curves.lines["batch-product-mismatch"]["loss"].get_xdata()) == 0


def test_all_points_lie_within_the_axes(measured: Comparison) -> None:
    curves = plots.Curves(measured)
    for quantity, axes in curves.axes.items():
        (left, right), (bottom, top) = axes.get_xlim(), axes.get_ylim()
        for lines in curves.lines.values():
            for x, y in zip(lines[quantity].get_xdata(), lines[quantity].get_ydata(), strict=True):
                assert left <= x <= right
                assert bottom <= y <= top or (y <= 0 and axes.get_yscale() == "log")


def test_update_moves_the_same_lines(measured: Comparison) -> None:
    growing = Comparison(measured.setting, [RunResult(r.code, r.setting) for r in measured.results])
    curves = plots.Curves(growing)
    line, empty = curves.lines["matched"]["loss"], curves.png()
    assert len(line.get_xdata()) == 0
    growing.matched.points += measured.matched.points[:5]
    curves.update()
    assert line is curves.lines["matched"]["loss"]
    assert list(line.get_ydata()) == [point.loss for point in measured.matched.points[:5]]
    assert curves.png() != empty


def test_any_two_runs_differ_in_line_style_or_marker_and_not_in_colour_alone() -> None:
    styles = [plots.style(code) for code in ("matched", ORACLE, *RUNNABLE)]
    assert {style.colour for style in styles} <= OKABE_ITO
    for one, other in itertools.combinations(styles, 2):
        differences = one.colour != other.colour, one.dashes != other.dashes, one.marker != other.marker
        assert sum(differences) >= 2, (one, other)


def test_drawn_lines_have_their_styles(measured: Comparison) -> None:
    curves = plots.Curves(measured)
    for code, lines in curves.lines.items():
        for line in lines.values():
            assert (line.get_color(), line.get_marker()) == (plots.style(code).colour, plots.style(code).marker)
    patterns = [str(lines["loss"]._unscaled_dash_pattern) for lines in curves.lines.values()]
    assert len(set(patterns)) == len(patterns)


def test_alternative_text_has_the_true_numbers(measured: Comparison) -> None:
    text = plots.alt_text(measured)
    for result in measured.results:
        if result.code == "batch-product-mismatch":
            assert "batch-product-mismatch: no curve (refused)" in text
            continue
        assert result.first is not None
        first, last, norm = result.points[0].loss, result.points[-1].loss, result.first.update_norm
        assert f"{result.code}: loss {number(first)} to {number(last)} in 12 steps" in text
        assert f"first update norm {number(norm)}" in text


def test_alternative_text_before_the_first_step(measured: Comparison) -> None:
    comparison = Comparison(measured.setting, [RunResult("matched", measured.setting)])
    assert "matched: no step yet" in plots.alt_text(comparison)


def test_legend_says_what_was_refused(measured: Comparison) -> None:
    texts = [text.get_text() for text in plots.Curves(measured).legend.get_texts()]
    assert texts == [r.code + " (refused)" * (r.ended == "refused") for r in measured.results]


@pytest.mark.parametrize("loss", [math.nan, math.inf])
def test_a_run_that_diverges_leaves_the_others_visible(measured: Comparison, loss: float) -> None:
    wild = deepcopy(measured)
    points = wild.result("loss-divided-twice").points
    points[-1] = replace(points[-1], loss=loss, update_norm=loss)
    curves = plots.Curves(wild)
    curves.png()
    assert curves.axes["loss"].get_ylim() == plots.Curves(measured).axes["loss"].get_ylim()
    assert f"to {number(loss)}" in plots.alt_text(wild)


def test_loss_that_spans_decades_gets_a_logarithmic_axis(measured: Comparison) -> None:
    wide = deepcopy(measured)
    wide.matched.points[3] = replace(wide.matched.points[3], loss=1e4)
    curves = plots.Curves(wide)
    assert curves.axes["loss"].get_yscale() == "log"
    assert curves.axes["loss"].get_ylim()[1] >= 1e4
    assert plots.Curves(measured).axes["loss"].get_yscale() == "linear"


def test_png_and_svg_carry_the_text(measured: Comparison) -> None:
    curves = plots.Curves(measured)
    assert curves.png().startswith(b"\x89PNG")
    tree = ElementTree.fromstring(curves.svg())
    title = tree.find("{http://www.w3.org/2000/svg}title")
    assert title is not None
    assert title.text == plots.alt_text(measured)


def test_show_embeds_the_picture_with_its_text(measured: Comparison) -> None:
    bundle = plots.show(measured)._repr_mimebundle_()
    assert bundle["text/plain"] == plots.alt_text(measured)
    assert re.fullmatch(
        r'<img src="data:image/png;base64,[\w+/=]+" alt="Loss on [^"<>]+" style="[^"]*">', bundle["text/html"]
    )


def test_progress_tells_the_time_that_is_left(measured: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    growing = Comparison(measured.setting, [RunResult("matched", measured.setting)])
    assert plots.progress_text(growing, time.monotonic()) == "0%"
    growing.matched.micro_batches_read = 12
    monkeypatch.setattr(plots.time, "monotonic", lambda: 110.0)
    assert plots.progress_text(growing, 100.0) == "25%, about 30 s left"
    assert plots.progress_text(growing, 0.0) == "25%, about 6 min left"
    growing.matched.ended = "finished"
    assert plots.progress_text(growing, 100.0) == "100%"


def test_equation_is_drawn_with_its_numbers() -> None:
    picture = plots.equation(resolve_batch(48, 4, 3, world_size=4))
    assert picture.png.startswith(b"\x89PNG")
    assert picture.alt == (
        "48 samples per optimizer step, drawn as a grid of 4 processes (rows) by 3 accumulation steps (columns) "
        "with 4 samples in each block."
    )


def test_equation_draws_a_block_for_each_micro_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    blocks: list[tuple[int, int]] = []
    block = plots._block
    monkeypatch.setattr(plots, "_block", lambda x, y, colour: blocks.append((x, y)) or block(x, y, colour))
    plots.equation(resolve_batch(48, 4, 3, world_size=4))
    assert sorted(blocks) == sorted(itertools.product(range(3), range(4)))


@pytest.mark.parametrize("size", [10**6, 10**400])
def test_equation_of_huge_numbers_stays_small(size: int) -> None:
    picture = plots.equation(resolve_batch(None, size, size, world_size=size))
    assert "only the first 8 rows and 12 columns are drawn" in picture.alt
    assert len(picture.png) < 100_000


def test_regression_starts_at_the_setting_that_was_asked_for() -> None:
    empty = Comparison(Setting(optimizer_steps=30), [RunResult("matched", Setting(optimizer_steps=30))])
    assert plots.Curves(empty).axes["loss"].get_xlim() == (0, pytest.approx(30.6))
