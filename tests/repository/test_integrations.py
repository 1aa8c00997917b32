"""The GitHub Action and the pre-commit hook run the command that there is, and the README shows how to use them."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ACTION = yaml.safe_load((ROOT / "action.yml").read_text())
HOOK = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())[0]
README = (ROOT / "README.md").read_text(encoding="utf-8")
WRONG = '{"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4}'
RIGHT = WRONG.replace("10", "16")


@pytest.fixture
def command(tmp_path: Path) -> Path:
    """A `dsaccum` in a folder of its own."""
    path = tmp_path / "dsaccum" / "bin" / "dsaccum"
    path.parent.mkdir(parents=True)
    path.write_text(f'#!/bin/sh\nPYTHONPATH={ROOT} exec {sys.executable} -m dsaccum_helpers.commands "$@"\n')
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("text", "status"), [(RIGHT, 0), (WRONG, 1)])
def test_action_writes_annotations(text: str, status: int, command: Path, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(text)
    step = ACTION["runs"]["steps"][-1]
    assert step["env"] == {"PATHS": "${{ inputs.paths }}", "OPTIONS": "${{ inputs.options }}"}
    assert "${{" not in step["run"], "an input must not become part of the script"
    environment = {**os.environ, "RUNNER_TEMP": str(tmp_path), "PATHS": "*.json", "OPTIONS": "--processes 1"}
    call = ["bash", "-e", "-c", step["run"]]
    done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == status, done.stderr
    assert ("::error file=a.json,line=1," in done.stdout) == bool(status)


def test_action_installs_itself() -> None:
    assert ACTION["runs"]["using"] == "composite"
    python, *ours = ACTION["runs"]["steps"]
    lowest = re.search(r'requires-python = ">=([\d.]+)"', (ROOT / "pyproject.toml").read_text())
    assert lowest
    assert _parts(python["with"]["python-version"]) >= _parts(lowest[1])
    assert '"$GITHUB_ACTION_PATH"' in ours[0]["run"]
    assert all(step["shell"] == "bash" for step in ours)


def _parts(version: str) -> list[int]:
    return [int(part) for part in version.split(".")]


def test_hook_checks_each_file_as_a_job_of_its_own(command: Path, tmp_path: Path) -> None:
    names = {"right one.json": RIGHT, "wrong.json": WRONG, "more.json": RIGHT}
    for name, text in names.items():
        (tmp_path / name).write_text(text)
    environment = {**os.environ, "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"}
    for given, status in ((["right one.json", "more.json"], 0), (list(names), 1)):
        call = [*shlex.split(HOOK["entry"]), *given]
        done = subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True, text=True)
        assert done.returncode == status, done.stderr
        assert done.stdout.count("train_micro_batch_size_per_gpu") >= len(given)


def test_hook_hands_options_to_each_file(command: Path, tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"train_micro_batch_size_per_gpu": "auto"}')
    environment = {**os.environ, "PATH": f"{command.parent}{os.pathsep}{os.environ['PATH']}"}
    for given, status in ((["a.json"], 1), (["--framework=transformers", "a.json"], 0)):
        call = [*shlex.split(HOOK["entry"]), *given]
        assert subprocess.run(call, cwd=tmp_path, env=environment, capture_output=True).returncode == status


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("ds_config.json", True),
        ("configs/zero2.json", True),
        ("a/deepspeed_zero3.hjson", True),
        ("ds-config.json", True),
        ("package.json", False),
        ("src/odds.json", False),
        ("ds_config.py", False),
    ],
)
def test_hook_takes_deepspeed_configs(name: str, meant: bool) -> None:
    assert bool(re.search(HOOK["files"], name)) is meant


def test_readme_shows_both() -> None:
    blocks = [yaml.safe_load(block) for block in re.findall(r"```yaml\n(.*?)```", README, re.DOTALL)]
    (checkout, uses), (hooks,) = blocks
    assert checkout["uses"].startswith("actions/checkout@")
    assert uses["uses"] == "dsaccum/dsaccum@main"
    assert set(uses["with"]) <= set(ACTION["inputs"])
    assert hooks["rev"] == "main"
    assert [hook["id"] for hook in hooks["hooks"]] == [HOOK["id"]]
