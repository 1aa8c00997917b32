"""Applying any offered fix and checking again never shows the same finding: tried on generated jobs of every kind."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from dsaccum_helpers.doctor import diagnose, read_job
from dsaccum_helpers.job import FRAMEWORKS, Job

COUNTS = st.sampled_from([1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 32, 64, 100, 256])
FLAGS = st.booleans()
BATCH_VALUES = st.one_of(COUNTS, COUNTS, COUNTS, st.just("auto"), st.sampled_from([0, -4, 2.5, 4.0, True, "8", None]))


def some_of(most: int = 3, **choices: st.SearchStrategy[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """A dict with at most so many of these keys; ``__`` in a name stands for a dot."""
    named = {name.replace("__", "."): values for name, values in choices.items()}
    names = st.lists(st.sampled_from(list(named)), max_size=most, unique=True)
    return names.flatmap(lambda chosen: st.fixed_dictionaries({name: named[name] for name in chosen}))


NUMBERS = some_of(
    train_batch_size=BATCH_VALUES,
    train_micro_batch_size_per_gpu=BATCH_VALUES,
    gradient_accumulation_steps=BATCH_VALUES,
)
REST = some_of(
    zero_optimization=some_of(stage=st.sampled_from([0, 1, 2, 3]), offload_optimizer=st.just({"device": "cpu"})),
    bf16=some_of(enabled=st.sampled_from([True, False, "auto"])),
    fp16=some_of(enabled=st.sampled_from([True, False, "auto"])),
    data_types=some_of(grad_accum_dtype=st.sampled_from(["fp32", "bf16", None])),
    gradient_clipping=st.sampled_from([0, 1.0, 0.5, "auto", "1.0"]),
    steps_per_print=COUNTS,
    sequence_parallel_size=st.sampled_from([1, 2, 4]),
    managed_gradient_accumulation=st.sampled_from([True, False, "false", 0]),
    optimizer=st.sampled_from([{"type": "Adam"}, {"type": "SGD", "params": {"lr": 0.1}}, {"type": "AdamW"}]),
    scheduler=st.sampled_from(
        [
            {"type": "WarmupDecayLR", "params": {"total_num_steps": 100, "warmup_num_steps": 10}},
            {"type": "WarmupLR", "params": {"warmup_num_steps": "auto"}},
        ]
    ),
    elasticity=st.fixed_dictionaries(
        {
            "enabled": FLAGS,
            "max_train_batch_size": COUNTS,
            "micro_batch_sizes": st.lists(COUNTS, min_size=1, max_size=3),
        },
        optional={"version": st.sampled_from([0.1, 0.2]), "min_gpus": COUNTS, "max_gpus": COUNTS},
    ),
    gradient_acumulation_steps=COUNTS,
    micro_batch_size=COUNTS,
    zero_optimisation=st.just({"stage": 2}),
    **{"gradient_accumulation_steps ": COUNTS},
)
CONFIGS = st.builds(lambda numbers, rest: {**numbers, **rest}, NUMBERS, REST)
SIZES = some_of(
    processes=COUNTS,
    tensor_parallel=st.sampled_from([1, 2, 3, 4]),
    pipeline_parallel=st.sampled_from([1, 2]),
    sequence_parallel=st.sampled_from([1, 2]),
)
FACTS = some_of(
    5,
    trainer__per_device_train_batch_size=COUNTS,
    trainer__gradient_accumulation_steps=COUNTS,
    trainer__max_grad_norm=st.sampled_from([0, 0.1, 1.0]),
    trainer__accumulate_grad_batches=COUNTS,
    trainer__max_steps=COUNTS,
    trainer__logging_steps=COUNTS,
    accelerator__present=st.just(True),
    accelerator__gradient_accumulation_steps=COUNTS,
    accelerate__gradient_accumulation_steps=COUNTS,
    plugin__gradient_accumulation_steps=COUNTS,
    environment__WORLD_SIZE=COUNTS,
    environment__OMPI_COMM_WORLD_SIZE=COUNTS,
    environment__ACCELERATE_GRADIENT_ACCUMULATION_STEPS=COUNTS,
    loader__batch_size=COUNTS,
    loader__length=st.integers(0, 300),
    loader__has_batch_size=FLAGS,
    dataset__length=st.integers(0, 5000),
    dataset__drop_last=FLAGS,
    dataset__equal_token_counts=FLAGS,
    scheduler__steps_per_optimizer_step=st.sampled_from([1, 2, 4, 8, 0.25]),
    scheduler__total_steps=st.integers(1, 2000),
    epochs=st.integers(1, 5),
    checkpoint__processes=COUNTS,
    checkpoint__gradient_accumulation_steps=COUNTS,
    checkpoint__train_micro_batch_size_per_gpu=COUNTS,
    checkpoint__global_step=st.integers(0, 1000),
    generation__num_generations=COUNTS,
    generation__processes=st.integers(0, 3),
    model__has_batch_norm=FLAGS,
    model__has_auxiliary_loss=FLAGS,
    optimizer=st.sampled_from(["AdamW", "SGD"]),
    dtype=st.sampled_from(["bf16", "fp16", "fp32"]),
    wanted__train_batch_size=COUNTS,
)
VERSIONS = some_of(
    deepspeed=st.sampled_from(["0.9.0", "0.14.0", "0.16.0", "0.17.6", "0.18.1", "0.18.8", "0.19.8"]),
    transformers=st.sampled_from(["4.40.0", "4.46.3", "4.57.1", "5.24.0"]),
    accelerate=st.sampled_from(["0.18.0", "1.2.1", "1.15.0"]),
    trl=st.sampled_from(["0.14.0", "0.15.1", "0.24.0"]),
)


def failures(job: Job) -> list[tuple[str, str, dict[str, Any]]]:
    """Every fix that does not mend its finding: code, message, what was set."""
    found = []
    for finding in diagnose(job).findings:
        for fix in finding.fixes:
            trial = job.clone()
            for name, value in fix.set.items():
                trial.set(name, value)
            if fix.set and finding.code in diagnose(trial).codes:
                found.append((finding.code, finding.message, fix.set))
    return found


JOBS = st.builds(
    lambda config, sizes, facts, have, framework: read_job(
        *([config] if config else []), **sizes, set=facts, have=have, framework=framework
    ),
    CONFIGS,
    SIZES,
    FACTS,
    VERSIONS,
    st.sampled_from([None, *FRAMEWORKS]),
)


@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
@given(JOBS)
# Found by generated jobs once: parallel sizes that do not divide, half of the checkpoint's numbers, text for a number.
@example(
    read_job(
        processes=1,
        pipeline_parallel=2,
        framework="transformers",
        set={"checkpoint.processes": 3, "checkpoint.gradient_accumulation_steps": 2},
    )
)
@example(
    read_job(
        {"train_micro_batch_size_per_gpu": 1},
        set={"checkpoint.processes": 1, "checkpoint.train_micro_batch_size_per_gpu": 2},
    )
)
@example(
    read_job(
        {"train_batch_size": "auto", "train_micro_batch_size_per_gpu": "8", "gradient_accumulation_steps": "8"},
        processes=1,
        framework="transformers",
    )
)
def test_a_fix_mends_its_finding(job: Job) -> None:
    assert failures(job) == []
