"""What a job will really use, owner by owner, against numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from dsaccum_helpers.effective import effective
from dsaccum_helpers.effective.fault import find_fault
from dsaccum_helpers.job import Config, Event, Job, Launch, Source

TRAIN, MICRO, STEPS = "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"
AUTO = {TRAIN: "auto", MICRO: "auto", STEPS: "auto"}
LOG = Source("train.log", 7)


def job_of(
    config: dict[str, Any] | None = None,
    facts: dict[str, Any] | None = None,
    *,
    framework: str | None = None,
    processes: int | None = None,
    events: tuple[tuple[str, dict[str, Any]], ...] = (),
) -> Job:
    job = Job(facts, framework=framework)
    if config is not None:
        places = {(key,): (line, 3) for line, key in enumerate(config, 2)}
        job.configs.append(Config(dict(config), "ds.json", places))
    if processes is not None:
        job.set("processes", processes)
    job.events += [Event(kind, values, LOG, 1) for kind, values in events]
    return job


def numbers_of(job: Job) -> tuple[Any, ...]:
    return tuple(effective(job).batch().values())


def product(train: Any, micro: Any, steps: Any, world: Any) -> tuple[str, dict[str, Any]]:
    return "product-assertion", {"train": train, "micro": micro, "steps": steps, "world": world, "through": []}


@pytest.mark.parametrize(
    ("config", "processes", "sizes", "expected"),
    [
        ({TRAIN: 64, STEPS: 4}, 2, {}, (64, 8, 4, 2)),
        ({MICRO: 8, STEPS: 4}, 2, {}, (64, 8, 4, 2)),
        ({TRAIN: 64}, 4, {}, (64, 16, 1, 4)),
        ({MICRO: 8, STEPS: None}, 2, {}, (16, 8, 1, 2)),
        ({TRAIN: 32, MICRO: 4}, 16, {"tensor_parallel": 4}, (32, 4, 2, 4)),
        ({MICRO: 1, STEPS: 8, "sequence_parallel_size": 4}, 8, {}, (16, 1, 8, 2)),
        ({MICRO: 8, STEPS: 4}, None, {}, (None, 8, 4, None)),
        ({MICRO: 8}, None, {}, (None, 8, 1, None)),
        ({TRAIN: 64, MICRO: 4, STEPS: 4}, None, {}, (64, 4, 4, None)),
        ({TRAIN: 100, MICRO: 4, STEPS: 4}, 4, {}, (100, 4, 4, 4)),
        ({TRAIN: 64, MICRO: "auto"}, 4, {}, (64, None, None, 4)),
        ({TRAIN: 64, MICRO: 2.5}, 4, {}, (64, None, None, 4)),
    ],
)
def test_raw_deepspeed_takes_the_config(config: Any, processes: Any, sizes: Any, expected: Any) -> None:
    assert numbers_of(job_of(config, sizes, processes=processes)) == expected


@pytest.mark.parametrize(
    ("config", "facts", "expected"),
    [
        (AUTO, {}, (32, 8, 1, 4)),
        (AUTO, {"per_device_train_batch_size": 2, STEPS: 16}, (128, 2, 16, 4)),
        (None, {"per_device_train_batch_size": 2, STEPS: 16}, (128, 2, 16, 4)),
        (None, {STEPS: 2}, (64, 8, 2, 4)),
        # A missing key is written as 1; without the micro-batch DeepSpeed derives it from the total.
        ({MICRO: "auto"}, {"per_device_train_batch_size": 2, STEPS: 16}, (8, 2, 1, 4)),
        ({TRAIN: "auto"}, {"per_device_train_batch_size": 2, STEPS: 16}, (128, 32, 1, 4)),
        ({TRAIN: "auto", STEPS: "auto"}, {"per_device_train_batch_size": 2, STEPS: 16}, (128, 2, 16, 4)),
        # What the file pins is taken to be what the arguments say, as long as they are not shown.
        ({TRAIN: "auto", MICRO: 2, STEPS: "auto"}, {}, (8, 2, 1, 4)),
        (AUTO, {"per_device_train_batch_size": "$BS"}, (None, None, 1, 4)),
    ],
)
def test_the_trainer_fills_in_auto(config: Any, facts: dict[str, Any], expected: Any) -> None:
    named = {f"trainer.{name}": value for name, value in facts.items()}
    assert numbers_of(job_of(config, named, framework="transformers", processes=4)) == expected


VARIABLE = "environment.ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
ARGUMENT, PLUGIN = "accelerator.gradient_accumulation_steps", "plugin.gradient_accumulation_steps"
YAML, FLAG = "accelerate.gradient_accumulation_steps", "accelerate.flag.gradient_accumulation_steps"


@pytest.mark.parametrize(
    ("config", "facts", "steps"),
    [
        ({MICRO: 8, STEPS: 8}, {ARGUMENT: 4, VARIABLE: 2}, 8),  # C3, C6c: DeepSpeed's own file first
        ({MICRO: 8}, {ARGUMENT: 4}, 1),  # C5: a missing key becomes 1
        ({MICRO: 8, STEPS: "auto"}, {}, 1),  # C5c
        ({MICRO: 8, STEPS: "auto"}, {ARGUMENT: 8, PLUGIN: 4}, 4),  # C5f
        ({MICRO: 8, STEPS: "auto"}, {ARGUMENT: 4, VARIABLE: "8"}, 8),  # C6b
        (None, {PLUGIN: 4, ARGUMENT: 8}, 4),  # C18c
        (None, {"plugin.zero_stage": 2, ARGUMENT: 4}, 4),  # C18b
        (None, {"accelerate.distributed_type": "DEEPSPEED", YAML: 1, ARGUMENT: 4}, 1),
        (None, {"accelerate.distributed_type": "MULTI_GPU", YAML: 2, ARGUMENT: 4}, 4),
        (None, {"accelerate.distributed_type": "MULTI_GPU"}, 1),
    ],
)
def test_accelerate_has_an_order_of_owners(config: Any, facts: dict[str, Any], steps: int) -> None:
    facts = {**facts, "loader.batch_size": 8}
    job = job_of(config, facts, framework="accelerate", processes=2)
    assert numbers_of(job) == (16 * steps, 8, steps, 2)


@pytest.mark.parametrize(
    ("facts", "steps"),
    [
        # accelerate launch exports its flag, or the field of its YAML, over what the shell has.
        ({FLAG: 4, VARIABLE: "8"}, 4),
        ({YAML: 2, VARIABLE: "8", ARGUMENT: 16}, 2),
        ({FLAG: 4, YAML: 2, VARIABLE: "8"}, 4),
    ],
)
def test_accelerate_launch_overwrites_the_variable(facts: dict[str, Any], steps: int) -> None:
    facts = {**facts, "loader.batch_size": 8}
    job = job_of({MICRO: 8, STEPS: "auto"}, facts, framework="accelerate", processes=2)
    assert numbers_of(job)[2] == steps


@pytest.mark.parametrize(
    ("version", "facts", "steps"),
    [
        ("0.16.0", {ARGUMENT: 4}, 4),
        ("0.22.0", {ARGUMENT: 4}, 4),
        ("0.23.0", {ARGUMENT: 4}, 8),
        ("1.15.0", {ARGUMENT: 4}, 8),
        ("0.20.3", {VARIABLE: "2", ARGUMENT: 4}, 2),
        ("0.16.0", {PLUGIN: 4}, 8),
        ("0.16.0", {"accelerator.present": True}, 1),
        ("0.16.0", {}, 8),
    ],
)
def test_in_old_accelerate_its_own_count_replaces_that_of_the_file(
    version: str, facts: dict[str, Any], steps: int
) -> None:
    job = job_of({MICRO: 8, STEPS: 8}, facts, framework="accelerate", processes=2)
    job.have("accelerate", version)
    assert numbers_of(job) == (16 * steps, 8, steps, 2)


def test_old_accelerate_says_in_its_log_that_the_argument_won() -> None:
    events = (("accumulation-updated", {"to": 1, "before": 16}),)
    job = job_of({MICRO: 8, STEPS: 16}, framework="accelerate", processes=2, events=events)
    assert numbers_of(job) == (16, 8, 1, 2)
    job.set(STEPS, 4)  # the config has been mended since
    assert numbers_of(job) == (64, 8, 4, 2)
    job.set(STEPS, 16)
    job.set(ARGUMENT, 16)
    assert numbers_of(job) == (256, 8, 16, 2)


def test_accelerate_asks_for_the_loader_that_auto_needs() -> None:
    job = job_of({TRAIN: "auto", MICRO: "auto", STEPS: 2}, framework="accelerate", processes=2)
    assert numbers_of(job) == (None, None, 2, 2)
    assert "loader.batch_size" in effective(job).missing[0]


def test_lightning_owns_the_accumulation_and_the_loader_the_micro_batch() -> None:
    facts = {"trainer.accumulate_grad_batches": 32, "loader.batch_size": 4}
    assert numbers_of(job_of(None, facts, framework="lightning", processes=1)) == (128, 4, 32, 1)
    assert numbers_of(job_of({MICRO: 2}, facts, framework="lightning", processes=2)) == (128, 2, 32, 2)


def test_openrlhf_leaves_the_accumulation_to_deepspeed() -> None:
    assert numbers_of(job_of({TRAIN: 128, MICRO: 4}, framework="openrlhf", processes=8)) == (128, 4, 4, 8)


def test_a_log_alone_gives_its_numbers() -> None:
    assert numbers_of(job_of(events=(product(40, 4, 3, 4),))) == (40, 4, 3, 4)


def test_the_first_source_of_the_number_of_processes_counts() -> None:
    job = job_of({MICRO: 1})
    job.launches.append(Launch("deepspeed", Source("run.sh", 1), 8))
    job.facts["environment.WORLD_SIZE"] = []
    assert effective(job).replicas == 8
    job.set("processes", 4)
    assert effective(job).replicas == 4


def test_sources_name_file_and_line() -> None:
    sources = effective(job_of({TRAIN: 64, STEPS: 4}, processes=2)).sources()
    assert (sources[TRAIN], sources[STEPS]) == ("ds.json:2", "ds.json:3")
    assert MICRO not in sources


@pytest.mark.parametrize("config", [{TRAIN: 64, MICRO: 4, STEPS: 4}, {MICRO: 4}, {TRAIN: 64}])
def test_without_a_number_of_processes_it_is_asked_for(config: dict[str, Any]) -> None:
    (sentence,) = effective(job_of(config)).missing
    assert "--processes" in sentence


ONE = product(64, 4, 8, 1)


@pytest.mark.parametrize(
    ("config", "facts", "processes", "events", "code"),
    [
        ({TRAIN: 64, MICRO: 4, STEPS: 8}, {}, 2, (), None),
        ({TRAIN: 64, MICRO: 4, STEPS: 8}, {}, 4, (), "written-for-other-world-size"),
        ({TRAIN: 60, MICRO: 4, STEPS: 8}, {}, 4, (), "batch-product-mismatch"),
        ({TRAIN: 66, MICRO: 4}, {}, 2, (), "batch-not-divisible"),
        ({TRAIN: 6, MICRO: 4}, {}, 2, (), "batch-below-world-size"),
        ({TRAIN: 256, MICRO: 4, STEPS: 8}, {"tensor_parallel": 2}, 8, (), "model-parallel-world"),
        (None, {}, 2, (ONE,), "world-size-seen-as-one"),
        (None, {}, 1, (ONE,), "written-for-other-world-size"),
        (None, {}, None, (ONE,), "written-for-other-world-size"),
        (None, {}, None, (ONE, ("started", {"processes": 2, "how": "ranks"})), "world-size-seen-as-one"),
        # Launched are four, of which two and two share samples, and 64 = 4 x 8 x 2.
        (None, {"tensor_parallel": 2}, 4, (ONE,), "world-size-seen-as-one"),
        (None, {}, 8, (product(64, 2, 4, 4),), "world-size-disagreement"),
        (None, {"tensor_parallel": 4}, 16, (product(32, 8, 1, 16),), "model-parallel-world"),
        (None, {}, None, (product(256, 2, 18, 7),), "batch-not-divisible"),
        (None, {}, None, (product(40, 4, 3, 4),), "batch-product-mismatch"),
        (None, {}, None, (product(64, 8, 1, 4),), "written-for-other-world-size"),
        # The log is of other numbers than those that the config holds now.
        ({TRAIN: 32, MICRO: 4, STEPS: 4}, {}, 2, (product(64, 4, 4, 2),), None),
    ],
)
def test_one_fault_has_one_name(config: Any, facts: Any, processes: Any, events: Any, code: str | None) -> None:
    fault = find_fault(job_of(config, facts, processes=processes, events=events))
    assert (fault.code if fault else None) == code


def test_the_trainers_own_product_shows_how_many_were_started() -> None:
    facts = {"trainer.per_device_train_batch_size": 4, "trainer.gradient_accumulation_steps": 8}
    fault = find_fault(job_of(AUTO, facts, framework="transformers", events=(product(128, 4, 8, 1),)))
    assert fault is not None
    assert (fault.code, fault.fits) == ("world-size-seen-as-one", 4)


@pytest.mark.parametrize(
    ("wanted", "code"),
    [
        (32, None),
        (64, "batch-product-mismatch"),
        (66, "batch-not-divisible"),
        (3, "batch-below-world-size"),
    ],
)
def test_a_wanted_batch_is_held_against_the_used_one(wanted: int, code: str | None) -> None:
    job = job_of({MICRO: 4, STEPS: 2}, {"wanted.train_batch_size": wanted}, processes=4)
    fault = find_fault(job)
    assert (fault.code if fault else None) == code
