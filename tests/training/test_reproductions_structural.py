"""Mistakes of what goes into a window, what is told of it, and what stands around it, in real runs.

Each wrong run does what is worked out here by hand from the data, and what its entry predicted; each mended run ends
where one full batch of plain PyTorch ends.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from dsaccum_helpers.mismatches import find
from dsaccum_helpers.setting import Setting, SettingError
from dsaccum_helpers.training import Comparison, Runner, RunResult
from dsaccum_helpers.training.loops import Oracle, replay
from dsaccum_helpers.training.tasks import fresh_model, load_task

Finish = Callable[..., list[RunResult]]
Block = tuple[int, int, float]  # first sample, samples, weight
Loss = Callable[[Tensor, Tensor], Tensor]

RATE, NORM, INTERVAL = 0.05, 0.1, 10
FP32 = (
    "unweighted-token-mean",
    "logged-loss-scaled",
    "step-unit-confusion",
    "clipping-inside-window",
    "batch-norm-per-micro-batch",
    "auxiliary-loss-unscaled",
    "resume-changed-batch",
)
# ZeRO stage, processes -> micro-batch, accumulation steps G, optimizer steps K. They vary, so that no constant passes.
CASES = {
    (0, 1): (4, 4, 5),
    (0, 2): (2, 4, 4),
    (1, 1): (4, 2, 12),
    (1, 2): (2, 3, 5),
    (2, 1): (2, 4, 5),
    (2, 2): (4, 2, 5),
    (3, 1): (2, 3, 4),
    (3, 2): (2, 4, 5),
}
#: Every run, mended ones too; on the other cells only what may depend on the stage and the number of processes.
WHOLE = ((0, 1), (1, 2), (2, 1), (3, 2))
ELSEWHERE = (
    "clipping-inside-window",
    "batch-norm-per-micro-batch",
    "auxiliary-loss-unscaled",
    "resume-changed-batch",
)
cells = pytest.mark.parametrize("cell", CASES)
whole_cells = pytest.mark.parametrize("cell", WHOLE)


def setting_of(cell: tuple[int, int]) -> Setting:
    micro, count, steps = CASES[cell]
    return Setting(
        train_micro_batch_size_per_gpu=micro,
        gradient_accumulation_steps=count,
        optimizer_steps=steps,
        zero_stage=cell[0],
        processes=cell[1],
        learning_rate=RATE,
    )


def codes_of(cell: tuple[int, int]) -> list[str]:
    return [*(FP32 if cell in WHOLE else ELSEWHERE), *(["pipeline-train-batch"] if cell[0] < 2 else [])]


@dataclass
class Cell:
    """All runs of one ZeRO stage and number of processes."""

    setting: Setting
    comparison: Comparison

    def __getitem__(self, code: str) -> RunResult:
        return self.comparison.result(code)


@pytest.fixture(scope="module")
def trained(finish: Finish) -> dict[tuple[int, int], Cell]:
    wanted = []
    for cell in CASES:
        codes = codes_of(cell)
        mended = [f"{code}:mended" for code in codes] if cell in WHOLE else []
        for code in ("matched", *codes, *mended):
            wanted.append((cell, setting_of(cell), code))
    results = finish(*((setting, code) for _, setting, code in wanted))
    found: dict[tuple[int, int], list[RunResult]] = {}
    for (cell, _, _), result in zip(wanted, results, strict=True):
        found.setdefault(cell, []).append(result)
    return {cell: Cell(setting_of(cell), Comparison(setting_of(cell), every)) for cell, every in found.items()}


# What plain PyTorch says, with nothing of the package but the data and the first weights.


def samples(setting: Setting, start: int, count: int) -> tuple[Tensor, Tensor]:
    task = load_task(setting.task)
    order = torch.randperm(len(task.inputs), generator=torch.Generator().manual_seed(setting.seed))
    chosen = order[start : start + count]
    return task.inputs[chosen], task.targets[chosen]


def flat(tensors: Sequence[Tensor]) -> Tensor:
    return torch.cat([one.detach().flatten() for one in tensors])


def gradient(setting: Setting, model: nn.Module, blocks: Sequence[Block], loss: Loss | None = None) -> Tensor:
    """The weighted sum of the gradients of some blocks of samples, each of which passes the model by itself."""
    model.zero_grad()
    for start, count, weight in blocks:
        inputs, targets = samples(setting, start, count)
        ((loss or nn.functional.cross_entropy)(model(inputs), targets) * weight).backward()
    return flat([parameter.grad for parameter in model.parameters() if parameter.grad is not None])


def train_by_hand(
    setting: Setting, windows: Sequence[Sequence[Block]], model: nn.Module, loss: Loss | None = None, clip: float = 0.0
) -> tuple[float, Tensor]:
    """SGD under the setting's schedule: (norm of the first gradient, weights in the end)."""
    first = 0.0
    for step, blocks in enumerate(windows):
        norm = float(gradient(setting, model, blocks, loss).norm())
        first = first or norm
        rate = RATE * (1 - step / setting.optimizer_steps) * (min(1.0, clip / norm) if clip else 1.0)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= rate * parameter.grad
    return first, flat(list(model.parameters()))


