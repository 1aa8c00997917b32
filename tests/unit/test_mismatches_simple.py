"""Loop and config mistakes by hand: what they need, what they write, what they call, and what they come to."""

from __future__ import annotations

import ast
import base64
from types import SimpleNamespace

import pytest

from dsaccum_helpers.batch import KEYS, BatchError, resolve_batch
from dsaccum_helpers.mismatches import find
from dsaccum_helpers.setting import Setting

# 12 samples an update in windows of 3 on 2 processes; 10 updates; the rate falls from 1.0 to 0.1.
SETTING = Setting(
    train_micro_batch_size_per_gpu=2,
    gradient_accumulation_steps=3,
    processes=2,
    optimizer_steps=10,
    learning_rate=1.0,
)
TRAIN, MICRO, COUNT = KEYS
THIRD = 1 / 3


# stages, weights of the first update, updates, samples
@pytest.mark.parametrize(
    ("code", "stages", "weights", "updates", "samples"),
    [
        ("zero-grad-inside-window", (0, 1), (0, 0, THIRD), 10, 120),
        ("zero-grad-inside-window", (2, 3), (THIRD,) * 3, 10, 120),
        ("sticky-boundary-override", (0, 1, 2, 3), (THIRD,), 30, 120),
        ("caller-owned-boundary", (0, 1, 2, 3), (1 / 9,) * 3, 10, 120),
        ("several-backwards-per-step", (0, 3), (THIRD,) * 3, 10, 120),
        ("several-backwards-per-step", (1, 2), (0, 0, 1 / 12), 10, 120),
        # 30 micro-batches without 1, 6, 11, 16, 21 and 26 are 24: eight windows, the last one of 27, 28 and 29.
        ("micro-batch-skipped", (0, 1, 2, 3), (THIRD, 0, THIRD, THIRD), 8, 120),
        ("optimizer-step-bypasses-engine", (0, 3), (THIRD,), 30, 120),
        ("optimizer-step-bypasses-engine", (1, 2), (THIRD,), 0, 0),
        ("backward-bypasses-engine", (0,), (THIRD,) * 3, 0, 0),
        ("backward-bypasses-engine", (1, 2, 3), (THIRD,) * 3, 10, 120),
        ("no-sync-with-partitioned-gradients", (0, 1), (THIRD,) * 3, 10, 120),
        ("no-sync-with-partitioned-gradients", (2, 3), (THIRD,) * 3, 0, 0),
        # 3.5: windows of 7, four of them in 30 micro-batches.
        ("batch-value-type", (0, 1, 2, 3), (1 / 3.5,) * 7, 4, 112),
        ("unknown-config-key", (0, 1, 2, 3), (1,), 30, 120),
        *((code, (0, 1, 2, 3), (THIRD,) * 3, 0, 0) for code in ("elasticity", "config-unreadable")),
    ],
)
def test_predictions_by_hand(
    code: str, stages: tuple[int, ...], weights: tuple[float, ...], updates: int, samples: int
) -> None:
    for stage in stages:
        prediction = find(code).predict(SETTING.change(zero_stage=stage))
        assert prediction.weights == pytest.approx(weights)
        assert (prediction.optimizer_steps, prediction.samples) == (updates, samples)
        assert len(prediction.learning_rates) == updates
        assert prediction.refused == (updates == 0)
        assert prediction.first_rank_only == (code == "optimizer-step-bypasses-engine" and stage == 0)


def test_learning_rates_of_too_many_updates() -> None:
    falling = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1]
    for code in ("sticky-boundary-override", "unknown-config-key"):
        assert find(code).predict(SETTING).learning_rates == pytest.approx([*falling, *[0.0] * 20])
    assert find("optimizer-step-bypasses-engine").predict(SETTING).learning_rates == (1.0,) * 30


def test_windows_behind_a_micro_batch_that_is_left() -> None:
    windows = list(find("micro-batch-skipped").predict(SETTING).windows())
    read = [[weight > 0 for _, weight in window] for window in windows]
    assert read[:4] == [[True, False, True, True], [True, True, False, True], [True] * 3, [False, True, True, True]]
    by_hand, left = [], {1, 6, 11, 16, 21, 26}
    window: list[bool] = []
    for i in range(30):
        window.append(i not in left)
        if sum(window) == 3:
            by_hand.append(window)
            window = []
    assert read == by_hand
    assert len(read) == 8


