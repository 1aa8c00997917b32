"""Real Accelerate, Transformers and Lightning: each wrong setting is shown, found and mended, beside plain PyTorch."""

from __future__ import annotations

import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path

import pytest

from dsaccum_helpers import check
from dsaccum_helpers.frameworks import FrameworkRun, ProgramResult, Shown, check_arguments, program_source, run_program
from dsaccum_helpers.mismatches import CATALOGUE, find
from dsaccum_helpers.mismatches.framework_runs import AUTO, accelerate, lightning, trainer
from dsaccum_helpers.observer.callbacks import WatchWhileTraining
from dsaccum_helpers.training import RunError
from tools import make_framework_table

Train = Callable[[FrameworkRun], ProgramResult]

SHOWN = [(entry.code, shown) for entry in CATALOGUE.values() for shown in getattr(entry, "programs", ())]
shown_ones = pytest.mark.parametrize(("code", "shown"), SHOWN, ids=[f"{code}: {one.what}" for code, one in SHOWN])
STAGE_0, STAGE_3 = ({**AUTO, "zero_optimization": {"stage": stage}} for stage in (0, 3))
RIGHT = {
    "Accelerate": accelerate(AUTO),
    "Accelerate, 2 processes": accelerate(AUTO)._replace(processes=2),
    "Accelerate, ZeRO-0, 2 processes": accelerate(STAGE_0)._replace(processes=2),
    "Accelerate, ZeRO-3, 2 processes": accelerate(STAGE_3)._replace(processes=2),
    "Accelerate, the count only in the config": accelerate({**AUTO, "gradient_accumulation_steps": 4}, None),
    "Trainer": trainer(AUTO),
    "Trainer, 2 processes": trainer(AUTO)._replace(processes=2),
    "Trainer, ZeRO-0": trainer(STAGE_0),
    "Trainer, ZeRO-3, 2 processes": trainer(STAGE_3)._replace(processes=2),
    "Trainer, texts of unequal length": trainer(AUTO, model="gpt2"),
    "Trainer, texts of unequal length, 2 processes": trainer(AUTO, model="gpt2")._replace(processes=2),
    "Lightning, its loss multiplied": lightning({}, cuda_check=False, loss="multiplied"),
    "Lightning, 2 processes": lightning({}, cuda_check=False, loss="multiplied")._replace(processes=2),
    "Lightning, nothing to accumulate": lightning({}, 1, cuda_check=False),
}


@pytest.fixture(scope="session")
def train() -> Train:
    """Train a run under the live observer; each different run is trained once."""
    known: dict[str, ProgramResult] = {}

    def run(wanted: FrameworkRun) -> ProgramResult:
        key = json.dumps(wanted)
        if key not in known:
            known[key] = run_program(wanted)
        return known[key]

    return run


def assert_right(run: FrameworkRun, result: ProgramResult) -> None:
    """The updates of plain PyTorch on the full batch, their number and their weights."""
    assert (result.ended, result.words) == ("finished", "")
    assert result.optimizer_steps == 6
    assert result.samples == 6 * run.train_batch_size
    assert result.gradient_norms == pytest.approx(result.right_gradient_norms, rel=1e-6)
    assert result.learning_rates == (0.1,) * 6
    assert result.weight_difference < 5e-7


def test_versions_are_those_that_the_words_were_taken_from() -> None:
    found = {name: version(name) for name in ("accelerate", "transformers", "pytorch-lightning")}
    assert found == {"accelerate": "1.15.0", "transformers": "5.24.0", "pytorch-lightning": "2.6.6"}


def test_every_entry_of_the_framework_layers_is_shown_or_says_why_not() -> None:
    layers = ("trainer-disagrees", "accumulation-owner-conflict", "lightning-owns-accumulation")
    layers += ("auto-without-loader-batch", "accumulation-key-missing", "known-bad-version")
    assert {code for code, _ in SHOWN} == set(layers)
    for code in ("two-boundary-counters", "generation-batch"):
        assert find(code).not_reproduced.endswith(".")


@pytest.mark.parametrize("name", RIGHT)
def test_right_programs_are_the_full_batch(name: str, train: Train) -> None:
    assert_right(RIGHT[name], train(RIGHT[name]))


@pytest.mark.parametrize("name", RIGHT)
def test_live_observer_raises_no_alarm_at_right_programs(name: str, train: Train) -> None:
    assert train(RIGHT[name]).codes == []


