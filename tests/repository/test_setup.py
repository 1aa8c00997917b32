"""What a person reads when the set-up cannot work: one sentence that names the cause and the remedy."""

import os
import re
import socket
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tools import prepare, system

ROOT = Path(__file__).resolve().parents[2]


def script(path: Path, text: str) -> Path:
    """An executable shell script."""
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def find_python(*candidates: object) -> subprocess.CompletedProcess[str]:
    command = ["sh", ROOT / "tools" / "find_python.sh", *map(str, candidates)]
    return subprocess.run(command, capture_output=True, text=True)


def sentence(error: pytest.ExceptionInfo[SystemExit]) -> str:
    """The one line with which the set-up ended."""
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith(".")
    return text


def test_python_that_is_too_old_is_named(tmp_path: Path) -> None:
    old = script(tmp_path / "python3", "echo 3.9")
    answer = find_python(old)
    assert answer.returncode == 1
    assert answer.stdout == ""
    assert answer.stderr.count("\n") == 1
    assert f"Python 3.11 or newer is needed, but only {old} (3.9) was found" in answer.stderr


@pytest.mark.parametrize("version", ["2.7", "3.10", "3.9"])
def test_old_pythons_and_shims_are_passed_over(tmp_path: Path, version: str) -> None:
    old = script(tmp_path / "old", f"echo {version}")
    shim = script(tmp_path / "shim", "echo 'command not found' >&2; exit 127")
    new = script(tmp_path / "new", "echo 3.11")
    assert find_python(shim, old, new).stdout.strip() == str(new)


@pytest.mark.parametrize("version", ["3.11", "3.14", "3.100"])
def test_new_pythons_are_taken(tmp_path: Path, version: str) -> None:
    assert find_python(script(tmp_path / "python", f"echo {version}")).returncode == 0


def test_no_python_that_runs_is_one_sentence(tmp_path: Path) -> None:
    answer = find_python(tmp_path / "missing")
    assert answer.returncode == 1
    assert answer.stderr.count("\n") == 1
    assert "none of these runs" in answer.stderr


@pytest.mark.parametrize("target", ["install", "lab", "test"])
def test_make_ends_with_that_sentence(tmp_path: Path, target: str) -> None:
    old = script(tmp_path / "python3", "echo 3.9")
    made = subprocess.run(["make", target, f"PYTHON={old}"], cwd=ROOT, capture_output=True, text=True)
    lines = [line for line in made.stderr.splitlines() if not line.startswith("make")]
    assert made.returncode != 0
    assert len(lines) == 1
    assert "Python 3.11 or newer is needed" in lines[0]


def test_full_disk_is_noticed_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSACCUM_SPACE_NEEDED", "1000000")
    with pytest.raises(SystemExit) as error:
        system.require_space(tmp_path, 3)
    assert re.search(r"The disk is too full: 1e\+06 GB are needed in .*, [\d.]+ GB are free", sentence(error))


@pytest.mark.parametrize("target", ["install", "install-test", "install-bare"])
def test_full_disk_ends_a_first_installation(project: Path, target: str) -> None:
    environment = os.environ | {"DSACCUM_SPACE_NEEDED": "1000000"}
    command = ["make", target, f"PYTHON={sys.executable}"]
    made = subprocess.run(command, cwd=project, env=environment, capture_output=True, text=True)
    assert made.returncode != 0
    assert made.stderr.startswith("The disk is too full")
    assert not list(project.glob(".venv*"))


@pytest.mark.parametrize("fault", ["[Errno 28] No space left on device", "[Errno 122] Disk quota exceeded"])
def test_disk_that_becomes_full_during_pip(tmp_path: Path, fault: str) -> None:
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    pip = script(
        tmp_path / ".venv" / "bin" / "python",
        f'echo "ERROR: Could not install packages due to an OSError: {fault}"; exit 1',
    )
    with pytest.raises(SystemExit) as error:
        prepare.pip_install(pip, [])
    assert "The disk became full while installing" in sentence(error)


def test_other_faults_of_pip_are_quoted(tmp_path: Path) -> None:
    pip = script(tmp_path / "python", 'echo "ERROR: No matching distribution found for torch==0"; echo hint; exit 1')
    with pytest.raises(SystemExit, match="No matching distribution found for torch==0"):
        prepare.pip_install(pip, [], tmp_path / "install.log")
    assert "hint" in (tmp_path / "install.log").read_text()


