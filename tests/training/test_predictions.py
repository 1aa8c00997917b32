"""The mismatches of the course's second notebook in real runs: as predicted within one per cent, and by hand here.

The others are in test_reproductions_simple.py and test_reproductions_structural.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch

from dsaccum_helpers.mismatches import RUNNABLE
from dsaccum_helpers.setting import Setting
from dsaccum_helpers.training import Comparison, Point, RunError, Runner, RunResult, compare
from dsaccum_helpers.training.tasks import load_task

Finish = Callable[..., list[RunResult]]
CODES = (
    *("batch-product-mismatch", "written-for-other-world-size", "loader-batch-differs", "leftover-micro-batches"),
    *("loss-divided-twice", "guarded-engine-step", "manual-accumulation", "scheduler-unit", "clipping-hides-scale"),
)

QUANTITIES = {
    *("× first gradient norm", "× first update norm", "× mean learning rate"),
    *("optimizer steps", "samples used", "samples per step"),
}
# ZeRO stage, processes -> task, micro-batch, accumulation steps G, optimizer steps K.
# G varies, so that no constant passes.
CASES = {
    (0, 1): ("digits", 4, 4, 9),
    (0, 2): ("digits", 4, 2, 5),
    (1, 1): ("regression", 2, 8, 17),
    (1, 2): ("digits", 2, 4, 5),
    (2, 1): ("digits", 8, 2, 7),
    (2, 2): ("digits", 4, 2, 5),
    (3, 1): ("digits", 2, 8, 8),
    (3, 2): ("digits", 4, 2, 4),
}


def train(setting: Setting, finish: Finish) -> Comparison:
    """The right run and all of them."""
    return Comparison(setting, finish(setting, *((setting, code) for code in CODES), keep_weights=False))


def assert_rows_agree(comparison: Comparison, but: tuple[str, ...] = ()) -> None:
    """Nothing may be missing but what a refused run cannot have."""
    rows = comparison.rows()
    assert {(row.code, row.quantity) for row in rows} == {(code, name) for code in CODES for name in QUANTITIES}
    for row in rows:
        if RUNNABLE[row.code].refused and row.quantity not in ("optimizer steps", "samples used"):
            assert (row.predicted, row.measured) == (None, None), row
        else:
            assert row.predicted is not None, row
            assert row.measured is not None, row
            assert abs(row.measured - row.predicted) <= 0.01 * abs(row.predicted), row
            assert row.agrees is True


def first(result: RunResult) -> Point:
    assert result.first is not None
    return result.first


def norm_of_last_micro_batch(setting: Setting) -> float:
    """The gradient of the last micro-batches of the first window alone, straight from the data."""
    task = load_task(setting.task)
    torch.manual_seed(setting.seed)
    model = task.make_model()
    order = torch.randperm(len(task.inputs), generator=torch.Generator().manual_seed(setting.seed))
    together = setting.train_micro_batch_size_per_gpu * setting.processes
    chosen = order[setting.train_batch_size - together : setting.train_batch_size]
    task.criterion(model(task.inputs[chosen]), task.targets[chosen]).backward()
    return math.sqrt(sum(float(p.grad.double().square().sum()) for p in model.parameters()))


@pytest.mark.parametrize(("zero_stage", "processes"), CASES)
def test_the_catalogue_keeps_its_word(finish: Finish, zero_stage: int, processes: int) -> None:
    task, micro, count, steps = CASES[zero_stage, processes]
    setting = Setting(
        task=task,
        train_micro_batch_size_per_gpu=micro,
        gradient_accumulation_steps=count,
        processes=processes,
        zero_stage=zero_stage,
        optimizer_steps=steps,
        learning_rate=0.03,
    )
    comparison = train(setting, finish)
    assert_rows_agree(comparison)
    for check in (
        check_matched,
        check_refused,
        check_loader,
        check_leftover,
        check_divided,
        check_guarded,
        check_manual,
        check_scheduler,
        check_clipping,
    ):
        check(comparison, setting)


def check_matched(comparison: Comparison, setting: Setting) -> None:
    matched, batch, steps = comparison.matched, setting.train_batch_size, setting.optimizer_steps
    assert [point.step for point in matched.points] == list(range(steps + 1))
    assert [point.samples for point in matched.points] == [batch * step for step in range(steps + 1)]
    assert [point.engine_samples for point in matched.points] == [batch * step for step in range(steps + 1)]
    assert [point.learning_rate for point in matched.steps] == pytest.approx(
        [0.03 * (1 - u / steps) for u in range(steps)]
    )
    start = matched.points[0]
    assert (start.gradient_norm, start.update_norm, start.learning_rate) == (None, None, None)
    # SGD: the update is the rate times the gradient.
    for point in matched.steps:
        assert point.update_norm == pytest.approx(point.learning_rate * point.gradient_norm, rel=1e-3)
    assert matched.expected.gradient_norm == pytest.approx(first(matched).gradient_norm, rel=1e-4)
    assert matched.micro_batches_read == steps * setting.gradient_accumulation_steps


def check_refused(comparison: Comparison, setting: Setting) -> None:
    micro, count, processes = (
        setting.train_micro_batch_size_per_gpu,
        setting.gradient_accumulation_steps,
        setting.processes,
    )
    product = micro * count * processes
    for code, number in (("batch-product-mismatch", product + 1), ("written-for-other-world-size", 2 * product)):
        result = comparison.result(code)
        assert (result.ended, result.points, result.expected) == ("refused", [], None)
        assert result.sentence == "DeepSpeed refused the configuration; nothing was trained."
        # Word for word what DeepSpeed 0.19 says (line breaks apart).
        assert result.engine_words == (
            "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
            f"gradient_acc_step * world_size {number} != {micro} * {count} * {processes}"
        )
        samples, steps = "samples" if micro > 1 else "sample", "accumulation steps"
        assert result.our_words.startswith(
            f"train_batch_size {number} is not {micro} {samples} per micro-batch x {count} {steps}"
        )
        assert f"= {product}" in result.our_words
        assert "Smallest fix: " in result.our_words


def check_loader(comparison: Comparison, setting: Setting) -> None:
    steps = comparison.result("loader-batch-differs").steps
    assert len(steps) == setting.optimizer_steps
    assert [point.samples for point in steps] == [2 * setting.train_batch_size * point.step for point in steps]
    assert [2 * point.engine_samples for point in steps] == [point.samples for point in steps]


def check_leftover(comparison: Comparison, setting: Setting) -> None:
    """Epochs of one window and a half; two updates an epoch were planned."""
    result, count = comparison.result("leftover-micro-batches"), setting.gradient_accumulation_steps
    epochs = math.ceil(setting.optimizer_steps / 2)
    read = epochs * (count + count // 2)
    assert result.micro_batches_read == read
    assert len(result.steps) == math.floor(read / count) < setting.optimizer_steps
    last = 0.03 * (1 - (len(result.steps) - 1) / setting.optimizer_steps)
    assert result.steps[-1].learning_rate == pytest.approx(last)
    assert first(result) == first(comparison.matched), "the first window is a right one"


def check_divided(comparison: Comparison, setting: Setting) -> None:
    result, count = comparison.result("loss-divided-twice"), setting.gradient_accumulation_steps
    right = first(comparison.matched)
    assert first(result).gradient_norm / right.gradient_norm == pytest.approx(1 / count, rel=1e-4)
    assert first(result).update_norm / right.update_norm == pytest.approx(1 / count, rel=1e-3)
    assert [p.learning_rate for p in result.steps] == [p.learning_rate for p in comparison.matched.steps]


def check_guarded(comparison: Comparison, setting: Setting) -> None:
    """One update for G × G micro-batches, while the engine believes in G."""
    steps, count = comparison.result("guarded-engine-step").steps, setting.gradient_accumulation_steps
    assert len(steps) == setting.optimizer_steps // count
    assert [p.samples for p in steps] == [setting.train_batch_size * count * p.step for p in steps]
    assert [p.engine_samples for p in steps] == [setting.train_batch_size * p.step for p in steps]


def check_manual(comparison: Comparison, setting: Setting) -> None:
    result, count = comparison.result("manual-accumulation"), setting.gradient_accumulation_steps
    ratio = first(result).gradient_norm / first(comparison.matched).gradient_norm
    if setting.zero_stage in (0, 3):
        assert ratio == pytest.approx(count, rel=1e-4)
    else:
        assert ratio != pytest.approx(count, rel=0.05)
        assert first(result).gradient_norm == pytest.approx(norm_of_last_micro_batch(setting), rel=1e-4)
    assert len(result.steps) == setting.optimizer_steps
    assert [p.samples for p in result.steps] == [setting.train_batch_size * p.step for p in result.steps]
    assert [p.engine_samples * count for p in result.steps] == [p.samples for p in result.steps]


def check_scheduler(comparison: Comparison, setting: Setting) -> None:
    steps, count = comparison.result("scheduler-unit").steps, setting.gradient_accumulation_steps
    by_hand = [
        max(0.0, 0.03 * (1 - ((u + 1) * count - 1) / setting.optimizer_steps)) for u in range(setting.optimizer_steps)
    ]
    assert [point.learning_rate for point in steps] == pytest.approx(by_hand, abs=1e-12)
    assert steps[-1].update_norm == 0.0
    assert steps[-1].loss == steps[-2].loss


def check_clipping(comparison: Comparison, setting: Setting) -> None:
    """The sum over the window, clipped at DeepSpeed's default of 1.0 where it is longer."""
    result, count = comparison.result("clipping-hides-scale"), setting.gradient_accumulation_steps
    assert first(result).gradient_norm / first(comparison.matched).gradient_norm == pytest.approx(count, rel=1e-4)
    for point in result.steps:
        assert point.update_norm == pytest.approx(point.learning_rate * min(1.0, point.gradient_norm), rel=1e-3)
    assert first(result).gradient_norm > 1.0, "this setting would show nothing"


