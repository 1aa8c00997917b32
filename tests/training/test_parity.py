"""Accumulation is the full batch: DeepSpeed's weights against plain PyTorch's, every run against its own repetition."""

from __future__ import annotations

from collections.abc import Callable

import numpy
import pytest
import torch

from dsaccum_helpers.setting import Setting
from dsaccum_helpers.training import RunResult
from dsaccum_helpers.training.tasks import Task, load_task

Finish = Callable[..., list[RunResult]]
Oracle = Callable[[Setting], RunResult]

BATCH = 32
ACCUMULATIONS = (1, 2, 4, 8)
UPDATES = 20
EXACT = 1e-6


def splits(setting: Setting, processes: int) -> list[Setting]:
    """The same 32 samples an update in every split: (32, 1), (16, 2), (8, 4) and (4, 8), divided over the processes."""
    return [
        setting.change(
            train_micro_batch_size_per_gpu=BATCH // count // processes,
            gradient_accumulation_steps=count,
            processes=processes,
        )
        for count in ACCUMULATIONS
    ]


def distance(one: RunResult, other: RunResult) -> float:
    assert one.weights.shape == other.weights.shape
    assert one.weights.dtype == other.weights.dtype == numpy.float32
    return float(numpy.abs(one.weights - other.weights).max())


def spread(one: RunResult, other: RunResult) -> float:
    return float(numpy.sqrt(numpy.mean((one.weights - other.weights) ** 2)))


def assert_same_points(one: RunResult, other: RunResult, relative: float) -> None:
    """Apart from rounding; what is counted must be the same."""
    assert len(one.points) == len(other.points)
    for mine, theirs in zip(one.points, other.points, strict=True):
        assert (mine.step, mine.samples, mine.engine_samples) == (theirs.step, theirs.samples, theirs.engine_samples)
        for name in ("loss", "gradient_norm", "update_norm", "learning_rate")[: None if mine.step else 1]:
            assert getattr(mine, name) == pytest.approx(getattr(theirs, name), rel=relative), (mine.step, name)


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize("task", ["regression", "digits"])
def test_every_split_ends_at_the_weights_of_the_full_batch(
    finish: Finish, oracle: Oracle, task: str, optimizer: str, zero_stage: int
) -> None:
    setting = Setting(task=task, optimizer=optimizer, zero_stage=zero_stage, optimizer_steps=UPDATES)
    if optimizer == "Adam":
        # torch's own rate. Adam divides a gradient by its size, so where one is hardly larger than its rounding, the
        # weight moves by a share of the rate that only the order of the sum decides; a large rate would amplify it.
        setting = setting.change(learning_rate=0.001)
    full = oracle(splits(setting, 1)[0])
    assert len(full.steps) == UPDATES
    for result in finish(*splits(setting, 1), *splits(setting, 2)):
        assert distance(result, full) <= EXACT, result.setting
        assert_same_points(result, full, 1e-5)


def start_of(setting: Setting, finish: Finish) -> RunResult:
    """The weights before training: one update so small that fp32 does not see it."""
    (start,) = finish((setting.change(optimizer_steps=1, learning_rate=1e-30), "oracle"))
    return start


@pytest.mark.parametrize("task", ["regression", "digits"])
@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
def test_twenty_updates_move_the_weights_far_beyond_the_tolerance(
    finish: Finish, oracle: Oracle, task: str, optimizer: str
) -> None:
    """Otherwise the test above would hold for runs that do nothing; and a wrong scale would be seen by it."""
    setting = splits(Setting(task=task, optimizer=optimizer, optimizer_steps=UPDATES), 1)[2]
    full = oracle(setting)
    assert distance(full, start_of(setting, finish)) > 10_000 * EXACT
    (wrong,) = finish((setting, "loss-divided-twice" if optimizer == "SGD" else "loader-batch-differs"))
    assert distance(wrong, full) > 100 * EXACT


@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_clipping_and_a_constant_rate_are_those_of_plain_pytorch(
    finish: Finish, oracle: Oracle, zero_stage: int
) -> None:
    """Clipped at a tenth, below the norm of every gradient here."""
    setting = Setting(
        zero_stage=zero_stage, optimizer_steps=UPDATES, gradient_clipping=0.1, schedule="constant", learning_rate=0.2
    )
    full = oracle(splits(setting, 1)[2])
    assert min(point.gradient_norm for point in full.steps) > 0.1
    assert [point.update_norm for point in full.steps] == pytest.approx([0.1 * 0.2] * UPDATES, rel=1e-4)
    for result in finish(splits(setting, 1)[2], splits(setting, 2)[2]):
        assert distance(result, full) <= EXACT
        assert_same_points(result, full, 1e-5)
        assert {point.learning_rate for point in result.steps} == {0.2}


