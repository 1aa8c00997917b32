"""A guess is judged by what was measured, not by what was predicted, and never by text."""

from __future__ import annotations

from typing import Any

import pytest

from dsaccum_helpers.mismatches import find
from dsaccum_helpers.setting import Setting, SettingError
from dsaccum_helpers.training.comparison import Comparison
from dsaccum_helpers.training.events import Expected, Point, RunResult
from dsaccum_helpers.training.guess import Guess

SETTING = Setting(optimizer_steps=2, train_micro_batch_size_per_gpu=2, gradient_accumulation_steps=4)
CODE = "loss-divided-twice"


def result(code: str, norm: float, steps: int = 2) -> RunResult:
    points = [Point(step, 1.0, norm if step else None, norm, 0.1, 8 * step, 8 * step, 0.0) for step in range(steps + 1)]
    return RunResult(code, SETTING, points, Expected(norm, norm, 2.0, 2.0), "finished")


def judged(ratio: Any, steps: Any, norm: float = 0.5) -> Guess:
    guess = Guess(find(CODE), SETTING, ratio, steps)
    guess.comparison = Comparison(SETTING, [result("matched", 2.0), result(CODE, norm), result(f"{CODE}:mended", 2.0)])
    return guess


@pytest.mark.parametrize(
    ("ratio", "steps", "words"),
    [
        (0.25, 2, ["right", "right"]),
        (0.26, 2, ["right", "right"]),
        (0.27, 2, ["not yet", "right"]),
        (1, 8, ["not yet", "not yet"]),
        (None, "", ["–", "–"]),
        (0, None, ["not yet", "–"]),
    ],
)
def test_a_guess_is_right_within_five_per_cent_and_steps_exactly(ratio: Any, steps: Any, words: list[str]) -> None:
    guess = judged(ratio, steps)
    lines = {line[0]: line for line in guess.lines()}
    asked = [lines["× first gradient norm"], lines["optimizer steps"]]
    assert [line[-1] for line in asked] == words
    assert [line[3] for line in asked] == ["0.25", "2"]
    assert lines["samples per step"][1:] == ("–", "8", "8", "–")
    right = "your guess is right" in guess.verdict
    assert right == ("right" in words and "not yet" not in words)
    assert "Mended. Measured: first gradient norm × 1, 2 optimizer steps." in str(guess)


def test_the_measured_value_decides() -> None:
    guess = judged(0.5, 2, norm=1.0)  # the prediction of the entry says 0.25 of the right run, the run says 0.5
    assert guess.lines()[0][1:] == ("0.5", "0.5", "0.5", "right")


@pytest.mark.parametrize("value", ["x", True, -1, float("nan"), float("inf"), [1]])
def test_no_number_is_one_sentence(value: Any) -> None:
    with pytest.raises(SettingError, match=r"^Your guess of the ratio .* Smallest fix: a number from 0 on\.$"):
        Guess(find(CODE), SETTING, value)
    with pytest.raises(SettingError, match="number of optimizer steps"):
        Guess(find(CODE), SETTING, 1, value)


def test_before_the_run_there_is_nothing_to_judge() -> None:
    assert str(Guess(find(CODE), SETTING, 1)) == f"{CODE}: not run yet."
