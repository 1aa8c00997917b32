"""`make help`, continuous integration and the hooks name commands that exist."""

import os
import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
MAKEFILE = (ROOT / "Makefile").read_text()
TARGETS = re.findall(r"^([a-z-]+):", MAKEFILE, flags=re.MULTILINE)
SUITES = ("repository", "unit", "panels", "training", "notebooks", "browser")


def dry_run(target: str) -> str:
    """The commands of a target, without running them."""
    return subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=True).stdout


def test_help_has_one_line_for_every_target() -> None:
    shown = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    lines = re.findall(r"^  make ([a-z-]+) +(\S.*)$", shown, flags=re.MULTILINE)
    assert [target for target, _ in lines] == TARGETS


def test_no_target_is_hidden_by_a_file_of_its_name() -> None:
    listed = re.search(r"^\.PHONY: ((?:.*\\\n)*.*)$", MAKEFILE, flags=re.MULTILINE)
    assert listed is not None
    assert sorted(listed[1].replace("\\\n", " ").split()) == sorted(TARGETS)


def test_every_script_that_a_target_runs_is_there() -> None:
    modules = set(re.findall(r"-m (tools\.\w+)", MAKEFILE))
    assert "tools.prepare" in modules
    assert [name for name in sorted(modules) if not (ROOT / f"{name.replace('.', '/')}.py").is_file()] == []


def test_test_runs_every_suite_in_order() -> None:
    commands = dry_run("test")
    places = [
        commands.index(word) for word in ("ruff check", "mypy", "lint-imports", *(f"tests/{suite}" for suite in SUITES))
    ]
    assert places == sorted(places)
    assert ".venv-bare/bin/python -m pytest -n 2 tests/unit" in commands


@pytest.mark.parametrize("suite", SUITES)
def test_every_suite_is_there_and_has_a_target(suite: str) -> None:
    assert list((ROOT / "tests" / suite).rglob("test_*.py")), "a suite that is missing would pass unseen"
    words = re.search(rf"-m pytest(.*) tests/{suite}$", dry_run(f"test-{suite}").strip(), flags=re.MULTILINE)
    assert words is not None
    allowed = {"-p", "no:nbval", "-n", "2", "--dist", "loadfile"}
    assert set(words[1].split()) <= allowed, "nothing may be left out of a suite"


def test_every_folder_of_tests_is_run() -> None:
    folders = {path.relative_to(ROOT / "tests").parts[0] for path in (ROOT / "tests").rglob("test_*.py")}
    assert folders == set(SUITES)


def test_ci_run_calls_make_test_and_nothing_else() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert script.read_text().splitlines()[-1] == "exec make test"


def test_workflow_calls_make_targets_that_exist() -> None:
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    assert "make test" in commands
    for command in commands:
        make, target = command.split()
        assert make == "make"
        assert target in TARGETS


def test_hooks_run_what_lint_runs() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert [repository["repo"] for repository in hooks] == ["local"], "hooks work offline"
    lint = dry_run("lint")
    for hook in hooks[0]["hooks"]:
        tool = hook["entry"].split(".venv/bin/")[1].removeprefix("python -m ").split()[0]
        assert tool in lint


def test_notebooks_keep_their_outputs() -> None:
    assert "nbstripout" not in (ROOT / ".pre-commit-config.yaml").read_text() + (ROOT / ".gitattributes").read_text()