def plain_model(setting: Setting) -> nn.Module:
    return fresh_model(load_task(setting.task), setting)


def with_norm(setting: Setting, norm: nn.Module) -> nn.Module:
    first, *rest = plain_model(setting).children()
    return nn.Sequential(first, norm, *rest)


def full_batches(setting: Setting) -> list[list[Block]]:
    size = setting.train_batch_size
    return [[(step * size, size, 1.0)] for step in range(setting.optimizer_steps)]


def micro_batches(setting: Setting, sizes: Sequence[int], weights: Sequence[float]) -> list[list[Block]]:
    """The blocks of all processes, one by one."""
    start, windows = 0, []
    for _ in range(setting.optimizer_steps):
        blocks = []
        for size, weight in zip(sizes, weights, strict=True):
            for _ in range(setting.processes):
                blocks.append((start, size, weight / setting.processes))
                start += size
        windows.append(blocks)
    return windows


def ends_at(result: RunResult, weights: Tensor, within: float = 1e-6) -> bool:
    return float((torch.from_numpy(result.weights) - weights).abs().max()) <= within


def as_predicted(setting: Setting, code: str) -> Tensor:
    entry = find(code)
    oracle = Oracle(entry.prepare(load_task(setting.task)), setting, torch.device("cpu"))
    for _ in replay(oracle, entry.predict(setting), lambda: None):
        pass
    return flat(oracle.masters)


def first_norm(result: RunResult) -> float:
    assert result.first is not None
    assert result.first.gradient_norm is not None
    return result.first.gradient_norm


# All of them


@cells
def test_every_quantity_is_measured_as_predicted(trained: dict, cell: tuple[int, int]) -> None:
    rows = trained[cell].comparison.rows()
    assert len({row.code for row in rows}) == len(codes_of(cell)) * (2 if cell in WHOLE else 1)
    for row in rows:
        assert row.predicted is not None, row
        assert row.agrees, row


@cells
def test_each_wrong_run_ends_where_plain_pytorch_replays_it(trained: dict, cell: tuple[int, int]) -> None:
    for result in trained[cell].comparison.results:
        assert ends_at(result, as_predicted(result.setting, result.code)), result.code


@whole_cells
def test_each_mended_run_ends_where_the_full_batch_ends(trained: dict, cell: tuple[int, int]) -> None:
    runs, setting = trained[cell], trained[cell].setting
    windows = full_batches(setting)
    _, right = train_by_hand(setting, windows, plain_model(setting))
    for code in codes_of(cell):
        full = right
        if code == "clipping-inside-window":
            _, full = train_by_hand(setting, windows, plain_model(setting), clip=NORM)
        elif code == "batch-norm-per-micro-batch":
            _, full = train_by_hand(setting, windows, with_norm(setting, nn.LayerNorm(96)))
        elif code == "auxiliary-loss-unscaled":
            _, full = train_by_hand(setting, windows, plain_model(setting), auxiliary(0.1))
        assert ends_at(runs[f"{code}:mended"], full), code
        assert len(runs[f"{code}:mended"].steps) == setting.optimizer_steps


# One by one


