"""A setting is right or refused, in one sentence that names what is off and the smallest remedy."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsaccum_helpers.batch import resolve_batch
from dsaccum_helpers.errors import DsaccumError
from dsaccum_helpers.setting import (
    DTYPES,
    MAXIMUM,
    MAXIMUM_TRAIN_BATCH,
    OPTIMIZERS,
    SCHEDULES,
    TASKS,
    ZERO_STAGES,
    Setting,
    SettingError,
)

WHOLE = ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "processes", "optimizer_steps")
CHOICES = {
    "task": tuple(TASKS),
    "optimizer": OPTIMIZERS,
    "dtype": DTYPES,
    "schedule": SCHEDULES,
    "zero_stage": ZERO_STAGES,
}


def refusal(**fields: Any) -> str:
    with pytest.raises(SettingError) as caught:
        Setting(**fields)
    return str(caught.value)


def assert_one_clear_message(message: str, *parts: str) -> None:
    assert "\n" not in message
    assert message.count("Smallest fix: ") == 1
    assert message.endswith(".")
    assert len(message) < 400
    for part in parts:
        assert part in message


@pytest.mark.parametrize("name", WHOLE)
@pytest.mark.parametrize(
    ("value", "said"),
    [
        (0, "is 0, outside 1 to "),
        (-1, "is -1, outside 1 to "),
        (10**12, "is 1,000,000,000,000, outside 1 to "),
        (2.5, "is 2.5, not a whole number"),
        (4.0, "is 4.0, not a whole number"),
        ("four", "is 'four', not a whole number"),
        ("4", "is '4', not a whole number"),
        ("", "is '', not a whole number"),
        (None, "is None, not a whole number"),
        (True, "is True, not a whole number"),
        (float("inf"), "is inf, not a whole number"),
        (float("nan"), "is nan, not a whole number"),
        ([4], "is [4], not a whole number"),
    ],
)
def test_bad_numbers_are_named(name: str, value: object, said: str) -> None:
    assert_one_clear_message(refusal(**{name: value}), name, said)


@pytest.mark.parametrize("name", [*WHOLE, "seed"])
def test_the_remedy_is_the_nearest_number_that_works(name: str) -> None:
    least = 0 if name == "seed" else 1
    for value, nearest in ((least - 1, least), (MAXIMUM[name] + 1, MAXIMUM[name])):
        fix = refusal(**{name: value}).split("Smallest fix: ")[1]
        assert fix == f"{nearest:,}."
        Setting(**{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 1, name: nearest})


def test_a_thousand_processes_are_refused() -> None:
    assert_one_clear_message(
        refusal(processes=1000), "processes (training processes) is 1,000, outside 1 to 8", "fix: 8."
    )


def test_a_number_too_long_to_be_written_is_refused_as_well() -> None:
    """Python itself refuses to print more than 4,300 digits."""
    for name in (*WHOLE, "seed", "learning_rate"):
        with pytest.raises(SettingError):
            Setting(**{name: 10**5000})


@pytest.mark.parametrize("name", CHOICES)
@pytest.mark.parametrize("value", ["nonsense", "", None, 7, True, 1.0, -1, ["SGD"], {}])
def test_unknown_names_are_answered_with_the_known_ones(name: str, value: object) -> None:
    message = refusal(**{name: value})
    assert_one_clear_message(message, f"{name} is {value!r}", "which this course does not run")
    for allowed in CHOICES[name]:
        assert repr(allowed) in message


@pytest.mark.parametrize("name", ["learning_rate", "gradient_clipping"])
@pytest.mark.parametrize("value", [-1, -0.5, float("nan"), float("inf"), 1e9, "fast", True, [1.0]])
def test_rates_and_norms_must_be_numbers(name: str, value: object) -> None:
    assert_one_clear_message(refusal(**{name: value}), f"{name} is {value!r}", "a number ")


def test_a_learning_rate_of_zero_is_refused_and_no_clipping_is_not() -> None:
    assert_one_clear_message(refusal(learning_rate=0), "learning_rate is 0", "more than 0")
    assert Setting(gradient_clipping=0).gradient_clipping == 0


@pytest.mark.parametrize("task", TASKS)
def test_a_train_batch_beyond_the_largest_is_refused_with_its_product(task: str) -> None:
    most = MAXIMUM_TRAIN_BATCH[task]
    assert Setting(task=task, train_micro_batch_size_per_gpu=most // 256, gradient_accumulation_steps=256)
    message = refusal(
        task=task, train_micro_batch_size_per_gpu=most // 128, gradient_accumulation_steps=128, processes=2
    )
    assert_one_clear_message(
        message, f"train_batch_size would be {2 * most:,} = {most // 128} × 128 × 2", f"above the {most:,} samples"
    )


def test_the_numbers_of_a_setting_multiply() -> None:
    setting = Setting(train_micro_batch_size_per_gpu=6, gradient_accumulation_steps=5, processes=4, optimizer_steps=7)
    assert setting.train_batch_size == 120
    assert setting.micro_batches == 35


settings = st.builds(
    Setting,
    **{name: st.sampled_from(values) for name, values in CHOICES.items()},
    train_micro_batch_size_per_gpu=st.integers(1, 16),
    gradient_accumulation_steps=st.integers(1, 8),
    processes=st.integers(1, 8),
    gradient_clipping=st.sampled_from([0, 0.0, 0.5, 3]),
    learning_rate=st.sampled_from([None, 1, 0.25, 1e-6]),
    optimizer_steps=st.integers(1, 10_000),
    seed=st.integers(0, 2**31 - 1),
)


@given(settings)
def test_every_setting_is_one_that_deepspeed_accepts(setting: Setting) -> None:
    config = setting.ds_config()
    numbers = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
    resolved = resolve_batch(*(config[name] for name in numbers), world_size=setting.processes)
    assert resolved.as_config() == {name: config[name] for name in numbers}
    assert json.loads(json.dumps(config)) == config, "valid as ds_config.json"
    assert config["zero_optimization"] == {"stage": setting.zero_stage}
    assert config["bf16"] == {"enabled": setting.dtype == "bf16"}
    assert config["optimizer"]["type"] == setting.optimizer
    assert config["optimizer"]["params"]["lr"] == setting.rate


def test_the_config_says_no_clipping_in_words_because_silence_means_one() -> None:
    assert repr(Setting().ds_config()["gradient_clipping"]) == "0.0"
    assert Setting(gradient_clipping=2).ds_config()["gradient_clipping"] == 2.0


def test_adam_in_the_config_is_the_one_that_needs_no_compiler() -> None:
    assert Setting(optimizer="Adam").ds_config()["optimizer"]["params"]["torch_adam"] is True


@given(settings)
def test_a_setting_survives_json(setting: Setting) -> None:
    assert Setting(**json.loads(json.dumps(setting.to_dict()))) == setting


def test_the_schedule_falls_to_zero_over_the_optimizer_steps() -> None:
    setting = Setting(learning_rate=0.5, optimizer_steps=4)
    assert [setting.rate_at(step) for step in range(7)] == [0.5, 0.375, 0.25, 0.125, 0.0, 0.0, 0.0]
    assert [setting.change(schedule="constant").rate_at(step) for step in (0, 3, 9)] == [0.5, 0.5, 0.5]


def test_change_checks_everything_again() -> None:
    setting = Setting()
    assert setting.change(processes=2).train_batch_size == 2 * setting.train_batch_size
    assert setting.processes == 1
    with pytest.raises(SettingError, match="processes"):
        setting.change(processes=0)
    with pytest.raises(SettingError, match=r"^micro_batch is no part of a setting\. Smallest fix: use one of task, "):
        setting.change(micro_batch=4)


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_learning_rate_is_the_tasks_own_until_one_is_chosen(task: str, optimizer: str) -> None:
    own = Setting(task=task, optimizer=optimizer).rate
    assert own > 0
    assert Setting().change(task=task, optimizer=optimizer).rate == own
    chosen = Setting(learning_rate=0.123)
    assert chosen.change(task=task, optimizer=optimizer).rate == 0.123


def test_a_setting_cannot_be_changed_behind_its_back() -> None:
    with pytest.raises(AttributeError):
        Setting().processes = 3
    assert len({Setting(), Setting(), Setting(seed=1)}) == 2


def test_the_error_is_the_learners() -> None:
    assert issubclass(SettingError, DsaccumError)
    assert issubclass(SettingError, ValueError)


def test_every_task_says_what_it_is() -> None:
    for name, words in TASKS.items():
        assert re.search(r"\d", words), f"{name}: how large?"


def test_adam_is_not_given_the_rate_of_sgd() -> None:
    assert Setting(optimizer="Adam").rate < Setting(optimizer="SGD").rate / 10
