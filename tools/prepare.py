"""Set up what the Makefile's targets need, and say in one sentence why where that cannot be done.

python -m tools.prepare install course|test|bare      make .venv (bare: .venv-bare) and install into it, once
python -m tools.prepare lab [--port N] [ARGUMENT...]  open JupyterLab on the first notebook
python -m tools.prepare chromium                      print a Chromium that runs; on Debian install one if need be
python -m tools.prepare constraints                   write constraints.txt anew from what pip chooses today

Only the standard library is used, because this runs before anything is installed.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tools.system import apt_install, chromium, no_space, require_port, require_space, run_quietly, say

ROOT = Path(__file__).resolve().parent.parent
CONSTRAINTS = ROOT / "constraints.txt"
FIRST_NOTEBOOK = ROOT / "notebooks" / "00_start_here.ipynb"


@dataclass(frozen=True)
class Group:
    """A set of packages, the environment it goes into and the disk space that a first installation takes."""

    extras: str
    folder: str
    gigabytes: float
    words: str
    includes: tuple[str, ...] = ()


GROUPS = {
    "course": Group(
        "course,frameworks", ".venv", 3, "the course's packages (about 2 GB, more with CUDA; some minutes)"
    ),
    "test": Group(
        "course,test", ".venv", 3.5, "the packages of the course and its tests (about 2 GB, some minutes)", ("course",)
    ),
    "bare": Group("unit", ".venv-bare", 0.2, "the packages of the tests that need no torch (some seconds)"),
}


def fingerprint(group: Group) -> str:
    """What an installation depends on; the same text means that there is nothing to do."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    parts = [
        json.dumps([project["project"], project["build-system"]], sort_keys=True),
        CONSTRAINTS.read_text(),
        str(ROOT),
    ]
    return hashlib.sha256("\n".join([*parts, group.extras]).encode()).hexdigest()


def stamp(name: str) -> Path:
    """The file that holds the fingerprint of a finished installation."""
    return ROOT / GROUPS[name].folder / f".installed-{name}"


def install(name: str) -> None:
    """Make the environment of a group and install the group into it, unless that is done already."""
    group = GROUPS[name]
    folder = ROOT / group.folder
    wanted = fingerprint(group)
    remake = venv_fault(folder)
    if remake is None and stamp(name).is_file() and stamp(name).read_text() == wanted:
        return
    started = any(folder.glob(".installed-*"))
    require_space(folder.parent, 0.5 if started and remake is None else group.gigabytes)
    if remake is not None:
        make_venv(folder, remake)
    say(f"Installing {group.words} into {group.folder} ...")
    pip_install(folder / "bin" / "python", ["-c", CONSTRAINTS, "-e", f"{ROOT}[{group.extras}]"], folder / "install.log")
    for done in (name, *group.includes):
        stamp(done).write_text(fingerprint(GROUPS[done]))


def venv_fault(folder: Path) -> str | None:
    """Why the environment must be made (again), or None where it is good."""
    python = folder / "bin" / "python"
    if not python.exists():
        return ""
    config = folder / "pyvenv.cfg"
    made_by = re.search(r"^command = (.+)$", config.read_text() if config.is_file() else "", re.MULTILINE)
    if made_by is None:
        raise SystemExit(f"{folder} was made by another tool: move it away or remove it, then try again.")
    if not made_by[1].endswith(f" {folder}"):
        return " anew, because the folder was moved"
    probe = run_quietly([python, "-c", "import sys, pip; print('%d.%d' % sys.version_info[:2])"])
    if probe.returncode:
        return " anew, because the one that is there does not run"
    version = probe.stdout.strip()
    return None if version == "{}.{}".format(*sys.version_info[:2]) else f" anew, because it was made with {version}"


def make_venv(folder: Path, reason: str) -> None:
    """Make an empty environment with the Python that runs this file (the one behind it, if that is an environment)."""
    say(f"Making {folder.name} with Python {'.'.join(map(str, sys.version_info[:3]))}{reason} ...")
    command: list[str | Path] = [getattr(sys, "_base_executable", sys.executable), "-m", "venv", "--clear", folder]
    done = run_quietly(command)
    if done.returncode and "ensurepip is not" in done.stdout:
        package = "python{}.{}-venv".format(*sys.version_info[:2])
        if not apt_install(package):
            raise SystemExit(
                f"This Python cannot make environments: install the system package {package}, then try again."
            )
        done = run_quietly(command)
    if done.returncode:
        raise SystemExit(
            no_space(done.stdout, folder.parent) or f"{folder.name} could not be made: {last_line(done.stdout)}"
        )


