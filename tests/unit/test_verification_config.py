"""What ``verify --config`` keeps, scales and refuses, and which fault a failing row is given. Trains nothing."""

from typing import Any

import pytest

from dsaccum_helpers.setting import SettingError
from dsaccum_helpers.verification import ADAM_AHEAD, Row
from dsaccum_helpers.verification.faults import known_fault
from dsaccum_helpers.verification.person import Plan, read_plan
from dsaccum_helpers.verification.rows import Verification
from dsaccum_helpers.verification.running import worst

NUMBERS = {"train_batch_size": 8192, "train_micro_batch_size_per_gpu": 64, "gradient_accumulation_steps": 16}
MACHINE = {"accelerator": "cpu", "gpus": 0, "cores": 2, "versions": {"torch": "2.9", "deepspeed": "0.19.8"}}


def plan(processes: int | None = 8, **values: Any) -> Plan:
    made = read_plan({**NUMBERS, **values}, processes)
    assert isinstance(made, Plan), made
    return made


def test_numbers_are_scaled_and_the_accumulation_steps_kept() -> None:
    small = plan().fit(2)
    assert (small.micro, small.steps, small.processes) == (8, 16, 2)
    assert "accumulation steps 16." in small.kept
    assert small.scaled == [
        "micro-batch 64 -> 8: its samples are averaged in one pass.",
        "processes 8 -> 2: as many as there are devices or cores here.",
        "train batch 8192 -> 256 = 8 x 16 x 2.",
    ]
    assert small.splits() == {
        "as configured": (8, 16, 2),
        "on one process": (16, 16, 1),
        "without accumulation": (128, 1, 2),
    }
    config = small.config(8, 16, 2)
    assert [config[key] for key in NUMBERS] == [256, 8, 16]


def test_long_windows_on_many_devices_keep_to_what_the_oracle_takes_at_once() -> None:
    wide = read_plan({"train_micro_batch_size_per_gpu": 64, "gradient_accumulation_steps": 500}, 512)
    assert isinstance(wide, Plan)
    small = wide.fit(8)
    assert (small.micro, small.steps, small.processes) == (2, 64, 8)
    assert "accumulation steps 500 -> 64: so that it takes seconds." in small.scaled


@pytest.mark.parametrize(
    ("values", "processes", "numbers"),
    [
        (NUMBERS, None, (64, 16, 8)),
        ({"train_batch_size": 64, "gradient_accumulation_steps": 4}, 2, (8, 4, 2)),
        ({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}, 2, (4, 8, 2)),
        ({"train_micro_batch_size_per_gpu": 4}, None, (4, 1, 2)),
    ],
)
def test_two_numbers_give_the_third(
    values: dict[str, int], processes: int | None, numbers: tuple[int, int, int]
) -> None:
    made = read_plan(values, processes)
    assert isinstance(made, Plan)
    assert (made.micro, made.steps, made.processes) == numbers


def test_a_config_that_does_not_agree_with_itself_gives_the_findings_of_check() -> None:
    (found,) = read_plan({**NUMBERS, "train_batch_size": 100}, 8)  # type: ignore[misc]
    assert found.startswith("batch-product-mismatch: ")
    assert "100" in found
    assert "Smallest fix:" in found