def test_taken_port_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(SystemExit) as error:
            system.require_port(str(port))
    assert sentence(error).startswith(f"Port {port} is taken: ")
    system.require_port(str(port))


@pytest.mark.parametrize("text", ["0", "65536", "-1", "abc", "88.8", ""])
def test_what_is_no_port_is_refused(text: str) -> None:
    with pytest.raises(SystemExit) as error:
        system.require_port(text)
    assert sentence(error).startswith(f"PORT={text} is not a port")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A copy of what the set-up reads, without any environment."""
    folder = tmp_path / "project"
    (folder / "tools").mkdir(parents=True)
    for name in (
        "Makefile",
        "pyproject.toml",
        "constraints.txt",
        "tools/find_python.sh",
        "tools/prepare.py",
        "tools/system.py",
    ):
        (folder / name).write_bytes((ROOT / name).read_bytes())
    return folder


@pytest.fixture
def installed(project: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """An environment that counts as installed; the list collects every later call of pip."""
    calls: list[list[str]] = []
    monkeypatch.setattr(prepare, "ROOT", project)
    monkeypatch.setattr(prepare, "CONSTRAINTS", project / "constraints.txt")
    monkeypatch.setattr(prepare, "require_space", lambda folder, gigabytes: None)
    monkeypatch.setattr(prepare, "venv_fault", lambda folder: None)
    monkeypatch.setattr(prepare, "pip_install", lambda python, arguments, log: calls.append([*map(str, arguments)]))
    (project / ".venv").mkdir()
    prepare.install("course")
    assert len(calls) == 1
    calls.clear()
    return calls


def test_second_installation_does_nothing(installed: list[list[str]]) -> None:
    prepare.install("course")
    assert installed == []


def test_tests_come_on_top_of_the_course(installed: list[list[str]]) -> None:
    prepare.install("test")
    assert len(installed) == 1
    assert installed[0][-1].endswith("[course,test]")
    prepare.install("course")
    prepare.install("test")
    assert len(installed) == 1


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("constraints.txt", "torch==", "torch==9"),
        ("pyproject.toml", "ipywidgets>=8,<9", "ipywidgets>=8.1,<9"),
    ],
)
def test_changed_requirements_are_installed(
    project: Path, installed: list[list[str]], file: str, old: str, new: str
) -> None:
    text = (project / file).read_text()
    assert old in text
    (project / file).write_text(text.replace(old, new))
    prepare.install("course")
    assert len(installed) == 1


def test_changed_style_settings_install_nothing(project: Path, installed: list[list[str]]) -> None:
    text = (project / "pyproject.toml").read_text()
    (project / "pyproject.toml").write_text(text.replace("line-length = 120", "line-length = 100"))
    prepare.install("course")
    assert installed == []


def test_installation_that_failed_is_tried_again(installed: list[list[str]], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise SystemExit("pip could not install.")

    monkeypatch.setattr(prepare, "pip_install", fail)
    for _ in range(2):
        with pytest.raises(SystemExit, match="pip could not install"):
            prepare.install("test")


def test_environment_that_was_moved_or_broken_is_made_anew(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    assert prepare.venv_fault(tmp_path) == ""
    python.parent.mkdir()
    script(python, "echo {}.{}".format(*sys.version_info[:2]))
    (tmp_path / "pyvenv.cfg").write_text(f"command = python -m venv {tmp_path}\n")
    assert prepare.venv_fault(tmp_path) is None
    script(python, "echo 3.8")
    assert "made with 3.8" in str(prepare.venv_fault(tmp_path))
    script(python, "exit 127")
    assert "does not run" in str(prepare.venv_fault(tmp_path))
    (tmp_path / "pyvenv.cfg").write_text("command = python -m venv /elsewhere/.venv\n")
    assert "moved" in str(prepare.venv_fault(tmp_path))


@pytest.mark.parametrize("can_install", [True, False])
def test_python_without_its_venv_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, can_install: bool) -> None:
    asked: list[str] = []

    def run_quietly(command: list[str]) -> subprocess.CompletedProcess[str]:
        output = "" if asked else "The virtual environment was not created: ensurepip is not available"
        return subprocess.CompletedProcess(command, 0 if asked else 1, output)

    def apt_install(package: str) -> bool:
        asked.extend([package] if can_install else [])
        return can_install

    monkeypatch.setattr(prepare, "run_quietly", run_quietly)
    monkeypatch.setattr(prepare, "apt_install", apt_install)
    if can_install:
        prepare.make_venv(tmp_path, "")
        assert asked == ["python{}.{}-venv".format(*sys.version_info[:2])]
    else:
        with pytest.raises(SystemExit) as error:
            prepare.make_venv(tmp_path, "")
        assert sentence(error).startswith("This Python cannot make environments: install the system package python3")


class Started(Exception):
    """Raised in place of becoming JupyterLab."""


@pytest.fixture
def lab_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A function that gives the command line which `make lab` would become."""
    notebook = tmp_path / "notebooks" / "00_start_here.ipynb"
    notebook.parent.mkdir()
    notebook.write_text("{}")
    monkeypatch.setattr(prepare, "ROOT", tmp_path)
    monkeypatch.setattr(prepare, "FIRST_NOTEBOOK", notebook)

    def become(path: str, command: list[str]) -> None:
        raise Started(*command)

    monkeypatch.setattr(os, "execv", become)

    def start(*arguments: str) -> tuple[str, ...]:
        with pytest.raises(Started) as started:
            prepare.lab(list(arguments))
        return started.value.args

    return start


