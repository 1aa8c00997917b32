"""A learner's guess at what a mistake does, judged by a real run. Imports no torch."""

from __future__ import annotations

import math
from typing import Any

from dsaccum_helpers.mismatches import Mismatch
from dsaccum_helpers.mismatches.mended import SUFFIX
from dsaccum_helpers.setting import Setting, SettingError
from dsaccum_helpers.training.comparison import Comparison, Row, number

CLOSE = 0.05
"""A guessed ratio is right when it differs by at most this share from the measured one."""


class Guess:
    """``ratio`` of the first gradient norm to the right run's, and ``steps``: optimizer steps, 0 for a run that stops.

    Either may be ``None`` or empty: no guess. ``comparison`` is filled in when the run is over. Raises ``SettingError``
    for what is no number.
    """

    def __init__(self, entry: Mismatch, setting: Setting, ratio: Any = None, steps: Any = None) -> None:
        self.entry, self.setting = entry, setting
        self.ratio = _number("the ratio of the first gradient norm", ratio)
        self.steps = _number("the number of optimizer steps", steps)
        self.comparison: Comparison | None = None

    def rows(self) -> list[tuple[Row, float | None]]:
        """The measured rows that were guessed at, each with the guess."""
        assert self.comparison is not None
        named = {row.quantity: row for row in self.comparison.rows(self.entry.code)}
        return [(named["× first gradient norm"], self.ratio), (named["optimizer steps"], self.steps)]

    def lines(self) -> list[tuple[str, str, str, str, str]]:
        """For each quantity: its name, the guess, the prediction, the measured value, the word for the guess."""
        return [
            (row.quantity, _two(guess), _two(row.predicted), _two(row.measured), _word(row, guess))
            for row, guess in self.rows()
        ]

    @property
    def verdict(self) -> str:
        """One sentence on the guess."""
        words = [_word(row, guess) for row, guess in self.rows()]
        where = f"at ZeRO-{self.setting.zero_stage} on {self.setting.processes} process"
        where += "es" * (self.setting.processes > 1)
        if all(word == "–" for word in words):
            return f"{self.entry.code} {where}: nothing was guessed."
        good = all(word in ("right", "–") for word in words)
        return f"{self.entry.code} {where}: {'your guess is right' if good else 'not what you expected'}."

    @property
    def mended(self) -> str:
        """What the mended run measured, in one sentence."""
        assert self.comparison is not None
        rows = {row.quantity: row.measured for row in self.comparison.rows(self.entry.code + SUFFIX)}
        ratio, steps = rows["× first gradient norm"], rows["optimizer steps"]
        return f"Measured: first gradient norm × {_two(ratio)}, {_two(steps)} optimizer steps."

    def __str__(self) -> str:
        """The answer as text."""
        if self.comparison is None:
            return f"{self.entry.code}: not run yet."
        head = ("", "you", "predicted", "measured", "")
        table = ["{:24}{:>10}{:>11}{:>10}  {}".format(*line).rstrip() for line in (head, *self.lines())]
        words = self.comparison.result(self.entry.code).engine_words
        stopped = [f"DeepSpeed: {words}"] if words else []
        return "\n".join([self.verdict, *table, *stopped, f"Mended. {self.mended}"])


def _number(name: str, value: Any) -> float | None:
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise SettingError(f"Your guess of {name} is {str(value)[:40]!r}. Smallest fix: a number from 0 on.")
    return float(value)


def _two(value: float | None) -> str:
    """At most two digits behind the point: what lies below is rounding, and differs between machines."""
    if value is None or not math.isfinite(value):
        return number(value)
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _word(row: Row, guess: float | None) -> str:
    if guess is None or row.measured is None:
        return "–"
    allowed = 0 if row.quantity == "optimizer steps" else CLOSE * abs(row.measured)
    return "right" if abs(guess - row.measured) <= allowed else "not yet"