@pytest.mark.parametrize(
    ("block", "name", "parameters"),
    [
        # DeepSpeed's own Adam has no decay unless asked for; torch's AdamW would have 0.01.
        ({"type": "AdamW", "params": {"lr": 1e-4}}, "AdamW", {"lr": 1e-4, "weight_decay": 0.0}),
        ({"type": "AdamW", "params": {"torch_adam": True}}, "AdamW", {"lr": 1e-3, "weight_decay": 0.01}),
        # Adam is AdamW in DeepSpeed, unless adam_w_mode says no.
        ({"type": "Adam", "params": {"weight_decay": 0.1}}, "AdamW", {"weight_decay": 0.1}),
        ({"type": "adam", "params": {"adam_w_mode": False}}, "Adam", {"betas": [0.9, 0.999], "eps": 1e-8}),
        ({"type": "SGD", "params": {"lr": 0.1, "momentum": 0.9}}, "SGD", {"lr": 0.1, "momentum": 0.9}),
        (None, "SGD", {"lr": 0.05}),
    ],
)
def test_optimizers_of_the_oracle(block: Any, name: str, parameters: dict[str, Any]) -> None:
    made = plan(**({} if block is None else {"optimizer": block})).optimizer
    assert made.name == name
    assert made.parameters.items() >= parameters.items()
    given = made.block["params"]
    assert given.items() >= parameters.items(), "DeepSpeed is told every number, so that no default can differ"
    assert given.get("torch_adam", True) is True


def test_schedules_are_shortened_to_the_updates_that_are_made() -> None:
    block = {"type": "WarmupDecayLR", "params": {"warmup_num_steps": 2000, "total_num_steps": 10000}}
    made = plan(scheduler=block)
    steps = {key: made.schedule.parameters[key] for key in ("warmup_num_steps", "total_num_steps")}
    assert steps == {"warmup_num_steps": 4, "total_num_steps": 20}
    assert made.values["scheduler"]["params"].items() >= steps.items()
    assert "warmup_num_steps 2000 -> 4, total_num_steps 10000 -> 20" in made.scaled[0]
    short = plan(scheduler={"type": "WarmupLR", "params": {"warmup_num_steps": 5}})
    assert (short.schedule.parameters["warmup_num_steps"], short.scaled) == (5, [])


@pytest.mark.parametrize(
    ("values", "version", "clipping"),
    [
        ({}, "0.19.8", 1.0),
        ({}, "0.19.3", 1.0),
        ({}, "0.19.2", 0.0),
        ({"gradient_clipping": 0.5}, "0.19.8", 0.5),
        ({"gradient_clipping": 0}, "0.19.8", 0.0),
    ],
)
def test_the_oracle_clips_as_the_engine_does(values: dict[str, Any], version: str, clipping: float) -> None:
    made = plan(**values)
    assert made.oracle_clipping({"deepspeed": version}) == clipping
    assert ("gradient_clipping" in made.values) is bool(values), "a missing key stays missing"


@pytest.mark.parametrize(
    ("clipping", "factor"),
    # The small task's gradients are about 0.5 long: 4 makes them twice as long as 1.0. No task trains at 32 times.
    [(0.0, 1), (0.1, 1), (0.25, 1), (0.5, 2), (1.0, 4), (4.0, 16), (5.0, 1), (1000.0, 1)],
)
def test_the_loss_is_made_as_large_as_clipping_needs(clipping: float, factor: int) -> None:
    assert plan().loss_factor(clipping) == factor


