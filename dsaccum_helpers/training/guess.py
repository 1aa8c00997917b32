"""A learner's guess at what a mistake does, judged by a real run. Imports no torch."""

from __future__ import annotations

import math
from typing import Any

from dsaccum_helpers.mismatches import Mismatch
from dsaccum_helpers.mismatches.mended import SUFFIX
from dsaccum_helpers.setting import Setting, SettingError
from dsaccum_helpers.training.comparison import Comparison, Row, number

SAME = 1e-6
"""How far two fp32 weights may part by the order of their sums alone."""
#: What says no more than the others.
_LEFT_OUT = ("samples used", "distance of the weights")
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
        """The measured rows, each with the guess; those that were not asked for have none."""
        assert self.comparison is not None
        asked = {"× first gradient norm": self.ratio, "optimizer steps": self.steps}
        rows = [row for row in self.comparison.rows(self.entry.code) if row.quantity not in _LEFT_OUT]
        rows = [row for row in rows if row.quantity in asked or row.measured is not None]
        return [(row, asked.get(row.quantity)) for row in rows]

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
        expected = self.comparison.result(self.entry.code + SUFFIX).expected
        text = f"Measured: first gradient norm × {_two(ratio)}, {_two(steps)} optimizer steps"
        if expected is None or expected.difference is None:
            return f"{text}."
        if expected.difference <= SAME:
            return f"{text}, every weight at the end as in plain PyTorch."
        return f"{text}, weights up to {expected.difference:.0e} from plain PyTorch."

    @property
    def seen(self) -> str:
        """What the live observer said of the wrong run, and that it was silent at the mended one, in one sentence."""
        assert self.comparison is not None
        wrong, right = (self.comparison.result(code) for code in (self.entry.code, self.entry.code + SUFFIX))
        if wrong.seen is None:
            return "there was no engine to watch."
        silent = self.entry.not_watched.rstrip(".") or "nothing"
        said = [f"{one['code']} ({one['severity']})" for one in wrong.seen] or [silent]
        alarms = [one["code"] for one in right.seen or () if one["severity"] != "note"]
        return f"{', '.join(said)}. At the mended run: {', '.join(alarms) or 'nothing'}."

    def __str__(self) -> str:
        """The answer as text."""
        if self.comparison is None:
            return f"{self.entry.code}: not run yet."
        head = ("", "you", "predicted", "measured", "")
        table = ["{:28}{:>8}{:>11}{:>10}  {}".format(*line).rstrip(" –") for line in (head, *self.lines())]
        words = self.comparison.result(self.entry.code).engine_words
        stopped = [f"DeepSpeed: {words}"] if words else []
        return "\n".join([self.verdict, *table, *stopped, f"Seen live: {self.seen}", f"Mended. {self.mended}"])


def _number(name: str, value: Any) -> float | None:
    if value is None or value == "":
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not (math.isfinite(value) and value >= 0):
        raise SettingError(f"Your guess of {name} is {str(value)[:40]!r}. Smallest fix: a number from 0 on.")
    return float(value)


def _two(value: float | None) -> str:
    """At most two digits behind the point, one digit of what is smaller: the rest is rounding, as each machine does."""
    if value is None or not math.isfinite(value):
        return number(value)
    if 0.0 < abs(value) < 0.005:
        return f"{value:.0e}"
    return f"{value:.2f}".rstrip("0").rstrip(".")


def _word(row: Row, guess: float | None) -> str:
    if guess is None or row.measured is None:
        return "–"
    allowed = 0 if row.quantity == "optimizer steps" else CLOSE * abs(row.measured)
    return "right" if abs(guess - row.measured) <= allowed else "not yet"
