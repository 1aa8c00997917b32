"""The catalogue by hand: each entry explains itself, says what it needs, and predicts by arithmetic alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import dsaccum_helpers.mismatches
from dsaccum_helpers.batch import KEYS, BatchError, engine_words, resolve_batch
from dsaccum_helpers.mismatches import CATALOGUE, GROUPS, MATCHED, RUNNABLE, Mismatch, UnknownMismatchError, find
from dsaccum_helpers.setting import Setting

FOLDER = Path(dsaccum_helpers.mismatches.__file__).parent
ENTRIES = [MATCHED, *RUNNABLE.values()]
SILENT = [entry for entry in RUNNABLE.values() if not entry.refused]
# 12 samples an update in windows of 3 on 2 processes; 10 updates; the rate falls from 1.0 to 0.1.
SETTING = Setting(
    train_micro_batch_size_per_gpu=2,
    gradient_accumulation_steps=3,
    processes=2,
    optimizer_steps=10,
    learning_rate=1.0,
)

named = pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.code)


def test_the_catalogue_lists_every_file_once_under_its_own_name() -> None:
    codes = [code for group in GROUPS.values() for code in group]
    assert len(codes) == len(set(codes)) == len(CATALOGUE) == 44
    assert all(CATALOGUE[code].code == code for code in codes)
    texts = {path.stem.replace("_", "-"): path.read_text() for path in FOLDER.glob("*.py")}
    assert {name for name, text in texts.items() if "(Mismatch):" in text} == {*codes, "mended"}


def test_all_but_eight_entries_have_a_run_of_deepspeed_alone() -> None:
    others = {"world-size-disagreement", "accumulation-key-missing", *GROUPS["Framework layers"]}
    assert len(others) == 8
    assert set(CATALOGUE) - set(RUNNABLE) == others
    assert all(CATALOGUE[code] is entry for code, entry in RUNNABLE.items())


@named
def test_an_entry_explains_itself(entry: Mismatch) -> None:
    for words in (entry.title, entry.symptom, entry.cause, entry.consequence, entry.remedy):
        assert words.strip() == words
        assert len(words) > 10
        assert "\n" not in words
    assert entry.learn.startswith("notebooks/")
    assert entry.learn.endswith(".ipynb")


def test_entries_do_not_repeat_each_other() -> None:
    for part in ("code", "title", "symptom", "cause", "remedy"):
        assert len({getattr(entry, part) for entry in ENTRIES}) == len(ENTRIES), part


@pytest.mark.parametrize("code", [None, "matched"])
def test_no_code_is_the_right_run(code: str | None) -> None:
    assert find(code) is MATCHED


@pytest.mark.parametrize("code", RUNNABLE)
def test_find_gives_the_entry(code: str) -> None:
    assert find(code) is RUNNABLE[code]


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("loss-divided-twise", "use loss-divided-twice."),
        ("guarded_engine_step", "use guarded-engine-step."),
        ("LOSS", "use one of batch-product-mismatch, "),
        ("", "use one of batch-product-mismatch, "),
        (7, "use one of batch-product-mismatch, "),
        (["matched"], "use "),
    ],
)
def test_an_unknown_code_is_answered_with_the_nearest(code: object, advice: str) -> None:
    with pytest.raises(UnknownMismatchError) as caught:
        find(code)
    message = str(caught.value)
    assert message.startswith(f"{code!r} is not a mismatch of the catalogue. Smallest fix: {advice}")
    assert "\n" not in message


# What a run of an entry needs beside the accumulation of SETTING, and the remedy that its refusal ends with.
NEEDS_MORE = {
    "accumulation-dtype": ({"dtype": "bf16"}, "dtype 'bf16'"),
    "known-bad-version": ({"dtype": "bf16", "optimizer": "Adam"}, "dtype 'bf16', optimizer 'Adam' and zero_stage 0"),
}
#: What can happen with one micro-batch per update.
NEEDS_NO_ACCUMULATION = {
    *("batch-product-mismatch", "written-for-other-world-size", "loader-batch-differs", "model-parallel-world"),
    *("world-size-seen-as-one", "batch-not-divisible", "batch-below-world-size", "elasticity", "auto-without-trainer"),
    *("config-unreadable", "optimizer-step-bypasses-engine", "several-backwards-per-step", "batch-value-type"),
    *("backward-bypasses-engine", "resume-changed-batch", "known-bad-version"),
}


@pytest.mark.parametrize("code", RUNNABLE)
def test_what_cannot_happen_says_why_and_what_to_change(code: str) -> None:
    entry, more = RUNNABLE[code], NEEDS_MORE.get(code, ({}, ""))
    fit = SETTING.change(**more[0])
    assert entry.needs(fit) is None
    if more[0]:
        assert entry.needs(SETTING).endswith(f"Smallest fix: {more[1]}.")
    one = entry.needs(fit.change(gradient_accumulation_steps=1))
    if code in NEEDS_NO_ACCUMULATION:
        assert one is None
    else:
        assert "Smallest fix: gradient_accumulation_steps 2." in one
        assert entry.needs(fit.change(gradient_accumulation_steps=2)) is None


def test_two_entries_need_more() -> None:
    assert "schedule 'linear'" in RUNNABLE["scheduler-unit"].needs(SETTING.change(schedule="constant"))
    tiny = Setting(train_micro_batch_size_per_gpu=1, gradient_accumulation_steps=1)
    assert "gradient_accumulation_steps 2" in RUNNABLE["batch-product-mismatch"].needs(tiny)
    # Otherwise: 1 x 1 x 1 with train_batch_size 2 would be right for two processes.
    assert resolve_batch(2, 1, 1, world_size=2).train_batch_size == 2


def refused_words(code: str, setting: Setting) -> BatchError:
    config = RUNNABLE[code].config(setting)
    with pytest.raises(BatchError) as caught:
        resolve_batch(*(config[key] for key in KEYS), world_size=setting.processes)
    return caught.value


def test_refused_configs_are_refused_by_the_arithmetic_too() -> None:
    other = refused_words("written-for-other-world-size", SETTING)
    assert other.code == "written-for-other-world-size"
    assert "these numbers fit 4 processes" in str(other)
    product = refused_words("batch-product-mismatch", SETTING)
    assert product.code == "batch-product-mismatch"
    assert "13 is not 2 samples per micro-batch x 3 accumulation steps x 2 processes = 12" in str(product)


@pytest.mark.parametrize("entry", SILENT, ids=lambda entry: entry.code)
def test_silent_configs_are_accepted(entry: Mismatch) -> None:
    config = entry.config(SETTING)
    if entry.code == "batch-value-type":
        # DeepSpeed takes 3.5 for a number of micro-batches; what counts whole numbers does not.
        assert engine_words(*(config.get(key) for key in KEYS), world_size=SETTING.processes) is None
    else:
        assert resolve_batch(*(config.get(key) for key in KEYS), world_size=SETTING.processes)


def test_matched_is_predicted_as_the_setting_says() -> None:
    prediction = MATCHED.predict(SETTING)
    assert prediction.weights == (1 / 3, 1 / 3, 1 / 3)
    assert (prediction.micro_batch_size, prediction.optimizer_steps, prediction.samples) == (2, 10, 120)
    assert prediction.learning_rates == pytest.approx([1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1])
    assert (prediction.gradient_clipping, prediction.refused) == (0.0, False)


# stage -> weights of the first update, updates, samples; worked out by hand from what DeepSpeed 0.19 does
@pytest.mark.parametrize(
    ("code", "stage", "weights", "updates", "samples"),
    [
        ("loss-divided-twice", 0, (1 / 9,) * 3, 10, 120),
        ("loss-divided-twice", 2, (1 / 9,) * 3, 10, 120),
        ("guarded-engine-step", 0, (1 / 3,) * 9, 3, 108),
        ("guarded-engine-step", 1, (0,) * 8 + (1 / 3,), 3, 108),
        ("guarded-engine-step", 2, (0,) * 8 + (1 / 3,), 3, 108),
        ("guarded-engine-step", 3, (1 / 3,) * 9, 3, 108),
        ("manual-accumulation", 0, (1, 1, 1), 10, 120),
        ("manual-accumulation", 1, (0, 0, 1), 10, 120),
        ("manual-accumulation", 2, (0, 0, 1), 10, 120),
        ("manual-accumulation", 3, (1, 1, 1), 10, 120),
        ("leftover-micro-batches", 0, (1 / 3,) * 3, 6, 72),
        ("loader-batch-differs", 1, (1 / 3,) * 3, 10, 240),
        ("scheduler-unit", 1, (1 / 3,) * 3, 10, 120),
        ("clipping-hides-scale", 3, (1, 1, 1), 10, 120),
        ("batch-product-mismatch", 0, (1 / 3,) * 3, 0, 0),
        ("written-for-other-world-size", 0, (1 / 3,) * 3, 0, 0),
    ],
)
def test_predictions_by_hand(code: str, stage: int, weights: tuple[float, ...], updates: int, samples: int) -> None:
    prediction = RUNNABLE[code].predict(SETTING.change(zero_stage=stage))
    assert prediction.weights == pytest.approx(weights)
    assert (prediction.optimizer_steps, prediction.samples) == (updates, samples)
    assert len(prediction.learning_rates) == updates
    assert prediction.refused == RUNNABLE[code].refused == (updates == 0)


def test_leftover_reads_epochs_of_one_window_and_a_half() -> None:
    leftover = RUNNABLE["leftover-micro-batches"]
    # 5 epochs of 3 + 1 micro-batches: 20 of them, six windows of 3, two micro-batches lost.
    assert leftover.epochs(SETTING) == (5, 4)
    assert leftover.epochs(SETTING.change(gradient_accumulation_steps=4, optimizer_steps=7)) == (4, 6)
    assert leftover.predict(SETTING.change(gradient_accumulation_steps=4, optimizer_steps=7)).optimizer_steps == 6
    for steps in range(1, 40):
        for count in range(2, 9):
            setting = SETTING.change(gradient_accumulation_steps=count, optimizer_steps=steps)
            assert 1 <= leftover.predict(setting).optimizer_steps <= steps


def test_the_scheduler_runs_ahead_by_the_accumulation_steps() -> None:
    rates = RUNNABLE["scheduler-unit"].predict(SETTING).learning_rates
    # Stepped 2, 5, 8, 11, ... times before the updates; zero from 10 on.
    assert rates == pytest.approx([0.8, 0.5, 0.2, 0, 0, 0, 0, 0, 0, 0])


def test_only_the_scheduler_entry_keeps_the_scheduler_to_itself() -> None:
    assert [entry.code for entry in ENTRIES if entry.script_owns_scheduler] == ["scheduler-unit"]


def test_clipping_is_the_settings_own_or_deepspeeds_default() -> None:
    entry = RUNNABLE["clipping-hides-scale"]
    for own, used in ((0.0, 1.0), (0.25, 0.25)):
        setting = SETTING.change(gradient_clipping=own)
        assert entry.predict(setting).gradient_clipping == used
        assert entry.config(setting)["gradient_clipping"] == used


def test_the_loader_gives_twice_the_micro_batch_and_the_config_does_not_know() -> None:
    entry = RUNNABLE["loader-batch-differs"]
    assert entry.loader_batch_size(SETTING) == 4
    assert entry.config(SETTING) == SETTING.ds_config()


def test_manual_accumulation_keeps_its_number_from_the_config() -> None:
    config = RUNNABLE["manual-accumulation"].config(SETTING)
    assert [config[key] for key in KEYS] == [4, 2, 1]


# What to look for in each wrong loop.
WITH_A_LOOP = {
    "loss-divided-twice": "backward(loss / run.gradient_accumulation_steps)",
    "guarded-engine-step": "if (i + 1) % run.gradient_accumulation_steps == 0:",
    "manual-accumulation": "if (i + 1) % run.gradient_accumulation_steps == 0:",
    "scheduler-unit": "run.scheduler.step()",
    "clipping-hides-scale": "scale_wrt_gas=False",
    "unweighted-token-mean": "run.criterion(run.engine(inputs), targets)",
    "logged-loss-scaled": "loss = run.engine.backward(loss)",
    "step-unit-confusion": "run.engine.global_steps % 10 == 0",
    "clipping-inside-window": "clip_grad_norm_(run.engine.parameters()",
    "zero-grad-inside-window": "run.engine.zero_grad()",
    "sticky-boundary-override": "set_gradient_accumulation_boundary(True)",
    "caller-owned-boundary": "backward(loss / run.gradient_accumulation_steps)",
    "no-sync-with-partitioned-gradients": "run.engine.no_sync()",
    "backward-bypasses-engine": "    loss.backward()",
    "auxiliary-loss-unscaled": "loss = loss + run.auxiliary(outputs)",
    "pipeline-train-batch": "for _ in range(len(run.loader)):",
    "optimizer-step-bypasses-engine": "run.engine.optimizer.step()",
    "several-backwards-per-step": "for share in (0.75, 0.25):",
    "micro-batch-skipped": "continue",
    "resume-changed-batch": "run.resume(2 * run.gradient_accumulation_steps)",
    "world-size-seen-as-one": "deepspeed.DeepSpeedConfig(config)",
}
AROUND_THE_LOOP = {
    *("matched", "batch-product-mismatch", "written-for-other-world-size", "loader-batch-differs"),
    *("leftover-micro-batches", "accumulation-dtype", "batch-norm-per-micro-batch", "batch-not-divisible"),
    *("batch-below-world-size", "model-parallel-world", "elasticity", "auto-without-trainer", "config-unreadable"),
    *("batch-value-type", "unknown-config-key", "known-bad-version"),
}


@named
def test_the_wrong_loop_can_be_read(entry: Mismatch) -> None:
    source = entry.loop_source()
    if entry.code in AROUND_THE_LOOP:
        assert (entry.loop, source) == (None, "")
        return
    tree = ast.parse(source)
    assert [type(node) for node in tree.body] == [ast.FunctionDef]
    assert WITH_A_LOOP[entry.code] in source
    assert source.startswith(("def loop(run", "def start(config"))
    assert "staticmethod" not in source


class Engine:
    """Counts what a loop calls."""

    def __init__(self, accumulation: int) -> None:
        self.calls: list[str] = []

    def __call__(self, inputs: float) -> float:
        self.calls.append("forward")
        return inputs

    def backward(self, loss: float, **options: object) -> None:
        self.calls.append(f"backward {loss:g}" + "".join(f" {key}={value}" for key, value in options.items()))

    def step(self) -> None:
        self.calls.append("step")


class FakeRun:
    gradient_accumulation_steps = 2

    def __init__(self) -> None:
        self.engine = self.scheduler = Engine(2)
        self.loader = [(1.0, 0.0)] * 4

    def criterion(self, outputs: float, targets: float) -> float:
        return outputs - targets


FULL = ["forward", "backward 1", "step"]
LATE = ["forward", "backward 1", "forward", "backward 1", "step"]


@pytest.mark.parametrize(
    ("code", "calls"),
    [
        ("loss-divided-twice", ["forward", "backward 0.5", "step"] * 4),
        ("guarded-engine-step", LATE * 2),
        ("manual-accumulation", LATE * 2),
        ("scheduler-unit", ["forward", "backward 1", "step", "step"] * 4),
        ("clipping-hides-scale", ["forward", "backward 1 scale_wrt_gas=False", "step"] * 4),
    ],
)
def test_the_wrong_loops_call_the_engine_as_they_say(code: str, calls: list[str]) -> None:
    run = FakeRun()
    RUNNABLE[code].loop(run)
    assert run.engine.calls == calls
    assert calls != FULL * 4
