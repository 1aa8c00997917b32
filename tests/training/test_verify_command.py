"""``verify`` and ``dsaccum verify``: rows that hold, a fault that is really there, and options that are off."""

import json
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

from dsaccum_helpers import Runner, Setting, verify
from dsaccum_helpers.setting import SettingError
from dsaccum_helpers.training import ORACLE
from dsaccum_helpers.verification import ADAM_AHEAD, UPDATES

COMMAND = [sys.executable, "-m", "dsaccum_helpers.commands", "verify"]


def dsaccum_verify(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], cwd=folder, capture_output=True, text=True, timeout=300)


def test_rows_say_how_far_each_split_ends_from_the_full_batch(runner: Runner) -> None:
    seen: list[tuple[int, ...]] = []

    def progress(*counts: int) -> None:
        seen.append(counts)

    few = {"stages": [0, 2], "dtypes": ["fp32"], "optimizers": ["SGD"], "splits": [4]}
    proof = verify(**few, runner=runner, progress=progress)
    assert proof.holds
    assert "torch" in str(proof)
    numbers = [(row.zero_stage, row.processes, row.train_micro_batch_size_per_gpu) for row in proof.rows]
    assert numbers == [(0, 1, 8), (0, 2, 4), (2, 1, 8), (2, 2, 4)]
    assert seen[-1] == (5, 5)  # four splits and the full batch
    # The first row once more, by hand.
    setting = Setting(optimizer_steps=UPDATES, train_micro_batch_size_per_gpu=8, gradient_accumulation_steps=4)
    whole = setting.change(train_micro_batch_size_per_gpu=32, gradient_accumulation_steps=1)
    runs = [runner.start(setting, keep_weights=True), runner.start(whole, ORACLE, keep_weights=True)]
    for _ in runner.stream(runs):
        pass
    split, full = (run.result.weights for run in runs)
    assert proof.rows[0].distance == numpy.abs(split - full).max() > 0


def test_a_known_fault_of_the_installed_version_is_a_row_that_fails_with_its_name(runner: Runner) -> None:
    proof = verify(stages=[0, 1], dtypes=["bf16"], optimizers=["Adam"], processes=[1], splits=[1, 8], runner=runner)
    assert [row.holds for row in proof.rows] == [False, False, True, True]
    assert not proof.holds
    assert proof.summary == "2 of 4 settings do not end at the weights of the full batch."
    assert str(proof).count(f"no: {ADAM_AHEAD}") == 2
    assert proof._repr_html_().count("<td>no: ") == 2
    assert proof.rows[2].distance == 0.0, "one micro-batch: no sum is rounded anywhere"


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"splits": [5]}, "32 samples do not divide into 5 accumulation steps on 1 processes"),
        ({"processes": [0]}, r"processes \(.*\) is 0"),
        ({"splits": [0]}, r"gradient_accumulation_steps \(.*\) is 0"),
        ({"stages": [4]}, "zero_stage is 4"),
        ({"dtypes": ["fp16"]}, "dtype is 'fp16'"),
        ({"train_batch_size": 0}, r"train_micro_batch_size_per_gpu \(.*\) is 0"),
    ],
)
def test_what_cannot_be_verified_is_said_before_anything_starts(
    change: dict[str, object], named: str, runner: Runner
) -> None:
    with pytest.raises(SettingError, match=named):
        verify(runner=runner, **change)


def test_command_answers_in_text_and_json(tmp_path: Path) -> None:
    few = ("--dtype", "fp32", "--optimizer", "SGD", "--stage", "1", "--accumulation-steps", "1,2", "--processes", "2")
    done = dsaccum_verify(tmp_path, *few, "--task", "regression", "--train-batch-size", "16", "--format", "json")
    answer = json.loads(done.stdout)
    assert (done.returncode, done.stderr, answer["holds"]) == (0, "", True)
    micro_batches = [row["train_micro_batch_size_per_gpu"] for row in answer["rows"]]
    assert micro_batches == [8, 4]
    assert answer["machine"]["versions"]["deepspeed"]


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--stage", "x"], "--stage: invalid int list value: 'x'"),
        (["--task", "mnist"], "--task: invalid choice: 'mnist'"),
        (["--processes", ""], "--processes"),
        (["ds_config.json"], "unrecognized arguments: ds_config.json"),
        (["--accumulation-steps", "3"], "32 samples do not divide into 3"),
        (["--output", "nowhere/x.html"], "nowhere/x.html cannot be written (there is no such folder)"),
        (["--output", "/"], "/ cannot be written (it is a folder)"),
    ],
)
def test_an_option_that_is_off_is_one_line(words: list[str], named: str, tmp_path: Path) -> None:
    done = dsaccum_verify(tmp_path, *words)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert named in done.stderr
    assert "Smallest fix:" in done.stderr
