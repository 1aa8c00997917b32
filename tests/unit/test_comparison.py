"""Predicted beside measured, by hand, and the runner that replays: no training, no torch."""

from __future__ import annotations

import threading

import pytest

from dsaccum_helpers.mismatches import RUNNABLE, UnknownMismatchError
from dsaccum_helpers.setting import Setting, SettingError
from dsaccum_helpers.training import Comparison, Expected, Point, RecordedRunner, Row, RunResult, compare
from dsaccum_helpers.training.comparison import agreement, number, planned_micro_batches

SETTING = Setting(train_micro_batch_size_per_gpu=2, gradient_accumulation_steps=4, optimizer_steps=2, learning_rate=0.5)


def point(step: int, norm: float = 1.0, rate: float = 0.5, samples: int | None = None) -> Point:
    if step == 0:
        return Point(0, 3.0, None, None, None, 0, 0, 0.0)
    return Point(
        step, 3.0 - step, norm, norm * rate, rate, step * 8 if samples is None else samples, step * 8, 0.1 * step
    )


def finished(code: str, *points: Point, expected: Expected | None = None, read: int = 8) -> RunResult:
    return RunResult(
        code,
        SETTING,
        [point(0), *points],
        expected,
        "finished",
        f"Finished: {len(points)} optimizer steps.",
        micro_batches_read=read,
    )


MATCHED = finished("matched", point(1), point(2, rate=0.25), expected=Expected(1.0, 0.5, 1.0, 0.5))
DIVIDED = finished(
    "loss-divided-twice", point(1, norm=0.25), point(2, norm=0.25, rate=0.25), expected=Expected(0.25, 0.125, 1.0, 0.5)
)
REFUSED = RunResult(
    "batch-product-mismatch", SETTING, ended="refused", sentence="DeepSpeed refused.", engine_words="9 != 8"
)
RECORDED = [MATCHED, DIVIDED, REFUSED]


@pytest.mark.parametrize(
    ("predicted", "measured", "agrees"),
    [
        (100.0, 101.0, True),
        (100.0, 99.0, True),
        (100.0, 101.1, False),
        (100.0, 98.9, False),
        (-100.0, -100.5, True),
        (-100.0, 100.0, False),
        (0, 0, True),
        (0.0, 1e-6, False),
        (1e-9, 2e-9, False),
        (4, 4, True),
        (4, 3, False),
        (1.0, float("nan"), False),
        (1.0, float("inf"), False),
        (None, 1.0, None),
        (1.0, None, None),
        (None, None, None),
    ],
)
def test_agreement_is_one_per_cent(predicted: float | None, measured: float | None, agrees: bool | None) -> None:
    row = Row("code", "quantity", predicted, measured)
    assert row.agrees is agrees
    assert agreement(row) == {True: "yes", False: "no", None: "–"}[agrees]


def test_the_longest_code_does_not_run_into_the_next_column() -> None:
    longest = "no-sync-with-partitioned-gradients"
    first, *lines = str(Comparison(SETTING, [MATCHED, finished(longest, point(1), point(2))])).splitlines()
    column = first.index("quantity")
    assert sum(line[: column - 1].strip() == longest for line in lines) >= 2
    assert all(line[column - 1] == " " for line in lines)


def test_rows_by_hand() -> None:
    rows = Comparison(SETTING, RECORDED).rows("loss-divided-twice")
    assert [(row.quantity, row.predicted, row.measured) for row in rows] == [
        ("× first gradient norm", 0.25, 0.25),
        ("× first update norm", 0.25, 0.25),
        ("optimizer steps", 2, 2),
        ("samples used", 16, 16),
        ("samples per step", 8.0, 8.0),
        ("× mean learning rate", 1.0, 1.0),
    ]
    assert all(row.agrees for row in rows)


def test_a_refused_run_has_counts_and_no_norms() -> None:
    rows = {row.quantity: row for row in Comparison(SETTING, RECORDED).rows("batch-product-mismatch")}
    assert (rows["optimizer steps"].predicted, rows["optimizer steps"].measured) == (0, 0)
    assert rows["samples used"].agrees is True
    assert rows["× first gradient norm"].agrees is rows["samples per step"].agrees is None


def test_while_a_run_goes_on_its_counts_are_not_compared() -> None:
    going = RunResult("loss-divided-twice", SETTING, [point(0), point(1, norm=0.3)], micro_batches_read=4)
    comparison = Comparison(SETTING, [MATCHED, going])
    rows = {row.quantity: row for row in comparison.rows()}
    assert rows["× first gradient norm"].measured == pytest.approx(0.3)
    assert rows["× first gradient norm"].predicted is None, "plain PyTorch has not been asked yet"
    assert rows["optimizer steps"].measured is None
    assert not comparison.done
    assert comparison.progress == pytest.approx((1 + 4 / 8) / 2)


