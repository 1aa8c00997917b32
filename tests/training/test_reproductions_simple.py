"""Loop and config mistakes in real runs, against windows that are worked out by hand and trained in plain PyTorch."""

from __future__ import annotations

import base64
from collections.abc import Callable
from functools import cache

import hjson
import numpy
import pytest
import torch

from dsaccum_helpers.mismatches import find
from dsaccum_helpers.setting import Setting, SettingError
from dsaccum_helpers.training import Comparison, Runner, RunResult
from dsaccum_helpers.training.tasks import load_task

RATE, MICRO, STEPS = 0.1, 4, 5
# ZeRO stage, processes -> accumulation steps: they vary, so that no constant passes.
COUNTS = {(0, 1): 4, (0, 2): 2, (1, 1): 3, (1, 2): 4, (2, 1): 2, (2, 2): 3, (3, 1): 4, (3, 2): 2}
CASES = list(COUNTS)
SILENT = (
    *("zero-grad-inside-window", "sticky-boundary-override", "caller-owned-boundary", "several-backwards-per-step"),
    *("micro-batch-skipped", "optimizer-step-bypasses-engine", "backward-bypasses-engine"),
    *("no-sync-with-partitioned-gradients", "batch-value-type", "unknown-config-key"),
)
OWN_MENDED_LOOP = ("sticky-boundary-override", "caller-owned-boundary", "several-backwards-per-step")
REFUSED = (
    *("batch-not-divisible", "batch-below-world-size", "model-parallel-world", "elasticity"),
    *("auto-without-trainer", "config-unreadable", "world-size-seen-as-one"),
)
#: Where the engine stops the loop, and with which words.
STOPPED = {
    "optimizer-step-bypasses-engine": ((1, 2), "KeyError: 0"),
    "backward-bypasses-engine": (
        (0,),
        "RuntimeError: Direct calls to tensor.backward() are not supported in this configuration. This occurs when "
        "either: (1) your PyTorch version lacks required internal APIs, or (2) using ZeRO stage 0. Please use "
        "engine.backward(loss) instead.",
    ),
    "no-sync-with-partitioned-gradients": (
        (2, 3),
        "AssertionError: no_sync context manager is incompatible with gradient partitioning logic of ZeRO stage {}",
    ),
}
Window = list[tuple[int, float]]


def setting_of(stage: int, processes: int) -> Setting:
    return Setting(
        train_micro_batch_size_per_gpu=MICRO,
        gradient_accumulation_steps=COUNTS[stage, processes],
        processes=processes,
        zero_stage=stage,
        optimizer_steps=STEPS,
        learning_rate=RATE,
    )


@pytest.fixture(scope="module")
def results(runner: Runner) -> Callable[[int, int], dict[str, RunResult]]:
    """Every run of a stage and a number of processes, trained once."""

    @cache
    def ask(stage: int, processes: int) -> dict[str, RunResult]:
        setting = setting_of(stage, processes)
        mended = OWN_MENDED_LOOP if (stage + processes) % 2 else SILENT if (stage, processes) == (2, 2) else ()
        codes = ["matched", *SILENT, *(f"{code}:mended" for code in mended)]
        runs = [runner.start(setting, code, keep_weights=True, to_the_end=True) for code in codes]
        for _ in runner.stream(runs):
            pass
        assert all(run.result.ended in ("finished", "refused") for run in runs), [run.result.sentence for run in runs]
        return {run.result.code: run.result for run in runs}

    return ask


