"""Is this machine ready for the course? Looks at packages, devices, memory and disk. Imports no torch."""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import dataclass
from html import escape
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from dsaccum_helpers.training.comparison import default_runner
from dsaccum_helpers.training.events import RunError

PACKAGES = (
    *("jupyterlab", "ipywidgets", "anywidget", "matplotlib", "numpy", "scikit-learn", "psutil"),
    *("torch", "deepspeed"),
)
INSTALL = "make install"
GIB = 1024**3
MEMORY_NEEDED = 1.0
"""GiB of free memory for the template and a set of two processes, with room to spare (measured: a third of it)."""
DISK_NEEDED = 0.1
"""GiB in the temporary folder."""


@dataclass(frozen=True)
class Line:
    """One thing that was looked at, what was found, and the remedy where that is not enough."""

    what: str
    found: str
    remedy: str = ""


class MachineReport:
    """What was found. ``ok``: everything that the course needs is there."""

    def __init__(self, lines: list[Line]) -> None:
        self.lines = lines

    @property
    def ok(self) -> bool:
        """Can the notebooks run here?"""
        return not any(line.remedy for line in self.lines)

    def __str__(self) -> str:
        """A line for each thing, the remedies among them."""
        lines = [f"{line.what:20}{line.found}{'  -> ' + line.remedy if line.remedy else ''}" for line in self.lines]
        return "\n".join([*lines, "Ready." if self.ok else "Not ready yet: see the arrows."])

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th scope='row'>{escape(line.what)}</th><td>{escape(line.found)}</td>"
            f"<td>{escape(line.remedy) or 'good'}</td></tr>"
            for line in self.lines
        )
        head = "<tr><th scope='col'>part</th><th scope='col'>found</th><th scope='col'>verdict</th></tr>"
        return f"<table><caption>{'Ready' if self.ok else 'Not ready yet'}</caption>{head}{rows}</table>"


def check_machine(runner: Any = None) -> MachineReport:
    """Look at everything the course needs, and start the training processes once (some seconds the first time)."""
    runner = default_runner() if runner is None else runner
    lines = [_python(), *(_package(name) for name in PACKAGES), _memory(), _disk()]
    try:
        machine = runner.machine
    except RunError as error:
        return MachineReport([*lines, Line("training processes", "cannot start", str(error))])
    found = f"{machine['gpus']} GPUs" if machine["accelerator"] == "cuda" else f"CPU, {machine['cores']} cores"
    return MachineReport([*lines, Line("devices", found), Line("training processes", "ready")])


def _python() -> Line:
    found = ".".join(map(str, sys.version_info[:3]))
    return Line("Python", found, "" if sys.version_info >= (3, 11) else "install Python 3.11 or newer")


def _package(name: str) -> Line:
    try:
        return Line(name, version(name))
    except PackageNotFoundError:
        return Line(name, "missing", INSTALL)


def _memory() -> Line:
    try:
        import psutil
    except ImportError:
        return Line("free memory", "not known", INSTALL)
    free = psutil.virtual_memory().available / GIB
    return Line("free memory", f"{free:.1f} GiB", "" if free >= MEMORY_NEEDED else "close other programs")


def _disk() -> Line:
    try:
        folder = tempfile.gettempdir()
    except OSError:
        return Line("temporary folder", "none can be written", "free some space, or set TMPDIR")
    free = shutil.disk_usage(folder).free / GIB
    return Line("temporary folder", f"{free:.1f} GiB in {folder}", "" if free >= DISK_NEEDED else "free some space")