@pytest.mark.parametrize(("zero_stage", "processes"), [(0, 2), (1, 1), (3, 1)])
def test_adam_with_clipping_is_predicted_as_well(finish: Finish, zero_stage: int, processes: int) -> None:
    setting = Setting(
        optimizer="Adam",
        gradient_clipping=0.05,
        train_micro_batch_size_per_gpu=4,
        gradient_accumulation_steps=2,
        processes=processes,
        zero_stage=zero_stage,
        optimizer_steps=2,
    )
    comparison = train(setting, finish)
    assert_rows_agree(comparison)
    norms = {row.code: row.measured for row in comparison.rows() if row.quantity == "× first gradient norm"}
    assert norms["loss-divided-twice"] == pytest.approx(0.5, rel=1e-3), "measured before clipping"
    updates = {row.code: row.measured for row in comparison.rows() if row.quantity == "× first update norm"}
    assert updates["loss-divided-twice"] == pytest.approx(1.0, rel=1e-3), "Adam hides it"


@pytest.mark.parametrize(("zero_stage", "processes"), [(0, 1), (1, 2), (2, 1), (3, 2)])
def test_bf16_ratios_are_those_of_the_catalogue(finish: Finish, zero_stage: int, processes: int) -> None:
    """Within a few per cent: a bf16 gradient has eight significant bits."""
    setting = Setting(
        dtype="bf16",
        train_micro_batch_size_per_gpu=8,
        gradient_accumulation_steps=2,
        processes=processes,
        zero_stage=zero_stage,
        optimizer_steps=2,
    )
    codes = ("loss-divided-twice", "guarded-engine-step", "manual-accumulation", "clipping-hides-scale")
    rows = Comparison(setting, finish(setting, *((setting, code) for code in codes), keep_weights=False)).rows()
    assert len(rows) == 4 * len(QUANTITIES)
    for row in rows:
        assert row.measured == pytest.approx(row.predicted, rel=0.03), row