def by_hand(code: str, stage: int, count: int) -> tuple[list[Window], list[float]]:
    """The micro-batches of each update with their weights, and its learning rate; none where the engine stops."""
    read = list(range(count * STEPS))
    falling = [RATE * max(0.0, 1 - update / STEPS) for update in read]
    right = [[(update * count + i, 1 / count) for i in range(count)] for update in range(STEPS)]
    last = [window[-1:] for window in right]
    if code in STOPPED and stage in STOPPED[code][0]:
        return [], []
    if code == "zero-grad-inside-window":
        return (last if stage in (0, 1) else right), falling[:STEPS]
    if code == "several-backwards-per-step":
        quarter = [[(i, weight / 4) for i, weight in window] for window in last]
        return (quarter if stage in (1, 2) else right), falling[:STEPS]
    if code == "caller-owned-boundary":
        return [[(i, weight / count) for i, weight in window] for window in right], falling[:STEPS]
    if code == "sticky-boundary-override":
        return [[(i, 1 / count)] for i in read], falling
    if code == "optimizer-step-bypasses-engine":
        return [[(i, 1 / count)] for i in read], [RATE] * len(read)
    if code == "unknown-config-key":
        return [[(i, 1.0)] for i in read], falling
    if code == "micro-batch-skipped":
        kept = [i for i in read if i not in (1, 6, 11, 16)]
        windows = [kept[at : at + count] for at in range(0, len(kept) - count + 1, count)]
        return [[(i, 1 / count) for i in window] for window in windows], falling[: len(windows)]
    if code == "batch-value-type":
        length = 2 * count + 1
        starts = range(0, len(read) - length + 1, length)
        return [[(at + i, 1 / (count + 0.5)) for i in range(length)] for at in starts], falling[: len(starts)]
    return right, falling[:STEPS]


class Plain:
    """Plain PyTorch with SGD, from windows of (micro-batch, weight)."""

    def __init__(self, setting: Setting, *, first_rank_only: bool = False) -> None:
        self.task, self.together = load_task(setting.task), MICRO * setting.processes
        self.size = MICRO if first_rank_only else self.together
        torch.manual_seed(setting.seed)
        self.model = self.task.make_model()
        self.order = torch.randperm(len(self.task.inputs), generator=torch.Generator().manual_seed(setting.seed))

    def gradient(self, window: Window) -> list[torch.Tensor]:
        self.model.zero_grad()
        for i, weight in window:
            chosen = self.order[i * self.together : i * self.together + self.size]
            loss = self.task.criterion(self.model(self.task.inputs[chosen]), self.task.targets[chosen])
            (weight * loss).backward()
        return [parameter.grad.clone() for parameter in self.model.parameters()]

    def norm(self, window: Window) -> float:
        return float(torch.cat([part.flatten() for part in self.gradient(window)]).double().norm())

    def train(self, windows: list[Window], rates: list[float]) -> numpy.ndarray:
        for window, rate in zip(windows, rates, strict=True):
            parts = self.gradient(window)
            with torch.no_grad():
                for parameter, part in zip(self.model.parameters(), parts, strict=True):
                    parameter -= rate * part
        return torch.cat([parameter.detach().flatten() for parameter in self.model.parameters()]).numpy()


@pytest.mark.parametrize(("stage", "processes"), CASES)
@pytest.mark.parametrize("code", SILENT)
def test_a_mistake_does_what_is_worked_out_by_hand(
    results: Callable[[int, int], dict[str, RunResult]], code: str, stage: int, processes: int
) -> None:
    setting, result = setting_of(stage, processes), results(stage, processes)[code]
    windows, rates = by_hand(code, stage, COUNTS[stage, processes])
    assert len(result.steps) == len(windows)
    if not windows:
        assert result.ended == "refused"
        return
    together = MICRO * processes
    assert [point.samples for point in result.steps] == [(window[-1][0] + 1) * together for window in windows]
    assert [point.learning_rate for point in result.steps] == pytest.approx(rates, abs=1e-12)
    # At stage 0 the processes of an optimizer that is stepped directly never hear of each other.
    alone = code == "optimizer-step-bypasses-engine" and stage == 0
    assert result.first.gradient_norm == pytest.approx(Plain(setting, first_rank_only=alone).norm(windows[0]), rel=1e-4)
    weights = Plain(setting, first_rank_only=alone).train(windows, rates)
    assert numpy.abs(numpy.asarray(result.weights) - weights).max() < 1e-6


