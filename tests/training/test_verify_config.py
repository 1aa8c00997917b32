"""``verify --config``: a person's own config against plain PyTorch with real DeepSpeed, and rows that can fail."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from dsaccum_helpers import Runner, verify
from dsaccum_helpers.commands import main
from dsaccum_helpers.setting import SettingError
from dsaccum_helpers.verification import ADAM_AHEAD
from dsaccum_helpers.verification.person import Plan
from dsaccum_helpers.verification.schedules import Schedule

CONFIG: dict[str, Any] = {
    "train_batch_size": 256,
    "train_micro_batch_size_per_gpu": 16,
    "gradient_accumulation_steps": 4,
    "optimizer": {"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}},
    "scheduler": {
        "type": "WarmupCosineLR",
        "params": {"total_num_steps": 1000, "warmup_num_steps": 200, "warmup_type": "linear"},
    },
    "zero_optimization": {"stage": 2, "overlap_comm": True, "contiguous_gradients": True},
    "steps_per_print": 100,
}


def test_a_config_ends_at_the_weights_of_the_full_batch(runner: Runner) -> None:
    proof = verify(config=CONFIG, runner=runner)
    assert proof.holds, str(proof)
    numbers = [
        (row.what, row.train_micro_batch_size_per_gpu, row.gradient_accumulation_steps, row.processes)
        for row in proof.rows
    ]
    assert numbers == [("as configured", 8, 4, 2), ("on one process", 16, 4, 1), ("without accumulation", 32, 1, 2)]
    assert {(row.zero_stage, row.optimizer, row.dtype) for row in proof.rows} == {(2, "SGD", "fp32")}
    for row in proof.rows:
        assert row.distance is not None
        assert 0 < row.distance <= 1e-6 == row.allowed
        assert row.gradient_norm is not None
        assert row.gradient_norm < 1e-5
    assert "deepspeed" in proof.to_dict()["machine"]["versions"]
    assert "the small task's loss is multiplied by 4, so that clipping has something to do." in proof.scaled


@pytest.mark.parametrize(
    "change",
    [
        {
            "optimizer": {"type": "AdamW", "params": {"lr": 1e-3, "weight_decay": 0.1, "betas": [0.9, 0.95]}},
            "scheduler": {"type": "WarmupDecayLR", "params": {"total_num_steps": 20, "warmup_num_steps": 4}},
            "gradient_clipping": 0.5,
            "zero_optimization": {"stage": 3},
        },
        {
            "optimizer": {"type": "Adam", "params": {"adam_w_mode": False, "weight_decay": 0.1}},
            "scheduler": {"type": "WarmupLR", "params": {"warmup_max_lr": 1e-3}},
            "bf16": {"enabled": True},
            "zero_optimization": {"stage": 1},
            "prescale_gradients": True,
        },
    ],
)
def test_other_optimizers_schedules_stages_and_types(change: dict[str, Any], runner: Runner) -> None:
    proof = verify(config=CONFIG | change, processes=4, runner=runner)
    assert proof.holds, str(proof)
    assert all(row.learning_rate is not None for row in proof.rows)


def test_an_oracle_that_does_not_clip_where_deepspeed_does_makes_every_row_fail(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Plan, "oracle_clipping", lambda *_: 0.0)
    monkeypatch.setattr(Plan, "loss_factor", lambda *_: 4)
    proof = verify(config=CONFIG, runner=runner)
    assert [row.holds for row in proof.rows] == [False] * 3
    assert all(row.distance is not None and row.distance > 1e-4 for row in proof.rows)


def test_a_schedule_that_is_one_update_late_makes_every_row_fail(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = Schedule.rates

    def late(schedule: Schedule, base: float, updates: int) -> list[float]:
        return [0.0, *right(schedule, base, updates)][:updates]

    monkeypatch.setattr(Schedule, "rates", late)
    proof = verify(config=CONFIG, runner=runner)
    assert [row.holds for row in proof.rows] == [False] * 3
    assert "the learning rate is off by" in proof.rows[0].words


def test_a_fault_that_adam_hides_shows_in_the_gradient_norm(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine is told to train on another batch than the oracle's: half of its micro-batches a step."""
    right: Callable[..., dict[str, Any]] = Plan.config

    def half(plan: Plan, micro: int, steps: int, processes: int) -> dict[str, Any]:
        return right(plan, micro, max(1, steps // 2), processes)

    monkeypatch.setattr(Plan, "config", half)
    adam = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-9}}}
    proof = verify(config={**CONFIG, **adam, "scheduler": None}, runner=runner)
    halved = proof.rows[0]
    assert halved.distance is not None
    assert halved.distance <= halved.allowed, "at this rate the weights show nothing"
    assert not halved.holds
    assert halved.words.startswith("the gradient norm is off by")
    assert any("no weight moves by more than" in line for line in proof.scaled)