def plain_training(task: Task, setting: Setting) -> tuple[list[float], numpy.ndarray]:
    """Without the package's oracle, loader or schedule: the losses of the full batches, and the last weights."""
    torch.manual_seed(setting.seed)
    model = task.make_model()
    given = setting.ds_config()["optimizer"]["params"]
    options = {name: given[name] for name in ("lr", "betas", "eps") if name in given}
    optimizer = getattr(torch.optim, setting.optimizer)(model.parameters(), **options)
    order = torch.randperm(len(task.inputs), generator=torch.Generator().manual_seed(setting.seed)).repeat(2)
    losses = []
    for step in range(setting.optimizer_steps):
        optimizer.param_groups[0]["lr"] = setting.rate * (1 - step / setting.optimizer_steps)
        chosen = order[step * BATCH : (step + 1) * BATCH]
        loss = task.criterion(model(task.inputs[chosen]), task.targets[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        with torch.no_grad():
            losses.append(float(task.criterion(model(task.evaluation_inputs), task.evaluation_targets)))
    return losses, torch.cat([p.detach().flatten() for p in model.parameters()]).numpy()


@pytest.mark.parametrize("optimizer", ["SGD", "Adam"])
@pytest.mark.parametrize("task", ["regression", "digits"])
def test_the_oracle_is_plain_pytorch(oracle: Oracle, task: str, optimizer: str) -> None:
    setting = splits(Setting(task=task, optimizer=optimizer, optimizer_steps=UPDATES, seed=3), 1)[0]
    losses, weights = plain_training(load_task(task), setting)
    full = oracle(setting)
    assert [point.loss for point in full.steps] == pytest.approx(losses, rel=1e-6)
    assert numpy.abs(full.weights - weights).max() <= EXACT


def bf16_tolerance(setting: Setting) -> float:
    """How far from the oracle a bf16 run may end, as a share of the distance that the weights move.

    bf16 keeps 8 significant bits, so each rounding is off by at most 2**-9 of a value. A gradient is rounded on its way
    through the layers (six matrix products) and once for each micro-batch that is added, and the terms are larger than
    their sum (a factor of two). The fp32 masters lose nothing. Under SGD the weights part by that share. Adam divides
    each gradient by its own size, so where one is no larger than its rounding, even the direction is left to chance.
    """
    if setting.optimizer == "Adam":
        return 1 / 8
    return (setting.gradient_accumulation_steps * setting.processes + 6) * 2.0**-8


@pytest.mark.parametrize(
    ("optimizer", "zero_stage"), [("SGD", 0), ("SGD", 1), ("SGD", 2), ("SGD", 3), ("Adam", 1), ("Adam", 2)]
)
def test_bf16_ends_near_the_bf16_oracle(finish: Finish, oracle: Oracle, optimizer: str, zero_stage: int) -> None:
    setting = Setting(optimizer=optimizer, zero_stage=zero_stage, dtype="bf16", optimizer_steps=UPDATES)
    one, two = splits(setting, 1), splits(setting, 2)
    full = oracle(one[0])
    moved = spread(full, start_of(one[0], finish))
    alone, *accumulated = finish(one[0], one[2], two[2])
    assert distance(alone, full) == 0.0, "no sum is rounded anywhere: the same to the bit"
    for result in accumulated:
        assert spread(result, full) <= bf16_tolerance(result.setting) * moved, result.setting
        assert result.points[-1].loss == pytest.approx(full.points[-1].loss, rel=0.05)


def test_adam_in_bf16_at_stage_0_begins_a_step_ahead(finish: Finish, oracle: Oracle) -> None:
    """DeepSpeed 0.19 takes one Adam step with an empty gradient when it makes its bf16 optimizer at stage 0.

    So Adam's own corrections count from two: the first update is (0.1 / 0.19) / sqrt(0.001 / 0.001999) = 0.744 of the
    right one, and the weights part by more than rounding. Gradients and ratios between runs are as everywhere.
    """
    setting = splits(Setting(optimizer="Adam", dtype="bf16", optimizer_steps=UPDATES), 1)[2]
    full = oracle(setting)
    for result in finish(setting, splits(setting, 2)[2]):
        assert result.first is not None
        assert result.first.gradient_norm == pytest.approx(full.first.gradient_norm, rel=0.01)
        assert result.first.update_norm / full.first.update_norm == pytest.approx(0.7441, rel=0.01)
        assert result.points[-1].loss == pytest.approx(full.points[-1].loss, rel=0.2)


def test_the_language_model_learns_and_agrees(finish: Finish, oracle: Oracle) -> None:
    setting = Setting(
        task="language", train_micro_batch_size_per_gpu=4, processes=2, zero_stage=1, optimizer_steps=UPDATES
    )
    (result,) = finish(setting)
    losses = [point.loss for point in result.points]
    assert numpy.isfinite(losses).all()
    assert losses[0] == pytest.approx(numpy.log(96), rel=0.1)  # untrained: every one of 96 characters alike
    assert losses[-1] < 0.9 * losses[0]
    assert distance(result, oracle(setting)) <= EXACT


@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("zero_stage", [0, 1, 2, 3])
def test_the_same_setting_gives_the_same_points_to_the_bit(finish: Finish, zero_stage: int, processes: int) -> None:
    setting = splits(Setting(zero_stage=zero_stage, optimizer_steps=2), processes)[1]
    half = setting.change(dtype="bf16")
    first, again, first_half, again_half = finish(setting, setting, half, half)
    for one, other in ((first, again), (first_half, again_half)):
        assert one.points == other.points
        assert (one.weights == other.weights).all()
        assert one.expected == other.expected
    assert first.points != first_half.points


@pytest.mark.parametrize(
    "change", [{"seed": 1}, {"learning_rate": 0.123}, {"task": "regression"}, {"optimizer": "Adam"}]
)
def test_another_setting_gives_other_points(finish: Finish, change: dict[str, object]) -> None:
    """Otherwise runs that ignore their setting would repeat themselves as well."""
    setting = Setting(optimizer_steps=1)
    first, other = finish(setting, setting.change(**change))
    assert [p.update_norm for p in first.points] != [p.update_norm for p in other.points]
