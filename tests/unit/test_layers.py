"""Framework layers, loader and scheduler: rules by version, and fixes that hold when they are applied."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dsaccum_helpers.doctor import diagnose
from dsaccum_helpers.effective.versions import older
from dsaccum_helpers.effective.world import whole
from dsaccum_helpers.job import Config, Event, Job, Source
from dsaccum_helpers.mismatches import load
from dsaccum_helpers.mismatches.layers import complete, counted, near_divisor

BATCH = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
CODES = (
    "trainer-disagrees",
    "accumulation-owner-conflict",
    "lightning-owns-accumulation",
    "auto-without-loader-batch",
    "two-boundary-counters",
    "generation-batch",
    "loader-batch-differs",
    "leftover-micro-batches",
    "scheduler-unit",
    "unweighted-token-mean",
)


def made(case: dict[str, Any]) -> Job:
    """A Job from its framework, facts as a file says them, config, events and versions."""
    job = Job(framework=case["framework"])
    if case.get("config") is not None:
        job.configs.append(Config(copy.deepcopy(case["config"]), "ds.json"))
    for name, value in case.get("facts", {}).items():
        job.add(name, value, Source("facts.yaml", 1, 1, name))
    for kind, values in case.get("events", []):
        job.events.append(Event(kind, values, Source("run.log", 3), 1))
    for name, version in case.get("versions", {}).items():
        job.have(name, version)
    return job


def messages(code: str, **case: Any) -> list[str]:
    """What one entry finds in a job."""
    return [finding.message for finding in load(code).check(made(case))]


def some(**choices: Any) -> Any:
    """Any part of these names, each with one of its values."""
    return st.fixed_dictionaries(
        {}, optional={name.replace("__", "."): st.sampled_from(v) for name, v in choices.items()}
    )


COUNTS = (1, 2, 3, 4, 8)
CONFIGS = st.none() | some(
    train_batch_size=("auto", 7, 8, 16, 32, 64, 96),
    train_micro_batch_size_per_gpu=("auto", *COUNTS),
    gradient_accumulation_steps=("auto", *COUNTS),
    gradient_clipping=("auto", 0.5, 1.0),
    optimizer=({"type": "AdamW", "params": {"lr": 0.001}}, {"type": "AdamW", "params": {"lr": "auto"}}),
    scheduler=({"type": "WarmupDecayLR", "params": {"total_num_steps": 400}},),
)
ANY = {
    "processes": (1, 2, 3, 7, 8),
    "loader__length": (0, 1, 3, 10, 97, 1000),
    "loader__batch_size": (1, 4, 7, 32),
    "loader__has_batch_size": (True, False),
    "dataset__length": (10, 1000, 99_999),
    "dataset__drop_last": (True, False),
    "dataset__equal_token_counts": (True, False),
    "epochs": (0.5, 1, 3),
    "scheduler__steps_per_optimizer_step": (0.5, 1, 2, 4, 8),
    "scheduler__total_steps": (10, 250, 1000),
}
TRAINER = {
    "trainer__per_device_train_batch_size": COUNTS,
    "trainer__gradient_accumulation_steps": COUNTS,
    "trainer__max_grad_norm": (0.5, 1.0),
    "trainer__learning_rate": (0.001, 5e-5),
    "trainer__average_tokens_across_devices": (True, False),
    "trainer__generation_batch_size": (4, 8, 24),
    "trainer__steps_per_generation": (1, 2),
    "generation__num_generations": (2, 3, 4, 8, 16),
    "accelerate__gradient_accumulation_steps": COUNTS,
}
ACCELERATE = {
    "accelerate__flag__gradient_accumulation_steps": COUNTS,
    "accelerate__gradient_accumulation_steps": COUNTS,
    "accelerate__zero_stage": (2,),
    "accelerate__deepspeed_config_file": ("ds.json",),
    "accelerate__distributed_type": ("DEEPSPEED", "MULTI_GPU"),
    "environment__ACCELERATE_GRADIENT_ACCUMULATION_STEPS": COUNTS,
    "plugin__gradient_accumulation_steps": COUNTS,
    "accelerator__gradient_accumulation_steps": COUNTS,
    "accelerator__present": (True,),
}
OWN: dict[str, dict[str, Any]] = {
    "transformers": TRAINER,
    "trl": TRAINER,
    "accelerate": ACCELERATE,
    "lightning": {"trainer__accumulate_grad_batches": (1, 2, 4, 256)},
}
LOGGED = [
    ["train_batch_size", 8, "train_batch_size (calculated)", 128],
    ["optimizer.params.lr", 0.001, "learning_rate", 5e-5],
]
EVENTS: dict[str, list[dict[str, Any]]] = {
    "trainer-disagrees": [
        {"rows": LOGGED},
    ],
    "accumulation-mismatch": [{"plugin": 1, "config": 8}, {"plugin": 4, "config": 2}],
    "fields-ignored": [{"names": ["gradient_accumulation_steps"]}],
    "lightning-owns": [{"key": "gradient_accumulation_steps"}],
    "loader-batch-needed": [{}],
    "generation-batch": [
        {"factors": [1, 1], "generations": 4, "product": 1},
        {"factors": [3, 1, 4], "generations": 8, "product": 12},
        {"factors": [12], "generations": 8, "product": 12},
        {"factors": [3, 2], "generations": 4, "product": 6, "eval": True},
    ],
}
CASES = st.fixed_dictionaries(
    {
        "config": CONFIGS,
        "events": st.lists(
            st.sampled_from([(kind, values) for kind, all_values in EVENTS.items() for values in all_values]),
            max_size=1,
        ),
        "versions": some(
            transformers=("4.40.0", "4.50.0", "5.1.0"),
            accelerate=("0.21.0", "1.2.1", "1.15.0"),
            trl=("0.14.0", "0.16.1", "0.17.0", "0.24.0"),
        ),
    }
).flatmap(
    lambda case: st.sampled_from(["deepspeed", "transformers", "trl", "accelerate", "lightning"]).flatmap(
        lambda framework: st.fixed_dictionaries(
            {
                **{name: st.just(value) for name, value in case.items()},
                "framework": st.just(framework),
                "facts": some(
                    **ANY,
                    **OWN.get(framework, {}),
                ),
            }
        )
    )
)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(CASES)
def test_no_fix_leaves_its_finding(case: dict[str, Any]) -> None:
    for code in CODES:
        for finding in load(code).check(made(case)):
            for fix in finding.fixes:
                if not fix.set:
                    continue
                if {*BATCH} & {*fix.set}:
                    assert {*BATCH} <= {*fix.set}, (code, fix)
                job = made(case)
                for name, value in fix.set.items():
                    job.set(name, value)
                assert [f.message for f in load(code).check(job)] == [], (code, finding.message, fix)


CONFIG = {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 8}


@pytest.mark.parametrize(
    ("version", "words"),
    [("0.22.0", "an update takes 4 micro-batches"), ("1.7.0", "keeps counting its own"), ("1.8.0", "The JSON wins")],
)
def test_who_wins_depends_on_the_version_of_accelerate(version: str, words: str) -> None:
    facts = {"accelerator.gradient_accumulation_steps": 4, "accelerate.use_deepspeed": True}
    case = {"framework": "accelerate", "config": CONFIG, "facts": facts, "versions": {"accelerate": version}}
    assert words in messages("accumulation-owner-conflict", **case)[0]


def test_accelerators_default_matters_only_before_it_took_over_the_configs_count() -> None:
    case = {"framework": "accelerate", "config": CONFIG, "facts": {"accelerator.present": True}}
    assert messages("accumulation-owner-conflict", **case, versions={"accelerate": "1.3.0"})
    assert messages("accumulation-owner-conflict", **case, versions={"accelerate": "1.15.0"}) == []
    assert messages("accumulation-owner-conflict", **case) == []


@pytest.mark.parametrize("framework", ["transformers", "trl"])
def test_the_warning_of_every_right_trainer_run_is_no_finding(framework: str) -> None:
    events = [("accumulation-mismatch", {"plugin": 1, "config": 8})]
    assert messages("accumulation-owner-conflict", framework=framework, events=events) == []


@pytest.mark.parametrize(
    ("version", "found"), [("0.14.0", False), ("0.15.0", True), ("0.16.1", True), ("0.17.0", False)]
)
def test_what_a_generation_batch_counts_depends_on_the_version_of_trl(version: str, found: int) -> None:
    facts = {
        "processes": 2,
        "trainer.per_device_train_batch_size": 2,
        "trainer.gradient_accumulation_steps": 2,
        "generation.num_generations": 8,
    }
    case = {"framework": "trl", "facts": facts, "versions": {"trl": version}}
    assert len(messages("generation-batch", **case)) == found


def test_a_trainer_that_counted_one_process_is_told_so() -> None:
    facts = {"processes": 4, "trainer.per_device_train_batch_size": 4, "trainer.gradient_accumulation_steps": 4}
    rows = [["train_batch_size", 64, "train_batch_size (calculated)", 16]]
    case = {"framework": "transformers", "config": {"train_batch_size": 64}, "facts": facts}
    assert "counted 1" in messages("trainer-disagrees", **case, events=[("trainer-disagrees", {"rows": rows})])[0]
    assert messages("trainer-disagrees", **case) == []


def test_a_pinned_lightning_batch_that_fits_is_a_note() -> None:
    facts = {"processes": 2, "trainer.accumulate_grad_batches": 4}
    config = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 8}
    job = made({"framework": "lightning", "config": config, "facts": facts})
    assert [f.severity for f in load("lightning-owns-accumulation").check(job)] == ["note"]
    assert diagnose(job).verdict == "ok"


def test_the_parts_that_are_shared() -> None:
    assert [whole(value) for value in (8, "8", True, 0, -1, 2.0, "auto", None)] == [8, 8] + [None] * 6
    assert [counted(1, "micro-batch"), counted(2, "micro-batch"), counted(3, "window")] == [
        "1 micro-batch",
        "2 micro-batches",
        "3 windows",
    ]
    assert [near_divisor(100, 8), near_divisor(97, 4), near_divisor(3, 4)] == [10, None, 3]
    job = made({"framework": "deepspeed", "versions": {"trl": "0.15.0.dev0", "accelerate": "main"}})
    assert [older(job, *asked) for asked in (("trl", "0.15.0"), ("accelerate", "1.0"), ("torch", "2"))] == [
        False,
        None,
        None,
    ]
    assert complete(made({"framework": "deepspeed"}), 2, 4, 3) == dict(zip(BATCH, (24, 2, 4), strict=True))