def test_what_changes_no_number_is_left_out_with_a_word() -> None:
    zero = {"stage": 2, "overlap_comm": True, "reduce_bucket_size": "auto", "offload_optimizer": {"device": "none"}}
    made = plan(zero_optimization=zero, steps_per_print=10, fp16={"enabled": False}, colour="red")
    assert made.values["zero_optimization"] == {"stage": 2, "overlap_comm": True}
    assert made.left_out[-3:] == [
        "steps_per_print: changes no number of an update.",
        "'colour': DeepSpeed knows no such key and passes over it.",
        "zero_optimization.reduce_bucket_size: sizes for a large model.",
    ]
    assert not made.values.keys() & {"steps_per_print", "fp16", "colour"}


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"fp16": {"enabled": True}}, "fp16 cannot be verified here: .*loss scale"),
        ({"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}, "offload_optimizer cannot"),
        ({"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}, "offload_param cannot"),
        ({"zero_optimization": {"stage": 4}}, "zero_optimization.stage is 4"),
        ({"zero_optimization": "2"}, "zero_optimization is '2'"),
        ({"optimizer": {"type": "Lion", "params": {}}}, "optimizer 'Lion' cannot.*SGD, Adam or AdamW"),
        ({"optimizer": {"type": "OneBitAdam"}}, "optimizer 'OneBitAdam' cannot"),
        ({"optimizer": {"type": "sgd"}}, "no optimizer by the name sgd"),
        (
            {"optimizer": {"type": "SGD", "params": {"lr": "0.1"}}},
            "optimizer.params.lr is '0.1'. Smallest fix: a number",
        ),
        ({"optimizer": {"type": "SGD", "params": {"lr": "auto"}}}, 'optimizer.params.lr is "auto"'),
        ({"optimizer": {"type": "Adam", "params": {"betas": [0.9]}}}, "betas is .* two numbers"),
        ({"optimizer": {"type": "AdamW", "params": {"bias_correction": False}}}, "bias_correction cannot"),
        ({"optimizer": {"type": "AdamW", "params": {"max_grad_norm": 1.0}}}, "max_grad_norm"),
        ({"optimizer": {"type": "AdamW", "params": {"freeze_step": 3}}}, "freeze_step cannot"),
        ({"optimizer": {}}, "optimizer has no type"),
        ({"scheduler": {"type": "OneCycle", "params": {}}}, "scheduler 'OneCycle' cannot"),
        ({"scheduler": {"type": "WarmupDecayLR", "params": {}}}, "needs total_num_steps"),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_steps": 3}}}, "no parameter 'warmup_steps'"),
        ({"scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 2.5}}}, "a positive whole number"),
        ({"gradient_clipping": "auto"}, 'gradient_clipping is "auto"'),
        ({"gradient_clipping": -1}, "gradient_clipping is -1"),
        ({"gradient_clipping": float("inf")}, "gradient_clipping is inf"),
        ({"scheduler": {"type": ["WarmupLR"]}}, "scheduler .*WarmupLR.* cannot"),
        ({"scheduler": {"type": "WarmupLR", "params": 3}}, "scheduler.params is 3"),
        ({"bf16": {"enabled": "auto"}}, 'bf16.enabled is "auto"'),
        ({"bf16": {"enabled": True, "bf16_optimizer_states": True}}, "bf16_optimizer_states cannot"),
        ({"train_batch_size": "auto"}, 'train_batch_size is "auto"'),
        ({"gradient_predivide_factor": 2.0}, "gradient_predivide_factor cannot"),
        ({"managed_gradient_accumulation": False}, "managed_gradient_accumulation cannot"),
        ({"elasticity": {"enabled": True}}, "elasticity cannot"),
        ({"pipeline": {"stages": 2}}, "pipeline cannot"),
        ({"moe": {"enabled": True}}, "moe cannot"),
    ],
)
def test_what_cannot_be_made_small_is_refused_with_a_remedy(values: dict[str, Any], named: str) -> None:
    with pytest.raises(SettingError, match=named) as caught:
        read_plan({**NUMBERS, **values}, 8)
    assert "Smallest fix: " in str(caught.value)


def test_the_number_of_processes_is_asked_for_where_the_steps_depend_on_it() -> None:
    with pytest.raises(SettingError, match=r"nobody says how many there are\. Smallest fix: --processes 8"):
        read_plan({"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4}, None)


@pytest.mark.parametrize(
    ("stage", "adam", "version", "fault"),
    [
        (2, False, "0.18.1", "deepspeed 0.18.1: ZeRO-2 gradients are too small (DeepSpeed #7718"),
        (2, False, "0.19.8", ""),
        (0, False, "0.18.5", "deepspeed 0.18.5: bf16 at ZeRO-0 does not clear its gradients"),
        (0, True, "0.19.8", ADAM_AHEAD),
        (0, False, "0.19.8", ""),
        (1, True, "0.19.8", ""),
    ],
)
def test_the_fault_of_a_row_is_looked_up_by_version(stage: int, adam: bool, version: str, fault: str) -> None:
    kind = "Adam" if adam else "SGD"
    config = {
        "train_micro_batch_size_per_gpu": 4,
        "gradient_accumulation_steps": 4,
        "optimizer": {"type": kind, "params": {}},
        "zero_optimization": {"stage": stage},
        "bf16": {"enabled": True},
    }
    found = known_fault(config, 2, {"deepspeed": version})
    assert found.startswith(fault)
    assert bool(found) is bool(fault)


@pytest.mark.parametrize(
    ("distance", "norm", "rate", "words"),
    [
        (2e-6, 0.0, 0.0, "the weights part by more than rounding explains"),
        # What Adam hides from the weights.
        (1e-7, 0.75, 0.0, "the gradient norm is off by 0.75 of the full batch's"),
        (1e-7, 0.0, 0.5, "the learning rate is off by 0.5 of the schedule's"),
        (float("nan"), 0.0, 0.0, "the weights part by more than rounding explains"),
        (None, None, None, "the run did not finish"),
    ],
)
def test_each_of_three_comparisons_can_fail_a_row(
    distance: float | None, norm: float | None, rate: float | None, words: str
) -> None:
    row = Row(1, "fp32", "Adam", 2, 4, 4, distance, 1e-6, gradient_norm=norm, learning_rate=rate).because("", None)
    assert (row.holds, row.words) == (False, words)
    assert row.because("a fault", None).words == "a fault"
    proof = Verification([row], MACHINE)
    assert not proof.holds
    assert f"no: {words}" in str(proof)


def test_norms_are_compared_pair_by_pair() -> None:
    assert worst([1.0, 3.0], [1.0, 2.0]) == 0.5
    assert worst([1.0], [1.0, 2.0]) == float("inf")
    assert worst([None], [1.0]) == float("inf")
    assert worst([float("nan"), 1.0], [1.0, 1.0]) == float("inf")


def test_the_page_says_in_words_what_a_table_shows() -> None:
    from dsaccum_helpers.verification.page import as_page

    good = Row(1, "fp32", "SGD", 2, 4, 4, 1e-8, 1e-6, gradient_norm=0.0)
    bad = Row(2, "bf16", "SGD", 2, 4, 4, None, 1e-6).because("", "<b>stopped</b>")
    proof = Verification([good, bad], MACHINE)
    proof.source, proof.scaled = "<ds>.json", ["processes 8 -> 2: few cores."]
    page = as_page(proof)
    assert page.startswith('<!DOCTYPE html>\n<html lang="en">')
    assert "<caption>&lt;ds&gt;.json against the full batch</caption>" in page
    assert page.count("scope='col'") == 10
    assert "<td>yes</td>" in page
    assert "<td>no: &lt;b&gt;stopped&lt;/b&gt;</td>" in page
    assert "Measured on cpu (2 processor cores) with torch 2.9, deepspeed 0.19.8." in page
    assert "<li>processes 8 -&gt; 2: few cores.</li>" in page
    for outside in ("http:", "https:", "<script", "<link"):
        assert outside not in page
    assert proof._repr_html_() in page


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"gradient_clipping": 10**400}, "gradient_clipping is 1"),
        ({"optimizer": {"type": "SGD", "params": {"lr": -1}}}, "lr is -1. Smallest fix: a number from 0 on"),
        ({"optimizer": {"type": "SGD", "params": {"lr": 10**400}}}, "Smallest fix: a number from 0 on"),
        ({"optimizer": {"type": "Adam", "params": {"betas": [0.9, 1]}}}, "two numbers from 0 on and below 1"),
        ({"optimizer": {"type": "SGD", "params": {"nesterov": True}}}, "nesterov needs momentum"),
        ({"communication_data_type": "fp16"}, "communication_data_type cannot be verified here"),
    ],
)
def test_what_torch_would_refuse_or_round_is_said_before_a_run(values: dict[str, Any], said: str) -> None:
    with pytest.raises(SettingError) as caught:
        plan(**values)
    assert said in str(caught.value)
