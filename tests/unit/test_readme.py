"""The README's example says what the code says."""

import re
from pathlib import Path

import pytest

from dsaccum_helpers import BatchError, resolve_batch
from dsaccum_helpers.mismatches import RUNNABLE
from dsaccum_helpers.setting import TASKS

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_error_of_the_example_is_the_real_one():
    call = re.search(
        r"resolve_batch\(train_batch_size=(\d+), gradient_accumulation_steps=(\d+), world_size=(\d+)\)", README
    )
    train, steps, world = map(int, call.groups())
    with pytest.raises(BatchError) as caught:
        resolve_batch(train_batch_size=train, gradient_accumulation_steps=steps, world_size=world)
    assert f"dsaccum_helpers.batch.BatchError: {caught.value}\n" in README


def test_the_world_sizes_of_the_tour_work_as_it_says():
    assert "on 1, 2, 4, 8 or 16 processes, and what happens on 3 or 32" in README
    for world in (1, 2, 4, 8, 16):
        assert (
            resolve_batch(train_batch_size=64, gradient_accumulation_steps=4, world_size=world).train_batch_size == 64
        )
    for world in (3, 32):
        with pytest.raises(BatchError):
            resolve_batch(train_batch_size=64, gradient_accumulation_steps=4, world_size=world)


def test_every_mismatch_and_task_is_named():
    listed = re.search(r"Nine mismatches can be made to happen: (.*?)\.", README)[1]
    assert re.findall(r"`([\w-]+)`", listed) == list(RUNNABLE)
    assert len(RUNNABLE) == 9
    assert set(re.findall(r"^\| `([\w-]+)` \|", README, re.MULTILINE)) == set(TASKS)