def test_lab_opens_the_first_notebook_and_looks_for_a_free_port(lab_command) -> None:
    command = lab_command()
    assert command[1:3] == ("-m", "jupyterlab")
    assert command[3].endswith("notebooks/00_start_here.ipynb")
    assert not [part for part in command if "port" in part]


def test_lab_keeps_to_the_port_that_was_asked_for(lab_command) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = lab_command("--port", port, "--ip=0.0.0.0")
    assert f"--ServerApp.port={port}" in command
    assert "--ServerApp.port_retries=0" in command
    assert command[-1] == "--ip=0.0.0.0"


@pytest.mark.parametrize(("display", "expected"), [("", True), (":0", False)])
def test_lab_opens_no_browser_without_a_display(
    lab_command, monkeypatch: pytest.MonkeyPatch, display: str, expected: bool
) -> None:
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setenv("DISPLAY", display)
    monkeypatch.setenv("WAYLAND_DISPLAY", "")
    assert ("--no-browser" in lab_command()) is expected


@pytest.mark.parametrize(("user", "expected"), [(0, True), (1000, False)])
def test_lab_is_allowed_for_root(lab_command, monkeypatch: pytest.MonkeyPatch, user: int, expected: bool) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    assert ("--allow-root" in lab_command()) is expected


def test_lab_without_the_course_says_so(lab_command, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare.FIRST_NOTEBOOK.unlink()
    with pytest.raises(SystemExit) as error:
        prepare.lab([])
    assert sentence(error).startswith("notebooks/00_start_here.ipynb is missing")


def test_chromium_that_was_named_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    browser = script(tmp_path / "browser", "echo Chromium 1")
    monkeypatch.setenv("DSACCUM_CHROMIUM", str(browser))
    system.chromium()
    assert capsys.readouterr().out.strip() == str(browser)
    script(browser, "exit 1")
    with pytest.raises(SystemExit) as error:
        system.chromium()
    assert "does not run" in sentence(error)


def test_chromium_stub_is_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    script(tmp_path / "chromium-browser", "echo 'install the snap' >&2; exit 1")
    good = script(tmp_path / "google-chrome", "echo Google Chrome 1")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("DSACCUM_CHROMIUM", raising=False)
    system.chromium()
    assert capsys.readouterr().out.strip() == str(good)


def test_chromium_is_installed_where_there_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def apt_install(package: str) -> bool:
        script(tmp_path / package, "exit 0")
        return True

    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("DSACCUM_CHROMIUM", raising=False)
    monkeypatch.setattr(system, "apt_install", apt_install)
    system.chromium()
    assert capsys.readouterr().out.strip() == str(tmp_path / "chromium")


def test_chromium_that_cannot_be_had_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(system, "CHROMIUM_NAMES", ("chromium",))
    monkeypatch.delenv("DSACCUM_CHROMIUM", raising=False)
    with pytest.raises(SystemExit) as error:
        system.chromium()
    assert sentence(error).startswith("The browser tests need Chromium")
