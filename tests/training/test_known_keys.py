"""The committed table of keys is that of the installed DeepSpeed, and DeepSpeed itself agrees with it."""

from __future__ import annotations

import importlib

import pytest

from dsaccum_helpers import known_keys
from dsaccum_helpers.installed_keys import MODELS, newer_keys, package
from tools.make_known_keys import OUT, source, whole_table


def test_the_table_is_up_to_date() -> None:
    folder = package()
    assert folder is not None
    assert OUT.read_text(encoding="utf-8") == source(whole_table(folder)), "Smallest fix: make known-keys."


def test_the_installed_version_is_read_where_it_is_another_one() -> None:
    assert newer_keys(known_keys.VERSION) == frozenset()
    assert {"train_batch_size", "gradient_clipping", "zero_optimization"} <= newer_keys("0.1.0") <= known_keys.TOP_LEVEL


def test_every_field_of_the_models_is_in_the_table() -> None:
    config = importlib.import_module("deepspeed.runtime.config")
    for block, name in MODELS.items():
        owner = next((module for module in modules(config) if hasattr(module, name)), None)
        assert owner is not None, name
        fields = getattr(owner, name).model_fields
        names = {*fields, *(field.alias for field in fields.values() if field.alias)}
        assert names <= known_keys.CHECKED[block]


def modules(config: object) -> list[object]:
    parts = ("comm", "compile", "monitor", "runtime.precision_config", "runtime.tensor_parallel", "runtime.zero")
    names = [part if "_config" in part else f"{part}.config" for part in parts]
    found = [importlib.import_module(f"deepspeed.{name}") for name in names]
    return [config, *found, importlib.import_module("deepspeed.runtime.zero.offload_config")]


@pytest.mark.parametrize("block", ["zero_optimization", "bf16", "fp16"])
def test_deepspeed_refuses_an_unknown_key_of_a_checked_block(block: str) -> None:
    from deepspeed.runtime.config import DeepSpeedConfig

    with pytest.raises(Exception, match="Extra inputs are not permitted"):
        DeepSpeedConfig({"train_batch_size": 1, block: {"no_such_key": 1}})


def test_deepspeed_ignores_an_unknown_key_at_the_top() -> None:
    from deepspeed.runtime.config import DeepSpeedConfig

    config = DeepSpeedConfig({"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps ": 8})
    assert config.gradient_accumulation_steps == 1


@pytest.mark.parametrize("key", sorted(known_keys.REMOVED))
def test_deepspeed_refuses_what_was_removed(key: str) -> None:
    from deepspeed.runtime.config import DeepSpeedConfig, DeepSpeedConfigError

    with pytest.raises(DeepSpeedConfigError):
        DeepSpeedConfig({"train_batch_size": 1, key: {}})