def test_a_window_longer_than_the_whole_run_never_updates(finish: Finish) -> None:
    setting = Setting(gradient_accumulation_steps=4, optimizer_steps=3, train_micro_batch_size_per_gpu=2)
    matched, guarded = finish(setting, (setting, "guarded-engine-step"))
    assert (guarded.steps, guarded.sentence) == ([], "Finished: 0 optimizer steps.")
    assert guarded.expected.gradient_norm is None
    rows = {row.quantity: (row.predicted, row.measured) for row in Comparison(setting, [matched, guarded]).rows()}
    assert rows["optimizer steps"] == rows["samples used"] == (0, 0)
    assert rows["× first gradient norm"] == rows["samples per step"] == (None, None)


def test_compare_trains_the_right_run_and_five_mismatches_in_one_press(runner: Runner) -> None:
    setting = Setting(task="regression", optimizer_steps=4, gradient_accumulation_steps=2)
    codes = [
        "loss-divided-twice",
        "batch-product-mismatch",
        "guarded-engine-step",
        "scheduler-unit",
        "clipping-hides-scale",
    ]
    shares: list[float] = []
    seen: list[int] = []

    def watch(comparison: Comparison, point: Point | None) -> None:
        shares.append(comparison.progress)
        seen.append(sum(len(result.points) for result in comparison.results))

    comparison = compare(*codes, setting=setting, runner=runner, oracle=True, progress=watch)
    assert [result.code for result in comparison.results] == ["oracle", "matched", *codes]
    assert comparison.done
    assert [result.ended for result in comparison.results] == [*["finished"] * 3, "refused", *["finished"] * 3]
    assert shares == sorted(shares)
    assert (shares[0] < 0.5, shares[-1]) == (True, 1.0)
    assert seen == sorted(seen), "every point is told when it has been added"
    assert all(row.agrees is not False for row in comparison.rows())
    assert all(row.agrees for row in comparison.rows("matched"))


def test_a_process_that_cannot_start_is_one_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    """DeepSpeed missing is the commonest case: shadow it by a module that fails as a missing one does."""
    (tmp_path / "deepspeed.py").write_text("raise ModuleNotFoundError(\"No module named 'deepspeed'\")")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    broken = Runner()
    with pytest.raises(RunError) as caught:
        broken.ready()
    assert str(caught.value) == (
        "Training needs a package that is missing (ModuleNotFoundError: No module named 'deepspeed'). "
        "Smallest fix: make install."
    )
    broken.close()
