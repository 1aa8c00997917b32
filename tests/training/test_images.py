"""The committed pictures show what real runs measure today."""

from dataclasses import asdict

import pytest

from dsaccum_helpers.training import Runner
from tools.make_images import COLUMNS, FIGURES, IMAGES, from_csv

# Equal machines give equal bits. Other vector units add up in another order: with every set of instructions that could
# be switched off, no value moved by more than 1.1e-6 of itself, except where the run is past the edge of stability and
# makes 3.5e-4 of a last bit. A picture shows differences from about 2e-3 on.
WITHIN = 1e-5
WITHIN_UNSTABLE = {"manual-accumulation": 2e-3}


@pytest.mark.parametrize("name", FIGURES)
def test_runs_give_the_committed_points(name: str, runner: Runner) -> None:
    figure = FIGURES[name]
    committed = from_csv(figure, (IMAGES / f"{name}.csv").read_text(encoding="utf-8"))
    measured = figure.measure(runner)
    assert [result.code for result in measured.results] == [result.code for result in committed.results]
    for now, then in zip(measured.results, committed.results, strict=True):
        assert now.ended == "finished"
        assert len(now.points) == len(then.points)
        tolerance = WITHIN_UNSTABLE.get(now.code, WITHIN)
        for one, other in zip(map(asdict, now.points), map(asdict, then.points), strict=True):
            for column in COLUMNS:
                here, there = one[column], other[column]
                near = here is there if there is None else here == pytest.approx(there, rel=tolerance)
                assert near, f"{now.code}, step {one['step']}: {column} is {here}, was {there}"
