"""The committed pictures are complete, say in words what they show, and are what today's code draws from their points.

That the points are still those of real runs is tested in tests/training/test_images.py.
"""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dsaccum_helpers import Comparison
from dsaccum_helpers.plots import alt_text
from tools.make_images import ALT_TEXTS, FIGURES, IMAGES, draw, from_csv, points_csv

README = (Path(__file__).resolve().parents[2] / "README.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"!\[([^\]]*)\]\(([^)\s]+)[^)]*\)", README)
TEXTS = json.loads((IMAGES / ALT_TEXTS).read_text(encoding="utf-8"))
SVG = "{http://www.w3.org/2000/svg}"

every = pytest.mark.parametrize("name", FIGURES)


def committed(name: str) -> Comparison:
    return from_csv(FIGURES[name], (IMAGES / f"{name}.csv").read_text(encoding="utf-8"))


def corners(svg: str, line: str) -> list[float]:
    """All coordinates of one line of the picture, in points."""
    group = next(one for one in ElementTree.fromstring(svg).iter(f"{SVG}g") if one.get("id") == line)
    path = group.find(f"{SVG}path")
    return [] if path is None else [float(number) for number in re.findall(r"-?[\d.]+", path.get("d", ""))]


def test_every_file_belongs_to_a_figure() -> None:
    wanted = {f"{name}.{kind}" for name in FIGURES for kind in ("png", "svg", "csv")} | {ALT_TEXTS}
    assert {path.name for path in IMAGES.iterdir()} == wanted
    assert list(TEXTS) == list(FIGURES)


def test_readme_shows_pictures_that_exist_with_words_for_them() -> None:
    ours = [(words, target) for words, target in SHOWN if "://" not in target]
    assert ours
    for words, target in ours:
        assert (IMAGES.parent / target).is_file(), target
        assert len(words.split()) >= 5, target


@every
def test_words_have_the_numbers_of_the_points(name: str) -> None:
    comparison = committed(name)
    assert [result.code for result in comparison.results] == FIGURES[name].runs
    assert TEXTS[name] == alt_text(comparison)
    assert points_csv(comparison) == (IMAGES / f"{name}.csv").read_text(encoding="utf-8")


@every
def test_picture_is_what_the_code_draws_from_the_points(name: str) -> None:
    comparison, svg = committed(name), (IMAGES / f"{name}.svg").read_text(encoding="utf-8")
    png, again = draw(FIGURES[name], comparison)
    assert (IMAGES / f"{name}.png").read_bytes()[:24] == png[:24], "another size"
    for line in FIGURES[name].lines():
        drawn = corners(svg, line)
        assert len(drawn) > 20, f"{line} is not drawn"
        assert drawn == pytest.approx(corners(again.decode(), line), abs=0.05), line


def test_half_of_the_atlas_cannot_be_told_by_its_loss() -> None:
    """What the caption in the README says: within half a per cent of the right run at the same optimizer step."""
    right, *wrong = committed("atlas").results
    losses = {point.step: point.loss for point in right.points}
    hidden = [
        run.code
        for run in wrong
        if all(abs(point.loss / losses[point.step] - 1) < 0.005 for point in run.points if point.step in losses)
    ]
    assert "Half of the mistakes cannot be told from the right run by their loss" in README
    assert len(hidden) / len(wrong) == pytest.approx(0.5, abs=0.05), hidden