@whole_cells
def test_unequal_micro_batches_are_averaged_as_equals(trained: dict, cell: tuple[int, int]) -> None:
    setting, result = trained[cell].setting, trained[cell]["unweighted-token-mean"]
    micro, count = setting.train_micro_batch_size_per_gpu, setting.gradient_accumulation_steps
    sizes = {2: [1, 3], 3: [1, 3, 2], 4: [1, 3, 1, 3]}[count]
    windows = micro_batches(setting, [size * micro // 2 for size in sizes], [1 / count] * count)
    first, weights = train_by_hand(setting, windows, plain_model(setting))
    assert first_norm(result) == pytest.approx(first, rel=1e-5)
    assert first_norm(result) != pytest.approx(first_norm(trained[cell]["matched"]), rel=0.01)
    assert ends_at(result, weights)
    assert [point.samples for point in result.steps] == [
        setting.train_batch_size * step for step in range(1, setting.optimizer_steps + 1)
    ]


@whole_cells
def test_the_reported_loss_is_a_share_of_the_loss(trained: dict, cell: tuple[int, int]) -> None:
    setting, result, mended = (
        trained[cell].setting,
        trained[cell]["logged-loss-scaled"],
        trained[cell]["logged-loss-scaled:mended"],
    )
    inputs, targets = samples(setting, 0, setting.train_micro_batch_size_per_gpu)
    loss = nn.functional.cross_entropy(plain_model(setting)(inputs), targets).item()
    assert result.reports[0] == pytest.approx(loss / setting.gradient_accumulation_steps, rel=1e-5)
    assert mended.reports[0] == pytest.approx(loss, rel=1e-5)
    assert len(result.reports) == len(mended.reports) == setting.optimizer_steps * setting.gradient_accumulation_steps
    assert (result.weights == trained[cell]["matched"].weights).all(), "only the report is wrong"


@whole_cells
def test_reports_come_too_seldom_and_training_is_right(trained: dict, cell: tuple[int, int]) -> None:
    setting, result = trained[cell].setting, trained[cell]["step-unit-confusion"]
    assert len(result.reports) == (1 if setting.optimizer_steps == 12 else 0)
    read = setting.optimizer_steps * setting.gradient_accumulation_steps
    assert len(trained[cell]["step-unit-confusion:mended"].reports) == read // INTERVAL >= 1
    assert (result.weights == trained[cell]["matched"].weights).all()


@cells
def test_clipping_a_sum_that_is_not_complete(trained: dict, cell: tuple[int, int]) -> None:
    """Stage 0 clips what the optimizer takes; stage 1 all but the last micro-batch; stages 2 and 3 nothing."""
    setting, result = trained[cell].setting, trained[cell]["clipping-inside-window"]
    right = first_norm(trained[cell]["matched"])
    assert right > 3 * NORM, "this setting would show nothing"
    if cell[0] == 0:
        assert first_norm(result) == pytest.approx(NORM, rel=1e-4)
    elif cell[0] == 1:
        assert first_norm(result) == pytest.approx(clipped_sums(setting), rel=1e-4)
        assert NORM < first_norm(result) < right
    else:
        assert (result.weights == trained[cell]["matched"].weights).all()
        assert first_norm(result) == right


def clipped_sums(setting: Setting) -> float:
    micro, count, processes = CASES[setting.zero_stage, setting.processes][0], *counts(setting)
    total: Tensor | float = 0.0
    for rank in range(processes):
        own: Tensor | float = 0.0
        for turn in range(count):
            if turn:
                own = own * min(1.0, NORM / float(own.norm()))
            place = (turn * processes + rank) * micro
            own = own + gradient(setting, plain_model(setting), [(place, micro, 1 / count)])
        total = total + own / processes
    return float(total.norm())


def counts(setting: Setting) -> tuple[int, int]:
    return setting.gradient_accumulation_steps, setting.processes


@cells
def test_batch_norm_sees_one_micro_batch_of_one_process(trained: dict, cell: tuple[int, int]) -> None:
    setting, result = trained[cell].setting, trained[cell]["batch-norm-per-micro-batch"]
    micro, count = setting.train_micro_batch_size_per_gpu, setting.gradient_accumulation_steps
    windows = micro_batches(setting, [micro] * count, [1 / count] * count)
    first, weights = train_by_hand(setting, windows, with_norm(setting, nn.BatchNorm1d(96)))
    whole = gradient(setting, with_norm(setting, nn.BatchNorm1d(96)), full_batches(setting)[0])
    assert first_norm(result) == pytest.approx(first, rel=1e-5)
    assert first_norm(result) != pytest.approx(float(whole.norm()), rel=0.01)
    assert ends_at(result, weights)


def auxiliary(factor: float) -> Loss:
    return lambda outputs, targets: (
        nn.functional.cross_entropy(outputs, targets) + factor * (outputs * outputs).sum() / outputs.numel()
    )


@cells
def test_the_auxiliary_loss_weighs_as_much_as_there_are_micro_batches(trained: dict, cell: tuple[int, int]) -> None:
    setting, result = trained[cell].setting, trained[cell]["auxiliary-loss-unscaled"]
    times = auxiliary(0.1 * setting.gradient_accumulation_steps)
    first, weights = train_by_hand(setting, full_batches(setting), plain_model(setting), times)
    assert first_norm(result) == pytest.approx(first, rel=1e-5)
    assert ends_at(result, weights)
    assert not ends_at(trained[cell]["matched"], weights, within=1e-4)


@cells
def test_a_resumed_run_makes_fewer_updates_of_twice_the_size(trained: dict, cell: tuple[int, int]) -> None:
    setting, result = trained[cell].setting, trained[cell]["resume-changed-batch"]
    micro, count, steps = CASES[cell]
    # micro-batches: halfway, complete windows before it, lost ones, windows of twice the length behind it
    halfway, before, lost, behind = {
        (4, 5): (10, 2, 2, 1),
        (4, 4): (8, 2, 0, 1),
        (2, 12): (12, 6, 0, 3),
        (3, 5): (7, 2, 1, 1),
        (2, 5): (5, 2, 1, 1),
        (3, 4): (6, 2, 0, 1),
    }[count, steps]
    together = micro * setting.processes
    read = [(u + 1) * count * together for u in range(before)]
    read += [(before * count + lost + 2 * count * (u + 1)) * together for u in range(behind)]
    assert [point.samples for point in result.steps] == read
    assert [point.learning_rate for point in result.steps] == pytest.approx(
        [RATE * (1 - u / steps) for u in range(before + behind)]
    )
    batch = count * together
    assert result.steps[-1].engine_samples == before * batch + behind * 2 * batch, "what was lost is not counted"
    windows = [*full_batches(setting)[:before]]
    windows += [[((halfway + 2 * count * u) * together, 2 * batch, 1.0)] for u in range(behind)]
    assert ends_at(result, train_by_hand(setting, windows, plain_model(setting))[1])
    assert result.first == trained[cell]["matched"].first


@pytest.mark.parametrize("cell", [cell for cell in CASES if cell[0] < 2])
def test_train_batch_once_for_each_micro_batch(trained: dict, cell: tuple[int, int]) -> None:
    setting, runs = trained[cell].setting, trained[cell]
    result, steps = runs["pipeline-train-batch"], setting.optimizer_steps
    assert len(result.steps) == steps * setting.gradient_accumulation_steps
    assert result.steps[-1].samples == setting.train_batch_size * len(result.steps)
    assert [point.learning_rate for point in result.steps[steps:]] == [0.0] * (len(result.steps) - steps)
    assert result.steps[-1].loss == result.steps[steps - 1].loss == pytest.approx(runs["matched"].steps[-1].loss)
    assert {point.update_norm for point in result.steps[steps:]} == {0.0}


# bf16

LONG = Setting(
    dtype="bf16",
    train_micro_batch_size_per_gpu=1,
    gradient_accumulation_steps=64,
    optimizer_steps=1,
    learning_rate=RATE,
)
SUMS = [LONG.change(zero_stage=stage, processes=count) for stage in range(4) for count in (1, 2)]


@pytest.fixture(scope="module")
def sums(finish: Finish) -> list[tuple[RunResult, RunResult]]:
    results = finish(
        *((setting, code) for setting in SUMS for code in ("accumulation-dtype", "accumulation-dtype:mended"))
    )
    return list(zip(results[::2], results[1::2], strict=True))


def error_of_sum() -> float:
    """64 gradients of a bf16 model, added up in bf16 against the same in fp32; SGD makes the update of it."""
    rounded, exact = plain_model(LONG).bfloat16(), plain_model(LONG).bfloat16()
    total: Tensor | float = 0.0
    for place in range(64):
        inputs, targets = samples(LONG, place, 1)
        inputs = inputs.bfloat16()
        (nn.functional.cross_entropy(rounded(inputs), targets) / 64).backward()
        exact.zero_grad()
        (nn.functional.cross_entropy(exact(inputs), targets) / 64).backward()
        total = total + flat([parameter.grad for parameter in exact.parameters()]).float()
    mine = flat([parameter.grad for parameter in rounded.parameters()]).float()
    return float((mine - total).norm() / total.norm())


def test_a_sum_in_16_bits_is_off_by_what_plain_pytorch_rounds_away(sums: list) -> None:
    by_hand = error_of_sum()
    assert 0.004 < by_hand < 0.03
    for wrong, mended in sums:
        setting = wrong.setting
        if setting.processes == 1:
            assert wrong.first_error == pytest.approx(by_hand, rel=0.01), setting
        assert wrong.first_error == pytest.approx(wrong.expected.first_error, rel=0.01), setting
        assert ends_at(wrong, as_predicted(setting, wrong.code), within=1e-8), setting
        assert mended.first_error == pytest.approx(mended.expected.first_error, rel=0.01, abs=1e-6), setting
        # What is left is the rounding of what the processes exchange; alone, ZeRO-2 and 3 exchange nothing.
        most = 1e-6 if setting.zero_stage > 1 and setting.processes == 1 else 0.004
        assert mended.first_error <= min(most, wrong.first_error / 2), setting
        assert ends_at(mended, as_predicted(setting, mended.code), within=1e-8), setting


def test_adam_begins_one_step_ahead_in_bf16_at_stage_0(finish: Finish) -> None:
    """Its corrections count from two: (0.1 / 0.19) / sqrt(0.001 / 0.001999) = 0.744 of the right first update."""
    for processes in (1, 2):
        setting = LONG.change(
            optimizer="Adam", gradient_accumulation_steps=4, processes=processes, optimizer_steps=3, learning_rate=0.001
        )
        codes = ("matched", "known-bad-version", "known-bad-version:mended")
        results = finish(*((setting, code) for code in codes))
        comparison = Comparison(setting, results)
        ratio = {row.code: row.measured for row in comparison.rows() if row.quantity == "× first update norm"}
        assert ratio["known-bad-version"] == pytest.approx((0.1 / 0.19) / math.sqrt(0.001 / 0.001999), rel=0.005)
        assert ratio["known-bad-version:mended"] == pytest.approx(1.0, rel=0.005)
        assert all(row.agrees for row in comparison.rows())
        for result in results[1:]:
            assert ends_at(result, as_predicted(setting, result.code)), result.code


# Where a setting cannot show it


@pytest.mark.parametrize(
    ("code", "changes", "words"),
    [
        ("pipeline-train-batch", {"zero_stage": 2}, "ZeRO-2 is refused by the pipeline engine"),
        ("pipeline-train-batch", {"task": "language"}, "Smallest fix: task 'digits'."),
        ("batch-norm-per-micro-batch", {"task": "regression"}, "Smallest fix: task 'digits'."),
        ("batch-norm-per-micro-batch", {"dtype": "bf16"}, "Smallest fix: dtype 'fp32'."),
        ("batch-norm-per-micro-batch", {"train_micro_batch_size_per_gpu": 1}, "One sample has no variance."),
        ("accumulation-dtype", {}, "Smallest fix: dtype 'bf16'."),
        ("known-bad-version", {"dtype": "bf16"}, "optimizer 'Adam' and zero_stage 0."),
        ("unweighted-token-mean", {"train_micro_batch_size_per_gpu": 5}, "train_micro_batch_size_per_gpu 6."),
        ("resume-changed-batch", {"optimizer_steps": 3}, "Smallest fix: optimizer_steps 4."),
        ("step-unit-confusion", {"optimizer_steps": 2}, "Smallest fix: optimizer_steps 3."),
        ("clipping-inside-window:mended", {"gradient_accumulation_steps": 1}, "nothing to accumulate"),
    ],
)
def test_a_setting_that_shows_nothing_is_refused_before_it_runs(
    runner: Runner, code: str, changes: dict, words: str
) -> None:
    with pytest.raises(SettingError, match=words) as caught:
        runner.start(Setting().change(**changes), code)
    assert "Smallest fix: " in str(caught.value)


def test_a_resumed_run_leaves_no_checkpoint(runner: Runner, finish: Finish) -> None:
    places = Path(tempfile.gettempdir()), runner.ready().folder
    before = [set(places[0].glob("checkpoint-*")), set(places[1].rglob("*.pt"))]
    finish((Setting(task="regression", optimizer_steps=4, zero_stage=1), "resume-changed-batch"))
    assert [set(places[0].glob("checkpoint-*")), set(places[1].rglob("*.pt"))] == before