def test_the_known_fault_of_the_installed_version_has_its_name(runner: Runner) -> None:
    adam = {"optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "bf16": {"enabled": True}}
    proof = verify(config={**CONFIG, **adam, "scheduler": None, "zero_optimization": {"stage": 0}}, runner=runner)
    assert [row.words for row in proof.rows] == [ADAM_AHEAD] * 3


def test_a_rate_at_which_the_small_task_does_not_stay_finite_is_said(runner: Runner) -> None:
    wild = {"optimizer": {"type": "SGD", "params": {"lr": 1e30}}, "scheduler": None}
    with pytest.raises(SettingError, match="a tenth of the learning rate"):
        verify(config={**CONFIG, **wild}, runner=runner)


def test_what_deepspeed_refuses_is_a_row_that_says_so(runner: Runner) -> None:
    types = {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}, "zero_optimization": {"stage": 0}}
    proof = verify(config=CONFIG | types, runner=runner)
    assert not proof.holds
    assert "unsupported mix of model_dtype" in proof.rows[0].words


def test_an_interrupt_leaves_no_run_behind(runner: Runner) -> None:
    def interrupt(over: int, runs: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        verify(config=CONFIG, runner=runner, progress=interrupt)
    assert not runner._runs


def test_command_writes_a_page_and_gives_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, page = tmp_path / "ds_config.json", tmp_path / "report.html"
    config.write_text(json.dumps(CONFIG | {"zero_optimization": {"stage": 1}}))
    assert main(["verify", "--config", str(config), "--output", str(page)]) == 0
    shown = capsys.readouterr()
    assert shown.out == f"All 3 settings end at the weights of the full batch. {page} says more.\n"
    text = page.read_text()
    assert "micro-batch 16 -&gt; 8: its samples are averaged in one pass." in text
    assert "steps_per_print: changes no number of an update." in text


@pytest.mark.parametrize(
    ("change", "words", "status", "named"),
    [
        ({"train_batch_size": 100}, ["--processes", "4"], 1, "batch-product-mismatch"),
        ({"fp16": {"enabled": True}}, [], 2, "fp16 cannot be verified here"),
        ({}, ["--stage", "1"], 2, "--stage has no part beside --config"),
        ({}, ["--processes", "1,2"], 2, "started with one number of them"),
        (None, [], 2, "ds_config.json"),
    ],
)
def test_command_says_what_is_in_the_way(
    change: dict[str, Any] | None,
    words: list[str],
    status: int,
    named: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    config = tmp_path / "ds_config.json"
    if change is not None:
        config.write_text(json.dumps(CONFIG | change))
    assert main(["verify", "--config", str(config), *words]) == status
    shown = capsys.readouterr()
    said = shown.out if status == 1 else shown.err
    assert named in said
    assert "Smallest fix: " in said
    if status == 2:
        assert (shown.out, len(shown.err.splitlines())) == ("", 1)