def test_one_micro_batch_an_update_is_another_case() -> None:
    one = SETTING.change(gradient_accumulation_steps=1)
    for code in (
        *("zero-grad-inside-window", "sticky-boundary-override", "caller-owned-boundary", "micro-batch-skipped"),
        *("no-sync-with-partitioned-gradients", "unknown-config-key"),
    ):
        assert "Smallest fix: gradient_accumulation_steps 2." in find(code).needs(one)
        assert find(code).needs(SETTING) is None
    for stage in range(4):
        at = one.change(zero_stage=stage)
        # Its window is always complete: the optimizer can be stepped, only the schedule stands still.
        prediction = find("optimizer-step-bypasses-engine").predict(at)
        assert (prediction.weights, prediction.optimizer_steps) == ((1.0,), 10)
        assert (prediction.learning_rates, prediction.first_rank_only) == ((1.0,) * 10, False)
        last = find("several-backwards-per-step").predict(at)
        assert last.weights == ((0.25,) if stage in (1, 2) else (1.0,))
        assert find("batch-value-type").predict(at).weights == pytest.approx((1 / 1.5,) * 3)


@pytest.mark.parametrize(
    ("code", "alone", "remedy"),
    [
        (
            "batch-not-divisible",
            {"train_micro_batch_size_per_gpu": 1, "processes": 1},
            "train_micro_batch_size_per_gpu 2",
        ),
        ("batch-below-world-size", {"train_micro_batch_size_per_gpu": 1, "processes": 1}, "processes 2"),
        ("model-parallel-world", {"processes": 1}, "processes 2"),
        ("model-parallel-world", {"processes": 5}, "processes 6"),
        ("world-size-seen-as-one", {"processes": 1}, "processes 2"),
    ],
)
def test_what_a_config_needs(code: str, alone: dict[str, int], remedy: str) -> None:
    assert find(code).needs(SETTING.change(**alone)).endswith(f"Smallest fix: {remedy}.")
    assert find(code).needs(SETTING) is None


def test_stops_say_what_to_do() -> None:
    for code, stages in (
        ("optimizer-step-bypasses-engine", (1, 2)),
        ("backward-bypasses-engine", (0,)),
        ("no-sync-with-partitioned-gradients", (2, 3)),
    ):
        for stage in range(4):
            words = find(code).stops(SETTING.change(zero_stage=stage))
            assert (words is not None) == (stage in stages)
            if words:
                assert f"ZeRO stage {stage}" in words
                assert "Smallest fix: " in words


def test_configs_by_hand() -> None:
    right = SETTING.ds_config()
    config = {code: find(code).config(SETTING) for code in CONFIGS}
    for code, changed in CONFIGS.items():
        assert config[code] == {k: v for k, v in (right | changed).items() if v is not None}, code


CONFIGS = {
    "batch-not-divisible": {TRAIN: 13, COUNT: None},
    "batch-below-world-size": {TRAIN: 3, COUNT: None},
    "model-parallel-world": {"sequence_parallel_size": 2},
    "elasticity": {"elasticity": {"enabled": True, "max_train_batch_size": 12, "micro_batch_sizes": [2]}},
    "auto-without-trainer": {TRAIN: "auto", MICRO: "auto", COUNT: "auto"},
    "batch-value-type": {TRAIN: None, COUNT: 3.5},
    "unknown-config-key": {TRAIN: None, COUNT: None, "gradient_accumulation_step": 3},
    "caller-owned-boundary": {"managed_gradient_accumulation": False},
    "world-size-seen-as-one": {},
}


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("batch-not-divisible", "batch-not-divisible"),
        ("batch-below-world-size", "batch-below-world-size"),
        ("auto-without-trainer", "batch-value-type"),
        ("batch-value-type", "batch-value-type"),
    ],
)
@pytest.mark.parametrize(("micro", "count", "processes"), [(1, 1, 2), (2, 3, 2), (5, 4, 1), (3, 1, 8)])
def test_the_arithmetic_names_the_same_fault(code: str, found: str, micro: int, count: int, processes: int) -> None:
    setting = Setting(
        train_micro_batch_size_per_gpu=micro, gradient_accumulation_steps=count, processes=processes, optimizer_steps=2
    )
    config = find(code).config(setting)
    with pytest.raises(BatchError) as caught:
        resolve_batch(*(config.get(key) for key in KEYS), world_size=processes)
    assert caught.value.code == found