#: First gradient norm over that of the right run, where it does not depend on the data.
RATIOS = {
    "caller-owned-boundary": {stage: lambda count: 1 / count for stage in range(4)},
    "several-backwards-per-step": {stage: lambda count: 1 for stage in (0, 3)},
    "zero-grad-inside-window": {stage: lambda count: 1 for stage in (2, 3)},
    "backward-bypasses-engine": {stage: lambda count: 1 for stage in (1, 2, 3)},
    "no-sync-with-partitioned-gradients": {stage: lambda count: 1 for stage in (0, 1)},
}


@pytest.mark.parametrize(("stage", "processes"), CASES)
def test_ratios_that_no_data_can_change(
    results: Callable[[int, int], dict[str, RunResult]], stage: int, processes: int
) -> None:
    runs = results(stage, processes)
    right = runs["matched"].first.gradient_norm
    for code, stages in RATIOS.items():
        if stage in stages:
            ratio = runs[code].first.gradient_norm / right
            assert ratio == pytest.approx(stages[stage](COUNTS[stage, processes]), rel=1e-5), code
    # A micro-batch with its whole gradient, and the same divided by the count: sticky boundary and misspelt key.
    ratio = runs["unknown-config-key"].first.gradient_norm / runs["sticky-boundary-override"].first.gradient_norm
    assert ratio == pytest.approx(COUNTS[stage, processes], rel=1e-5)


@pytest.mark.parametrize(("stage", "processes"), CASES)
def test_every_prediction_agrees_with_its_run(
    results: Callable[[int, int], dict[str, RunResult]], stage: int, processes: int
) -> None:
    rows = Comparison(setting_of(stage, processes), list(results(stage, processes).values())).rows()
    for row in rows:
        stopped = stage in STOPPED.get(row.code, ((),))[0]
        counts = row.quantity in ("optimizer steps", "samples used")
        assert row.agrees is (None if stopped and not counts else True), row
    distances = {row.code for row in rows if row.quantity == "distance of the weights"}
    assert distances >= {code for code in SILENT if stage not in STOPPED.get(code, ((),))[0]}


def changes_nothing(code: str, stage: int) -> bool:
    """A mistake that trains right at this stage: its weights are the right ones."""
    return stage in {
        "zero-grad-inside-window": (2, 3),
        "several-backwards-per-step": (0, 3),
        "backward-bypasses-engine": (1, 2, 3),
        "no-sync-with-partitioned-gradients": (0, 1),
    }.get(code, ())


@pytest.mark.parametrize(("stage", "processes"), CASES)
def test_mended_runs_end_with_the_weights_of_the_full_batch(
    results: Callable[[int, int], dict[str, RunResult]],
    oracle: Callable[[Setting], RunResult],
    stage: int,
    processes: int,
) -> None:
    full = numpy.asarray(oracle(setting_of(stage, processes)).weights)
    mended = 0
    for code, result in results(stage, processes).items():
        if result.ended == "refused":
            continue
        away = numpy.abs(numpy.asarray(result.weights) - full).max()
        if code == "matched" or code.endswith(":mended") or changes_nothing(code, stage):
            assert away < 1e-6, code
            mended += code.endswith(":mended")
        else:
            assert away > 1e-3, code
    assert mended == (3 if (stage + processes) % 2 else 10 if (stage, processes) == (2, 2) else 0)


@pytest.mark.parametrize("code", STOPPED)
def test_the_engine_stops_the_loop_with_these_words(
    results: Callable[[int, int], dict[str, RunResult]], code: str
) -> None:
    stages, words = STOPPED[code]
    for stage in stages:
        for processes in (1, 2):
            result = results(stage, processes)[code]
            assert (result.ended, result.steps, result.expected) == ("refused", [], None)
            assert result.engine_words == words.format(stage)
            assert result.sentence == "DeepSpeed stopped the loop before its first update; nothing was trained."
            assert result.our_words.startswith(f"At ZeRO stage {stage} ")
            assert "Smallest fix: " in result.our_words