@shown_ones
def test_wrong_program_does_what_was_said(code: str, shown: Shown, train: Train) -> None:
    result = train(shown.wrong)
    assert result.optimizer_steps == shown.optimizer_steps
    if not shown.optimizer_steps:
        assert result.ended == "refused"
        assert shown.words in result.words
        assert result.samples == 0
        return
    assert result.ended == "finished"
    assert any(shown.words in message for message in result.messages)
    if not shown.words:
        assert not [message for message in result.messages if "mismatch" in message]
    if shown.norm_ratio is None:
        assert not 0.9 < result.norm_ratio < 1.1
    else:
        assert result.norm_ratio == pytest.approx(shown.norm_ratio, rel=1e-6)
    assert (result.weight_difference > 0.01) is (shown.norm_ratio != 1.0)


@shown_ones
def test_mended_program_is_the_full_batch(code: str, shown: Shown, train: Train) -> None:
    assert_right(shown.mended, train(shown.mended))


@shown_ones
def test_check_names_the_wrong_and_passes_the_mended_arguments(code: str, shown: Shown) -> None:
    assert check_arguments(shown.wrong).codes[:1] == [code]
    mended = check_arguments(shown.mended)
    if shown.mended.program == "lightning_module":
        assert mended.codes == ["known-bad-version"]  # that the loss is multiplied stands in no argument
    else:
        assert mended.verdict == "ok"


def log_of(result: ProgramResult, folder: Path) -> Path:
    """What a person would have on the screen."""
    lines = ["starting", *result.messages]
    if result.words:
        lines += ["Traceback (most recent call last):", '  File "train.py", line 9, in <module>', result.words]
    (folder / "train.log").write_text("\n".join(lines) + "\n")
    return folder / "train.log"


@pytest.mark.parametrize("name", RIGHT)
def test_what_right_programs_say_is_no_mismatch(name: str, train: Train, tmp_path: Path) -> None:
    """Every right Trainer with accumulation says "Gradient accumulation steps mismatch"."""
    run, result = RIGHT[name], train(RIGHT[name])
    if run.program == "transformers_trainer":
        assert any("GradientAccumulationPlugin has 1, DeepSpeed config has 4" in text for text in result.messages)
    log = log_of(result, tmp_path)
    for framework in (None, run.job_options()["framework"]):
        assert check(log, framework=framework, processes=run.processes).verdict == "incomplete"


# Lightning's words about a loader without a batch size are an AttributeError of Python that names nothing.
REFUSED = [(code, one) for code, one in SHOWN if not one.optimizer_steps and "NoneType" not in one.words]


@pytest.mark.parametrize(("code", "shown"), REFUSED, ids=[f"{code}: {one.what}" for code, one in REFUSED])
def test_refusal_is_read_from_its_log_and_the_config(code: str, shown: Shown, train: Train, tmp_path: Path) -> None:
    log, config = log_of(train(shown.wrong), tmp_path), tmp_path / "ds.json"
    config.write_text(json.dumps(shown.wrong.config))
    options = shown.wrong.job_options()
    assert check(log, config, framework=options["framework"], processes=1).codes[:1] == [code]


@shown_ones
def test_live_observer_sees_what_trains_wrong(code: str, shown: Shown, train: Train) -> None:
    """It knows no owners: it sees the samples of an update and the weights of its micro-batches, and what is wanted."""
    result = train(shown.wrong)
    if not shown.optimizer_steps or shown.norm_ratio == 1.0:
        assert result.codes == []  # refused before there is an engine, or trained right
    elif code == "known-bad-version":
        assert result.codes == ["loss-divided-twice"]
        (finding,) = result.findings
        assert f"{shown.norm_ratio:g}, not 1" in finding["message"]
        assert finding["where"][0]["file"].endswith("lightning_module.py")
    else:
        size = {3: 32, 24: 4}[shown.optimizer_steps]
        assert result.codes[0] in ("batch-product-mismatch", "accumulation-key-missing")
        assert f"Each update is made of {size} samples" in result.findings[0]["message"]
        assert "16 are wanted" in result.findings[0]["message"]


def test_lightning_as_shipped_refuses_the_cpu(train: Train) -> None:
    for config in ({}, {"gradient_accumulation_steps": 4}):
        result = train(lightning(config))
        assert (result.ended, result.set_aside) == ("refused", "")
        assert result.words == (
            "RuntimeError: The DeepSpeed strategy is only supported on CUDA GPUs but `CPUAccelerator` is used."
        )


