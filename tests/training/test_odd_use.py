"""What people do with the Runner that nobody planned for: each has one clear sentence, or simply works."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from dsaccum_helpers import Setting, SettingError, compare
from dsaccum_helpers.training import RunError, Runner

SHORT = Setting(task="regression", optimizer_steps=2)
FORKING = """
import os, sys
from dsaccum_helpers import compare, Setting
short = Setting(task="regression", optimizer_steps=2)
print(compare(setting=short).matched.sentence, flush=True)
child = os.fork()
if child == 0:
    print("child", compare(setting=short).matched.sentence, flush=True)
    sys.exit(0)
assert os.waitpid(child, 0)[1] == 0
print("parent", compare(setting=short).matched.sentence, flush=True)
"""
FINISHED = "Finished: 2 optimizer steps."


@pytest.fixture
def runner():
    made = Runner()
    yield made
    made.close()


def test_a_kernel_that_forks_keeps_its_runner_and_the_child_gets_its_own():
    done = subprocess.run([sys.executable, "-c", FORKING], capture_output=True, text=True, timeout=100)
    assert done.stdout.splitlines() == [FINISHED, f"child {FINISHED}", f"parent {FINISHED}"], done.stderr


def test_a_removed_private_folder_is_made_anew(runner):
    list(runner.stream([runner.start(SHORT)]))
    shutil.rmtree(runner.ready().folder)
    run = runner.start(SHORT)
    list(runner.stream([run]))
    assert run.result.sentence == FINISHED


def test_a_run_can_be_streamed_once(runner):
    run = runner.start(SHORT)
    list(runner.stream([run]))
    with pytest.raises(RunError, match="streamed once"):
        list(runner.stream([run]))
    other = runner.start(SHORT)
    with pytest.raises(RunError, match="streamed once"):
        list(runner.stream([other, other]))


def test_started_from_a_folder_that_was_deleted(tmp_path):
    code = f"import os; os.chdir({str(tmp_path)!r}); os.mkdir('gone'); os.chdir('gone'); os.rmdir('../gone')\n"
    code += "from dsaccum_helpers import compare, Setting\n"
    code += "print(compare(setting=Setting(task='regression', optimizer_steps=2)).matched.sentence)"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, env=environment)
    assert done.stdout.splitlines() == [FINISHED], done.stderr


@pytest.mark.parametrize("setting", [5, {"task": "regression"}, "regression"])
def test_what_is_no_setting_is_said(setting):
    with pytest.raises(SettingError, match=r"Smallest fix: setting=Setting"):
        compare(setting=setting, runner=object())


@pytest.mark.parametrize(
    ("codes", "words"),
    [
        ((["loss-divided-twice"],), "is not a mismatch"),
        (("oracle",), "oracle=True"),
        (("LOSS-DIVIDED-TWICE",), "use loss-divided-twice"),
        ((SHORT,), "is not a mismatch"),
    ],
)
def test_what_is_no_code_is_said(codes, words):
    with pytest.raises(ValueError, match=words):
        compare(*codes, setting=SHORT, runner=object())


def test_bf16_with_adam_at_stage_0_comes_with_a_word(runner):
    odd = SHORT.change(dtype="bf16", optimizer="Adam")
    assert "one step ahead" in runner.warning(odd)
    assert runner.warning(odd.change(zero_stage=1)) == ""


@pytest.mark.parametrize(
    "arguments", [["--setting", "{bad"], ["--setting", "[]"], ["--setting", '{"foo": 1}'], ["--mismatch", "nope"]]
)
def test_the_script_says_what_is_wrong_with_its_arguments(arguments):
    command = [sys.executable, "-m", "dsaccum_helpers.training.worker", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert "error: " in done.stderr
