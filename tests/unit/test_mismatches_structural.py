"""What the entries about windows, reports and whole runs predict, worked out by hand; no torch."""

from __future__ import annotations

import pytest

from dsaccum_helpers.mismatches import Prediction, find
from dsaccum_helpers.setting import Setting
from dsaccum_helpers.training import Comparison, RunResult
from dsaccum_helpers.training.comparison import leaves_right_run
from dsaccum_helpers.training.events import Expected

# 24 samples an update in windows of 3 on 2 processes; 11 updates, 33 micro-batches.
SETTING = Setting(
    train_micro_batch_size_per_gpu=4,
    gradient_accumulation_steps=3,
    processes=2,
    optimizer_steps=11,
    learning_rate=1.1,
)
third, sixth = 1 / 3, 1 / 6


def predicted(code: str, setting: Setting = SETTING) -> Prediction:
    return find(code).predict(setting)


def test_unequal_micro_batches_weigh_alike_until_mended() -> None:
    wrong, mended = predicted("unweighted-token-mean"), predicted("unweighted-token-mean:mended")
    assert next(wrong.windows()) == [(2, third), (6, third), (4, third)]
    assert next(mended.windows()) == [(2, pytest.approx(sixth)), (6, pytest.approx(0.5)), (4, pytest.approx(third))]
    assert wrong.samples == mended.samples == 264
    even = SETTING.change(gradient_accumulation_steps=4)
    assert [size for size, _ in next(predicted("unweighted-token-mean", even).windows())] == [2, 6, 2, 6]


def test_the_report_alone_is_wrong() -> None:
    right = predicted("matched")
    for code, wrong, mended in (
        ("logged-loss-scaled", (33, third), (33, 1.0)),
        ("step-unit-confusion", (1, None), (3, None)),
    ):
        for name, told in ((code, wrong), (f"{code}:mended", mended)):
            found = predicted(name)
            assert (found.reports, found.reported) == told
            assert list(found.windows()) == list(right.windows())
            assert found.learning_rates == right.learning_rates


@pytest.mark.parametrize(
    ("stage", "exchanges", "inner", "boundary"),
    [(0, "sums", 0.1, True), (1, "sums", 0.1, False), (2, "", 0.0, False), (3, "", 0.0, False)],
)
def test_what_is_clipped_depends_on_the_stage(stage: int, exchanges: str, inner: float, boundary: bool) -> None:
    setting = SETTING.change(zero_stage=stage, gradient_clipping=0.7)
    wrong, mended = predicted("clipping-inside-window", setting), predicted("clipping-inside-window:mended", setting)
    assert (wrong.exchanges, wrong.inner_clipping, wrong.boundary_clipping) == (exchanges, inner, boundary)
    assert wrong.gradient_clipping == 0.0
    assert mended.gradient_clipping == 0.1
    assert find("clipping-inside-window").config(setting)["gradient_clipping"] == 0.0
    assert find("clipping-inside-window:mended").config(setting)["gradient_clipping"] == 0.1


@pytest.mark.parametrize(("stage", "mended_stage", "exchanges"), [(0, 1, "sums"), (1, 1, "sums"), (3, 3, "each")])
def test_sums_in_16_bits(stage: int, mended_stage: int, exchanges: str) -> None:
    setting = SETTING.change(zero_stage=stage, dtype="bf16")
    wrong, mended = predicted("accumulation-dtype", setting), predicted("accumulation-dtype:mended", setting)
    assert (wrong.exchanges, wrong.fp32_sums) == (exchanges, False)
    assert (mended.exchanges, mended.fp32_sums) == (exchanges, True)
    config = find("accumulation-dtype:mended").config(setting)
    assert config["data_types"] == {"grad_accum_dtype": "fp32"}
    assert config["zero_optimization"] == {"stage": mended_stage}
    assert "data_types" not in find("accumulation-dtype").config(setting)


def test_the_auxiliary_loss_weighs_three_times_as_much() -> None:
    wrong, mended = predicted("auxiliary-loss-unscaled"), predicted("auxiliary-loss-unscaled:mended")
    assert (wrong.auxiliary, mended.auxiliary) == (3.0, 1.0)
    assert wrong.weights == mended.weights == (third,) * 3