def test_a_cut_config_ends_behind_its_numbers() -> None:
    text = base64.urlsafe_b64decode(find("config-unreadable").config(SETTING)).decode()
    assert text.startswith('{"train_batch_size": 12, "train_micro_batch_size_per_gpu": 2, ')
    assert text.endswith('"gradient_accumulation_steps": 3, "gradient_clipping": 0.0')


class Engine:
    """Counts what a loop calls, on itself, on its optimizer and on its loss."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        note = self.calls.append
        self.optimizer = SimpleNamespace(
            step=lambda: note("optimizer step"), zero_grad=lambda: note("optimizer zero_grad")
        )

    def __call__(self, inputs: float) -> float:
        self.calls.append("forward")
        return inputs

    def backward(self, loss: float, **options: object) -> None:
        self.calls.append(f"backward {loss:g}" + "".join(f" {key}={value}" for key, value in options.items()))

    def step(self) -> None:
        self.calls.append("step")

    def zero_grad(self) -> None:
        self.calls.append("zero_grad")

    def set_gradient_accumulation_boundary(self, is_boundary: bool) -> None:
        self.calls.append(f"boundary {is_boundary}")

    def no_sync(self) -> Engine:
        return self

    def __enter__(self) -> None:
        self.calls.append("enter")

    def __exit__(self, *_: object) -> None:
        self.calls.append("exit")


class Loss(float):
    """A loss whose backward is called past the engine."""

    engine: Engine

    def backward(self) -> None:
        self.engine.calls.append("direct backward")


def run_of(micro_batches: int) -> SimpleNamespace:
    engine = Engine()

    def criterion(outputs: float, targets: float) -> Loss:
        loss = Loss(outputs - targets)
        loss.engine = engine
        return loss

    return SimpleNamespace(
        engine=engine, loader=[(1.0, 0.0)] * micro_batches, criterion=criterion, gradient_accumulation_steps=2
    )


ONE = ["forward", "backward 1", "step"]
LATE = ["forward", "backward 0.5"]
ONCE = ["forward", "backward 0.5 scale_wrt_gas=False"]


@pytest.mark.parametrize(
    ("code", "wrong", "mended"),
    [
        ("zero-grad-inside-window", ["zero_grad", *ONE] * 4, None),
        (
            "sticky-boundary-override",
            ["boundary True", *ONE * 4],
            ["boundary False", *ONE, "boundary True", *ONE] * 2,
        ),
        ("caller-owned-boundary", [*LATE, *LATE, "step"] * 2, [*ONCE, *ONCE, "step"] * 2),
        (
            "several-backwards-per-step",
            ["forward", "backward 0.75", "forward", "backward 0.25", "step"] * 4,
            ["forward", "forward", "backward 1", "step"] * 4,
        ),
        ("micro-batch-skipped", [*ONE, "forward", *ONE, *ONE], None),
        (
            "optimizer-step-bypasses-engine",
            ["forward", "backward 1", "optimizer step", "optimizer zero_grad"] * 4,
            None,
        ),
        ("backward-bypasses-engine", ["forward", "direct backward", "step"] * 4, None),
        (
            "no-sync-with-partitioned-gradients",
            ["enter", "forward", "backward 1", "exit", "step", *ONE] * 2,
            None,
        ),
    ],
)
def test_the_loops_call_what_they_say(code: str, wrong: list[str], mended: list[str] | None) -> None:
    entry, run = find(code), run_of(4)
    entry.loop(run)
    assert run.engine.calls == wrong
    assert ast.parse(entry.loop_source()).body[0].name == "loop"
    if mended is None:
        assert (entry.mended_loop, entry.mended_source()) == (None, "")
        return
    run = run_of(4)
    entry.mended_loop(run)
    assert run.engine.calls == mended
    assert "mended_loop" in entry.mended_source()


def test_the_start_that_counts_one_can_be_read() -> None:
    source = find("world-size-seen-as-one").loop_source()
    assert source.startswith("def start(config")
    assert source.index("DeepSpeedConfig(config)") < source.index("init_distributed()")


def test_what_cannot_be_reproduced_says_why() -> None:
    reason = find("world-size-disagreement").not_reproduced
    assert "2/3 clients joined" in reason
    assert reason.endswith(".")