def test_a_wrong_measurement_is_shown_as_no() -> None:
    wrong = finished("loss-divided-twice", point(1), point(2), expected=DIVIDED.expected)
    rows = Comparison(SETTING, [MATCHED, wrong]).rows()
    assert [row.agrees for row in rows if "norm" in row.quantity] == [False, False]
    assert "no" in str(Comparison(SETTING, [MATCHED, wrong]))


def test_the_table_is_text_and_html() -> None:
    comparison = Comparison(SETTING, RECORDED)
    text, html = str(comparison), comparison._repr_html_()
    for part in ("loss-divided-twice", "× first gradient norm", "0.25", "DeepSpeed refused."):
        assert part in text
    assert html.count("<tr>") == 1 + 2 * 6
    assert "<caption>" in html
    assert html.count("<td>") == 5 * 2 * 6


def test_results_are_found_by_their_code() -> None:
    comparison = Comparison(SETTING, RECORDED)
    assert comparison.matched is MATCHED
    assert comparison.result("loss-divided-twice") is DIVIDED
    with pytest.raises(KeyError):
        comparison.result("oracle")


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "–"), (12345.0, "12,345"), (16, "16"), (0.25, "0.25"), (3.16149, "3.161"), (9, "9"), (float("nan"), "nan")],
)
def test_numbers_are_short(value: float | None, text: str) -> None:
    assert number(value) == text


@pytest.mark.parametrize(
    ("code", "planned"), [("matched", 8), ("guarded-engine-step", 8), ("leftover-micro-batches", 6), ("oracle", 2)]
)
def test_planned_micro_batches(code: str, planned: int) -> None:
    assert planned_micro_batches(RunResult(code, SETTING)) == planned


def test_replaying_gives_what_was_recorded_point_by_point() -> None:
    seen = []
    comparison = compare(
        "loss-divided-twice",
        "batch-product-mismatch",
        setting=SETTING,
        runner=RecordedRunner(RECORDED),
        progress=lambda comparison, point: seen.append((sum(len(r.points) for r in comparison.results), point)),
    )
    assert [result.points for result in comparison.results] == [MATCHED.points, DIVIDED.points, []]
    assert [result.ended for result in comparison.results] == ["finished", "finished", "refused"]
    assert comparison.result("batch-product-mismatch").engine_words == "9 != 8"
    assert [count for count, point in seen if point is not None] == [1, 2, 3, 4, 5, 6]
    assert sum(point is None for _, point in seen) == 3
    assert all(row.agrees is not False for row in comparison.rows())
    # Replaying does not write into what was recorded.
    assert len(MATCHED.points) == 3


def test_replaying_can_be_cancelled() -> None:
    runner = RecordedRunner(RECORDED)
    first, second = runner.start(SETTING), runner.start(SETTING, "loss-divided-twice")
    for run, one in runner.stream([first, second]):
        if one is not None and one.step == 1:
            run.cancel()
            second.cancel()
    assert (first.result.ended, first.result.sentence) == ("cancelled", "Stopped after 1 optimizer steps.")
    assert (second.result.ended, second.result.sentence) == ("cancelled", "Stopped before it began.")


def test_replaying_keeps_its_delay() -> None:
    runner = RecordedRunner(RECORDED, delay=60)
    run = runner.start(SETTING)
    ended = threading.Event()
    thread = threading.Thread(target=lambda: (list(runner.stream([run])), ended.set()), daemon=True)
    thread.start()
    assert not ended.wait(0.1)
    assert run.result.points == []


def test_a_press_is_checked_before_any_runner_is_asked() -> None:
    class Untouchable:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"the runner was asked for {name}")

    six = [code for code in RUNNABLE if not RUNNABLE[code].refused][:6]
    with pytest.raises(SettingError, match=r"6 mismatches in one press\. Smallest fix: choose at most 5"):
        compare(*six, setting=SETTING, runner=Untouchable())
    with pytest.raises(SettingError, match=r"two-boundary-counters: It needs an Accelerate.* Smallest fix: one of"):
        compare("two-boundary-counters", setting=SETTING, runner=Untouchable())
    with pytest.raises(UnknownMismatchError, match="nonsense"):
        compare("loss-divided-twice", "nonsense", setting=SETTING, runner=Untouchable())
    with pytest.raises(SettingError, match="nothing to accumulate"):
        compare("scheduler-unit", setting=SETTING.change(gradient_accumulation_steps=1), runner=Untouchable())


def test_a_code_given_twice_runs_once_and_matched_is_always_there() -> None:
    comparison = compare(
        "loss-divided-twice", "matched", "loss-divided-twice", setting=SETTING, runner=RecordedRunner(RECORDED)
    )
    assert [result.code for result in comparison.results] == ["matched", "loss-divided-twice"]


def test_what_was_not_recorded_is_said() -> None:
    with pytest.raises(SettingError, match="guarded-engine-step was not recorded"):
        RecordedRunner(RECORDED).start(SETTING, "guarded-engine-step")