@pytest.mark.parametrize("steps", [2, 4])
@pytest.mark.parametrize("processes", [1, 2])
def test_lightning_divides_once_more(steps: int, processes: int, train: Train) -> None:
    """Its closure divides by accumulate_grad_batches, the engine again: exactly 1/G. The CUDA check is set aside."""
    result = train(lightning({}, steps, cuda_check=False)._replace(processes=processes))
    assert result.set_aside == "Lightning's check for a CUDA GPU was set aside; as shipped it refuses the CPU."
    assert result.engine_accumulation_steps == steps
    assert result.gradient_norms[0] * steps == pytest.approx(result.right_gradient_norms[0], rel=1e-6)
    divided = train(lightning({}, steps, cuda_check=False, loss="divided")._replace(processes=processes))
    assert divided.gradient_norms[0] * steps**2 == pytest.approx(result.right_gradient_norms[0], rel=1e-6)
    assert set(divided.codes) == {"loss-divided-twice"}, "divided three times is divided twice too often"


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_lightning_divides_at_every_stage(stage: int, train: Train) -> None:
    result = train(lightning({"zero_optimization": {"stage": stage}}, 4, cuda_check=False))
    assert result.gradient_norms[0] * 4 == pytest.approx(result.right_gradient_norms[0], rel=1e-6)
    assert result.codes == ["loss-divided-twice"]


def test_missing_key_leaves_the_trainer_right_and_the_engine_wrong(train: Train) -> None:
    result = train(trainer({"train_micro_batch_size_per_gpu": "auto"}))
    assert (result.samples, result.engine_samples, result.engine_accumulation_steps) == (96, 24, 1)


def test_trainer_weights_a_short_last_window_and_accelerate_does_not(train: Train) -> None:
    """26 micro-batches in windows of 4: two are left."""
    for run in (trainer(AUTO, left_over=2), trainer(AUTO, left_over=2, model="gpt2")):
        result = train(run)
        assert result.optimizer_steps == 7
        assert result.gradient_norms == pytest.approx(result.right_gradient_norms, rel=1e-6)
        assert result.weight_difference < 5e-7
        assert result.codes == []
    result = train(accelerate(AUTO, left_over=2))
    assert result.optimizer_steps == 7
    assert result.gradient_norms[:6] == pytest.approx(result.right_gradient_norms[:6], rel=1e-6)
    assert result.gradient_norms[6] * 2 == pytest.approx(result.right_gradient_norms[6], rel=1e-6)
    assert result.codes == ["leftover-micro-batches"]


def test_two_processes_without_gloo_are_one_to_accelerate(train: Train) -> None:
    """It counts one process: "auto" is filled in for one and refused; without the key all train on the same data."""
    alone = accelerate(AUTO, backend=None)._replace(processes=2)
    result = train(alone)
    assert result.ended == "refused"
    assert result.words.endswith("micro_batch_per_gpu * gradient_acc_step * world_size 16 != 4 * 4 * 2")
    keys = {name: 4 for name in AUTO if name != "train_batch_size"}
    silent = train(alone._replace(config={**accelerate({}).config, **keys}))
    assert silent.ended == "finished"
    assert (silent.optimizer_steps, silent.samples) == (12, 2 * 192)


def test_accelerate_told_to_use_the_cpu_trains_without_deepspeed() -> None:
    """ACCELERATE_USE_CPU makes it drop the DeepSpeed plugin without a word; there is no engine to watch."""
    result = run_program(accelerate(AUTO, environment={"ACCELERATE_USE_CPU": "true"}), watch=False)
    assert result.ended == "failed"
    assert result.words == "The framework has trained without DeepSpeed: it made no engine."


def test_table_of_the_docs_is_what_was_measured(train: Train) -> None:
    text = make_framework_table.OUT.read_text(encoding="utf-8")
    written = text.split(make_framework_table.BEGIN)[1].split(make_framework_table.END)[0]
    assert written == make_framework_table.table(train)
    for name in ("accelerate", "transformers"):
        assert version(name) in text
    assert f"Lightning {version('pytorch-lightning')}" in text


def test_program_is_read_as_text() -> None:
    assert "accelerator.backward(loss)" in program_source("accelerate_loop")
    with pytest.raises(RunError, match="There is no program 'nothing'"):
        program_source("nothing")


def test_callback_without_an_engine_says_so() -> None:
    callback = WatchWhileTraining(quiet=True)
    with pytest.warns(UserWarning, match="WatchCallback finds no DeepSpeed engine"):
        callback._begin(None, None)
    callback._end()
    assert callback.findings == []
    assert callback.report().verdict == "ok"


def test_loop_without_accumulate_updates_after_every_micro_batch(train: Train) -> None:
    """And with a quarter of the gradient: Accelerate sets the boundary, the engine still divides."""
    result = train(accelerate(AUTO, accumulate=False))
    every = train(accelerate({**AUTO, "gradient_accumulation_steps": 1}))
    assert (result.optimizer_steps, result.engine_accumulation_steps) == (24, 4)
    assert result.gradient_norms[0] * 4 == pytest.approx(every.gradient_norms[0], rel=1e-6)
    assert "sticky-boundary-override" in result.codes
