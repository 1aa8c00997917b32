"""The README's example says what the code says."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dsaccum_helpers import BatchError, check, resolve_batch
from dsaccum_helpers.mismatches import CATALOGUE, GROUPS, RUNNABLE
from dsaccum_helpers.setting import TASKS

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
STORY = ROOT / "examples" / "seven_of_eight"


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
    counts = re.search(
        r"(\d+) of the (\d+) mismatches are made to happen with DeepSpeed alone, (\d+) more with", README
    )
    framed = [code for code, entry in CATALOGUE.items() if getattr(entry, "programs", ()) and code not in RUNNABLE]
    assert list(map(int, counts.groups())) == [len(RUNNABLE), len(CATALOGUE), len(framed)]
    assert set(re.findall(r"^\| `([\w-]+)` \|", README, re.MULTILINE)) == set(TASKS)


def test_the_story_from_log_to_mended_file_is_what_the_command_prints(tmp_path):
    story = re.search(r"```console\n(\$ dsaccum check .*?)```", README, re.DOTALL)[1]
    shutil.copytree(STORY, tmp_path, dirs_exist_ok=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    told = re.split(r"^\$ dsaccum (.*)\n", story, flags=re.MULTILINE)[1:]
    assert len(told) == 8
    statuses = []
    for words, shown in zip(told[::2], told[1::2], strict=True):
        command = [sys.executable, "-m", "dsaccum_helpers.commands", *words.split()]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        assert done.stdout == shown, words
        statuses.append(done.returncode)
    assert statuses == [1, 1, 0, 0]
    before, after = ((folder / "ds_config.json").read_text() for folder in (STORY, tmp_path))
    assert after == before.replace("256,", "252,")


def test_the_log_of_the_story_ends_as_quoted():
    quoted = re.search(r"```text\n(AssertionError: .*?)\n```", README, re.DOTALL)[1]
    assert quoted in (STORY / "train.log").read_text()
    assert f"the {len([code for group in GROUPS.values() for code in group])} things that can be wrong" in README
    assert check(STORY / "ds_config.json", processes=7).codes == ["batch-not-divisible"]