def pip_install(python: Path, arguments: Iterable[str | Path], log: Path | None = None) -> None:
    """Run `pip install`, showing only the large downloads; turn its failures into one sentence."""
    command = [
        python,
        "-m",
        "pip",
        "install",
        "--no-input",
        "--disable-pip-version-check",
        "--progress-bar=off",
        *arguments,
    ]
    lines = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, stdin=subprocess.DEVNULL
    ) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            lines.append(line)
            if (
                large := re.search(r"Downloading (?:\S*/)?([\w.]+-[\w.]+)\S* \((\d{2,}\.?\d* [MG]B)\)", line)
            ) is not None:
                say(f"  downloading {large[1]} ({large[2]})")
            elif line.startswith("Installing collected packages:"):
                say(f"  unpacking {line.count(',') + 1} packages")
    if log is not None:
        with contextlib.suppress(OSError):
            log.write_text("".join(lines))
    if pip.returncode:
        output = "".join(lines)
        reason = f"pip could not install the packages (all it said is in {log}): {last_line(output)}"
        raise SystemExit(no_space(output, python.parents[2]) or reason)


def last_line(output: str) -> str:
    """The line of a failed command's output that most likely says why."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(?i)e(rror)?: ", line)]
    return (errors or lines or ["no reason given"])[-1]


def lab(arguments: list[str]) -> None:
    """Become JupyterLab on the first notebook. It looks for a free port by itself unless one is asked for."""
    require_space(ROOT, 0.05)
    if not FIRST_NOTEBOOK.is_file():
        raise SystemExit(f"{FIRST_NOTEBOOK.relative_to(ROOT)} is missing: get the whole repository again.")
    command = [
        sys.executable,
        "-m",
        "jupyterlab",
        str(FIRST_NOTEBOOK),
        "--LabApp.default_url=/lab/tree/" + FIRST_NOTEBOOK.name,
    ]
    if arguments[:1] == ["--port"]:
        port, arguments = arguments[1], arguments[2:]
        require_port(port)
        command += [f"--ServerApp.port={port}", "--ServerApp.port_retries=0"]
    if os.geteuid() == 0:
        command.append("--allow-root")
    if sys.platform.startswith("linux") and not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
        say("There is no display here: open the address that follows in a browser.")
        command.append("--no-browser")
    no_announcements()
    say("Opening the course in JupyterLab (stop it with Ctrl-C, twice) ...")
    os.execv(sys.executable, [*command, *arguments])


def no_announcements() -> None:
    """Keep JupyterLab from asking for news over the internet, which a classroom may not have."""
    config = Path(sys.prefix) / "etc" / "jupyter" / "labconfig" / "page_config.json"
    if not config.exists():
        config.parent.mkdir(parents=True, exist_ok=True)
        config.write_text(json.dumps({"disabledExtensions": {"@jupyterlab/apputils-extension:announcements": True}}))


def constraints() -> None:
    """Write constraints.txt anew: what pip chooses today, except that torch stays what the file says."""
    header, torch = [], ""
    for line in CONSTRAINTS.read_text().splitlines():
        header += [line] if line.startswith("#") else []
        torch = line if line.startswith("torch==") else torch
    with tempfile.TemporaryDirectory(prefix="dsaccum-constraints-") as folder:
        require_space(Path(folder), GROUPS["test"].gigabytes)
        make_venv(Path(folder) / "venv", " to choose versions")
        python = Path(folder) / "venv" / "bin" / "python"
        say(f"Installing {GROUPS['test'].words} with {torch} ...")
        pip_install(python, [torch, "-e", f"{ROOT}[course,test]"])
        frozen = subprocess.check_output([python, "-m", "pip", "freeze", "--exclude-editable"], text=True)
    pins = [re.sub(r"\+\S+", "", line) for line in frozen.splitlines()]
    CONSTRAINTS.write_text("\n".join([*header, *pins]) + "\n")
    say(f"constraints.txt has {len(pins)} versions: run `make test`, then look at `git diff constraints.txt`.")


def main(command: str, *arguments: str) -> None:
    """Run one of the commands above."""
    if command == "install" and len(arguments) == 1 and arguments[0] in GROUPS:
        install(arguments[0])
    elif command == "lab":
        lab(list(arguments))
    elif command in ("chromium", "constraints") and not arguments:
        {"chromium": chromium, "constraints": constraints}[command]()
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    try:
        main(*sys.argv[1:] or ["help"])
    except OSError as fault:
        if fault.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        raise SystemExit("The disk is full: make room, then try again.") from None
    except KeyboardInterrupt:
        raise SystemExit("Stopped; the same command carries on from here.") from None