def test_a_resumed_run_loses_what_was_not_complete() -> None:
    """Saved behind 16 of 33 micro-batches: 5 windows and one micro-batch; 17 more hold 2 windows of 6."""
    wrong = predicted("resume-changed-batch")
    assert [[weight for _, weight in window] for window in wrong.windows()] == [
        *[[third] * 3] * 5,
        [0.0] + [sixth] * 6,
        [sixth] * 6,
    ]
    assert wrong.optimizer_steps == 7
    assert wrong.samples == (15 + 1 + 12) * 4 * 2
    assert wrong.learning_rates == pytest.approx((1.1, 1.0, 0.9, 0.8, 0.7, 0.6, 0.5))
    assert predicted("resume-changed-batch:mended") == predicted("matched")


def test_train_batch_for_each_micro_batch_makes_three_times_the_updates() -> None:
    entry, wrong = find("pipeline-train-batch"), predicted("pipeline-train-batch")
    assert wrong.optimizer_steps == 33
    assert wrong.learning_rates[:11] == predicted("matched").learning_rates
    assert set(wrong.learning_rates[11:]) == {0.0}
    assert wrong.samples == 33 * 24
    assert entry.micro_batches_read(SETTING) == 99
    assert find("pipeline-train-batch:mended").micro_batches_read(SETTING) == 33
    assert entry.pipeline is find("pipeline-train-batch:mended").pipeline is True


def test_one_step_with_an_empty_gradient() -> None:
    setting = SETTING.change(dtype="bf16", optimizer="Adam")
    assert predicted("known-bad-version", setting).empty_step is True
    assert predicted("known-bad-version:mended", setting).empty_step is False
    assert find("known-bad-version:mended").config(setting)["zero_optimization"] == {"stage": 1}


def rows_of(code: str, result: RunResult) -> dict[str, tuple[float | None, float | None, bool | None]]:
    matched = RunResult("matched", SETTING, ended="finished")
    rows = Comparison(SETTING, [matched, result]).rows(code)
    return {row.quantity: (row.predicted, row.measured, row.agrees) for row in rows}


def test_what_a_script_reports_is_a_row() -> None:
    expected = Expected(1.0, 1.0, 1.0, 1.0, first_loss=2.4)
    result = RunResult("logged-loss-scaled", SETTING, expected=expected, ended="finished", reports=[0.8] * 33)
    rows = rows_of(result.code, result)
    assert rows["reports"] == (33, 33, True)
    assert rows["× first loss, as reported"] == (third, pytest.approx(third), True)
    seldom = RunResult("step-unit-confusion", SETTING, expected=expected, ended="finished", reports=[0.8, 0.7])
    assert rows_of(seldom.code, seldom)["reports"] == (1, 2, False)
    assert rows_of(seldom.code, RunResult(seldom.code, SETTING))["reports"] == (1, None, None), "not over yet"


def test_the_direction_of_the_first_update_is_a_row_where_it_was_measured() -> None:
    expected = Expected(1.0, 1.0, 1.0, 1.0, first_error=0.009)
    result = RunResult("accumulation-dtype", SETTING, expected=expected, ended="finished", first_error=0.00903)
    assert rows_of(result.code, result)["error of the first update"] == (0.009, 0.00903, True)
    result.first_error = 0.0092
    assert rows_of(result.code, result)["error of the first update"][2] is False
    result.first_error = None
    assert "error of the first update" not in rows_of(result.code, result)


@pytest.mark.parametrize(
    "code",
    ["batch-norm-per-micro-batch", "auxiliary-loss-unscaled:mended", "known-bad-version", "known-bad-version:mended"],
)
def test_the_full_batch_is_the_measure_where_the_right_run_is_none(code: str) -> None:
    assert leaves_right_run(code)
    assert not leaves_right_run("accumulation-dtype")
    assert not leaves_right_run("clipping-inside-window:mended")


@pytest.mark.parametrize(
    "code",
    [
        "unweighted-token-mean",
        "logged-loss-scaled",
        "step-unit-confusion",
        "clipping-inside-window",
        "auxiliary-loss-unscaled",
        "resume-changed-batch",
        "pipeline-train-batch",
    ],
)
def test_a_loop_is_short_enough_to_be_read(code: str) -> None:
    assert 6 <= len(find(code).loop_source().splitlines()) <= 12