@pytest.fixture(scope="module")
def refusals(runner: Runner) -> dict[tuple[str, int, int], RunResult]:
    """The configs that ``deepspeed.initialize`` does not take; what needs two processes is left out on one."""
    runs, alone = [], []
    for stage, processes in ((0, 1), (1, 2)):
        for code in REFUSED:
            try:
                runs.append(runner.start(setting_of(stage, processes), code))
            except SettingError as error:
                alone.append((code, processes, "Smallest fix: processes 2." in str(error)))
    assert set(alone) == {("model-parallel-world", 1, True), ("world-size-seen-as-one", 1, True)}
    for _ in runner.stream(runs):
        pass
    return {(run.result.code, run.result.setting.zero_stage, run.result.setting.processes): run.result for run in runs}


def product(train: int, micro: int, steps: int, world: str) -> str:
    return (
        "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
        f"gradient_acc_step * world_size {train} != {micro} * {steps} * {world}"
    )


def test_refused_configs_are_refused_in_these_words(refusals: dict[tuple[str, int, int], RunResult]) -> None:
    assert len(refusals) == 2 * len(REFUSED) - 2
    for (code, stage, processes), result in refusals.items():
        count = COUNTS[stage, processes]
        train = MICRO * count * processes
        words = {
            "batch-not-divisible": product(train + 1, MICRO, count, f"{processes}"),
            "batch-below-world-size": "AssertionError: Gradient accumulation steps: 0 has to be greater than 0",
            "model-parallel-world": product(train, MICRO, count, "1.0"),
            "world-size-seen-as-one": product(train, MICRO, count, "1"),
            "elasticity": (
                "DeepSpeedConfigError: Elastic training has been removed; the 'elasticity' configuration block is no "
                "longer supported. Set train_batch_size / train_micro_batch_size_per_gpu / gradient_accumulation_steps "
                "directly."
            ),
            "auto-without-trainer": "TypeError: '>' not supported between instances of 'str' and 'int'",
        }
        assert (result.ended, result.points, result.expected) == ("refused", [], None), code
        assert result.sentence == "DeepSpeed refused the configuration; nothing was trained.", code
        assert "Smallest fix: " in result.our_words, code
        if code in words:
            assert result.engine_words == words[code], code


def test_our_words_name_the_numbers(refusals: dict[tuple[str, int, int], RunResult]) -> None:
    # 4 samples x 4 accumulation steps x 2 processes are 32.
    words = refusals["batch-not-divisible", 1, 2].our_words
    assert words.startswith("train_batch_size 33 divided by 8 (4 samples per micro-batch x 2 processes) leaves")
    assert "Smallest fix: train_batch_size 32 (32 = 4 x 4 x 2)" in words
    words = refusals["batch-below-world-size", 1, 2].our_words
    assert words.startswith("train_batch_size 7 is smaller than 8 (4 samples per micro-batch x 2 processes)")


def test_a_config_that_is_cut_off_is_answered_with_a_message_about_paths(
    refusals: dict[tuple[str, int, int], RunResult],
) -> None:
    result = refusals["config-unreadable", 0, 1]
    start, _, received = result.engine_words.partition(" Received: ")
    assert start == (
        "ValueError: Expected a string path to an existing deepspeed config, or a dictionary or a valid base64."
    )
    text = base64.urlsafe_b64decode(received).decode()
    assert text == (
        '{"train_batch_size": 16, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4, '
        '"gradient_clipping": 0.0'
    )
    with pytest.raises(hjson.HjsonDecodeError):
        hjson.loads(text)
    assert hjson.loads(text + "}")["train_batch_size"] == 16, "nothing but the end is missing"


def test_a_code_that_no_run_shows_says_why(runner: Runner) -> None:
    reason = find("world-size-disagreement").not_reproduced
    assert "time-out" in reason
    with pytest.raises(SettingError, match="DistStoreError"):
        runner.start(setting_of(0, 2), "world-size-disagreement")
