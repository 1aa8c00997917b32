"""Matched against mismatched: several runs of one setting, predicted beside measured. Imports no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from html import escape
from typing import Any

from dsaccum_helpers.mismatches import MATCHED, Mismatch, find, runnable
from dsaccum_helpers.mismatches.mended import SUFFIX, Mended
from dsaccum_helpers.mismatches.prediction import Prediction
from dsaccum_helpers.setting import Setting, SettingError, check_setting
from dsaccum_helpers.training.events import ORACLE, Expected, Point, RunResult
from dsaccum_helpers.training.run import AnyRun
from dsaccum_helpers.training.runner import Runner

MOST_MISMATCHES = 5
AGREES_WITHIN = 0.01
"""A measured value confirms its prediction when it differs by at most this share."""


@dataclass(frozen=True)
class Row:
    """One quantity of one run. ``predicted`` comes from the setting and plain PyTorch, ``measured`` from the run.

    Quantities that begin with ``×`` are ratios to the right run; the others are counts. ``None``: there is no such
    value (a run without an update has no first gradient), or the run has not come so far.
    """

    code: str
    quantity: str
    predicted: float | None
    measured: float | None

    @property
    def agrees(self) -> bool | None:
        """Within one per cent? ``None`` where there is nothing to compare."""
        if self.predicted is None or self.measured is None:
            return None
        return abs(self.measured - self.predicted) <= AGREES_WITHIN * max(abs(self.predicted), 1e-12)


class Comparison:
    """The right run and up to five mismatched ones; each of ``results`` grows while its run goes on."""

    def __init__(self, setting: Setting, results: Sequence[RunResult]) -> None:
        self.setting, self.results = setting, list(results)

    @property
    def matched(self) -> RunResult:
        """The right run."""
        return next(result for result in self.results if result.code == MATCHED.code)

    def result(self, code: str) -> RunResult:
        """The run with this code. Raises ``KeyError`` where it is not part of the comparison."""
        for result in self.results:
            if result.code == code:
                return result
        raise KeyError(code)

    @property
    def done(self) -> bool:
        """Has every run ended?"""
        return all(result.ended is not None for result in self.results)

    @property
    def progress(self) -> float:
        """The share of all micro-batches that has been read, from 0.0 to 1.0."""
        shares = [1.0 if r.ended else min(1.0, r.micro_batches_read / planned_micro_batches(r)) for r in self.results]
        return sum(shares) / len(shares)

    def rows(self, code: str | None = None) -> list[Row]:
        """Predicted beside measured, for one mismatched run or all. Raises ``KeyError`` for a code that is not here."""
        chosen = self.results if code is None else [self.result(code)]
        chosen = [result for result in chosen if result.code not in (ORACLE, MATCHED.code)]
        return [row for result in chosen for row in self._rows(result)]

    def _rows(self, result: RunResult) -> Iterator[Row]:
        prediction, right = find(result.code).predict(self.setting), MATCHED.predict(self.setting)
        over = result.ended in ("finished", "refused")
        first, base, expected = result.first, self.matched.first, result.expected

        def ratio(mine: float | None, other: float | None) -> float | None:
            return None if mine is None or not other else mine / other

        for name in ("gradient_norm", "update_norm"):
            quantity = f"× first {name.replace('_', ' ')}"
            full = getattr(expected, f"full_batch_{name}") if expected else None
            predicted = ratio(getattr(expected, name), full) if expected else None
            # Where the entry changes the task, the right run of this comparison trains something else.
            right_one = full if leaves_right_run(result.code) else getattr(base, name) if base else None
            measured = ratio(getattr(first, name), right_one) if first else None
            yield Row(result.code, quantity, predicted, measured)
        last = result.points[-1].samples if result.points else 0
        steps = len(result.steps)
        yield Row(result.code, "optimizer steps", prediction.optimizer_steps, steps if over else None)
        yield Row(result.code, "samples used", prediction.samples, last if over else None)
        per_step = ratio(prediction.samples, prediction.optimizer_steps), ratio(last, steps)
        yield Row(result.code, "samples per step", per_step[0], per_step[1] if over else None)
        yield from self._special(result, prediction, over)
        rates = [point.learning_rate or 0.0 for point in result.steps]
        predicted = ratio(_mean(prediction.learning_rates), _mean(right.learning_rates))
        base_rates = _mean([point.learning_rate or 0.0 for point in self.matched.steps])
        yield Row(result.code, "× mean learning rate", predicted, ratio(_mean(rates), base_rates) if over else None)

    def _special(self, result: RunResult, prediction: Prediction, over: bool) -> Iterator[Row]:
        """What only some entries are about, and the weights at the end where they were asked for."""
        expected, said = result.expected or Expected(None, None, 0.0, 0.0), result.reports
        if prediction.reports is not None:
            yield Row(result.code, "reports", prediction.reports, len(said) if over else None)
        if prediction.reported is not None:
            measured = said[0] / expected.first_loss if said and expected.first_loss else None
            yield Row(result.code, "× first loss, as reported", prediction.reported, measured)
        if result.first_error is not None:
            yield Row(result.code, "error of the first update", expected.first_error, result.first_error)
        if expected.distance is not None:
            yield Row(result.code, "distance of the weights", expected.distance, result.distance)

    def _repr_html_(self) -> str:
        """The table, as a notebook shows it."""
        lines = [
            f"<tr><td>{escape(row.code)}</td><td>{escape(row.quantity)}</td><td>{number(row.predicted)}</td>"
            f"<td>{number(row.measured)}</td><td>{agreement(row)}</td></tr>"
            for row in self.rows()
        ]
        head = "<tr><th>run</th><th>quantity</th><th>predicted</th><th>measured</th><th>within 1 %</th></tr>"
        return f"<table><caption>Predicted beside measured</caption>{head}{''.join(lines)}</table>"

    def __str__(self) -> str:
        """The table, and how each run ended, as text."""
        wide = max(30, *(len(result.code) + 2 for result in self.results)) if self.results else 30
        lines = [f"{'run':{wide}}{'quantity':24}{'predicted':>12}{'measured':>12}  within 1 %"]
        lines += [
            f"{row.code:{wide}}{row.quantity:24}{number(row.predicted):>12}{number(row.measured):>12}  {agreement(row)}"
            for row in self.rows()
        ]
        for result in self.results:
            lines.append(f"{result.code:{wide}}{result.sentence}")
            if result.seen is not None:
                said = ", ".join(f"{one['code']} ({one['severity']})" for one in result.seen)
                lines.append(f"{'':{wide}}Seen live: {said or 'nothing'}.")
        return "\n".join(lines)


def leaves_right_run(code: str) -> bool:
    """Is the right run of a comparison no measure for this entry, because it trains another model or is at fault?"""
    entry = find(code)
    entry = entry.entry if isinstance(entry, Mended) else entry
    return entry.against_full_batch or type(entry).prepare is not Mismatch.prepare


def planned_micro_batches(result: RunResult) -> int:
    """Micro-batches that one process of this run will read; optimizer steps for the oracle, which has none."""
    if result.code == ORACLE:
        return result.setting.optimizer_steps
    return find(result.code).micro_batches_read(result.setting)


def number(value: float | None) -> str:
    """Four significant digits; a dash where there is no value."""
    if value is None:
        return "–"
    if not math.isfinite(value):
        return str(value)
    return f"{value:,.0f}" if value == int(value) and abs(value) >= 10 else f"{value:.4g}"


def agreement(row: Row) -> str:
    """The word for a row of the table."""
    return {True: "yes", False: "no", None: "–"}[row.agrees]


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def check(setting: Setting, codes: Sequence[str]) -> list[str]:
    """The codes of a press, each once. Raises ``SettingError`` or ``UnknownMismatchError`` for what cannot be run."""
    check_setting(setting)
    chosen = [code for code in dict.fromkeys(find(code).code for code in codes) if code != MATCHED.code]
    for code in chosen:
        runnable(code, setting)
    wrong = {code.removesuffix(SUFFIX) for code in chosen}
    if len(wrong) > MOST_MISMATCHES:
        raise SettingError(f"{len(wrong)} mismatches in one press. Smallest fix: choose at most {MOST_MISMATCHES}.")
    return chosen


def with_mended(codes: Sequence[str]) -> list[str]:
    """The codes, each with its mended run behind it."""
    return [one for code in codes for one in (code, code.removesuffix(SUFFIX) + SUFFIX)]


def plan(setting: Setting, codes: Sequence[str], runner: Any, *, oracle: bool = False, **wishes: bool) -> list[AnyRun]:
    """The runs of a press, checked and not yet begun: the oracle on request, the right one, the mismatched ones.

    ``wishes``: those of ``Runner.start``, for all but the oracle.

    Raises ``SettingError`` or ``UnknownMismatchError``; then nothing has been started.
    """
    # Checked before the first ``runner.start``, which may have to start the template.
    wanted = [ORACLE] * oracle + [MATCHED.code, *check(setting, codes)]
    return [runner.start(setting, code, **(wishes if code != ORACLE else {})) for code in wanted]


def compare(
    *codes: str,
    setting: Setting | None = None,
    runner: Any = None,
    oracle: bool = False,
    mended: bool = False,
    watch: bool = False,
    progress: Callable[[Comparison, Point | None], None] | None = None,
) -> Comparison:
    """Train the right setting and the mismatches with these codes, with real DeepSpeed, and compare.

    ``oracle``: the full batch in plain PyTorch as well. ``mended``: each mismatch as its entry mends it as well.
    ``watch``: under the live observer.
    ``progress`` is called with the growing comparison at every point. Interrupting cancels all runs. Raises
    ``SettingError``, ``UnknownMismatchError`` or ``RunError``; then nothing has been started.
    """
    setting = Setting() if setting is None else setting
    runner = default_runner() if runner is None else runner
    runs = plan(setting, with_mended(codes) if mended else codes, runner, oracle=oracle, watch=watch)
    comparison = Comparison(setting, [run.result for run in runs])
    with closing(runner.stream(runs)) as events:
        for _, point in events:
            if progress is not None:
                progress(comparison, point)
    return comparison


_DEFAULT: list[Runner] = []


def default_runner() -> Runner:
    """The one runner that all panels and calls of a kernel share."""
    if not _DEFAULT:
        _DEFAULT.append(Runner())
    return _DEFAULT[0]
