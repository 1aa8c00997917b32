"""The kernel's side of the training processes: one template, sets of processes forked from it. Imports no torch."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

from dsaccum_helpers.training.events import RunError

LOG = "template.log"
PREFIX = "dsaccum-processes-"
START_SECONDS = 180.0
"""How long the template may take to import torch and DeepSpeed: a few seconds, minutes on a cold network disk."""


class ProcessSet:
    """The processes of one run: where they say what they measure, and what became of them."""

    def __init__(
        self, template: Template, name: str, folder: Path, processes: int, pipes: tuple[int, int, int]
    ) -> None:
        self.template, self.name, self.folder, self.processes = template, name, folder, processes
        self.events, self.status, self._start = pipes
        self.pids: list[int] = []

    def give(self, job: dict[str, Any]) -> None:
        """Let the waiting processes begin. Raises ``RunError`` where the disk is full."""
        try:
            (self.folder / "job.json").write_text(json.dumps(job), encoding="utf-8")
        except OSError as error:
            raise disk_error(error, self.folder) from error
        # A byte for each process, not the end of the pipe: a process that the kernel forks holds the pipe open.
        os.write(self._start, b"." * self.processes)
        os.close(self._start)
        self._start = -1

    def waiting(self) -> bool:
        """Are all processes of a spare set still there? The status pipe has told of none that ended."""
        while select.select([self.status], [], [], 0)[0]:
            data = os.read(self.status, 65536)
            if not data or b'"exited"' in data:
                return False
            for line in data.splitlines():
                self.pids = json.loads(line)["pids"]
        return True

    def log(self, characters: int = 4000) -> str:
        """The end of what the processes wrote, rank by rank."""
        parts = []
        for rank in range(self.processes):
            with contextlib.suppress(OSError):
                text = (self.folder / f"rank{rank}.log").read_text(encoding="utf-8", errors="replace")
                parts += [f"process {rank}:\n{text[-characters:]}"] if text.strip() else []
        return "\n".join(parts)

    def kill(self) -> None:
        """End all processes of the set; the end of its pipes tells when they are gone."""
        self.template.kill(self)

    def close(self) -> None:
        """Close the pipes and remove the run's folder."""
        for descriptor in (self.events, self.status, self._start):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self.events = self.status = self._start = -1
        shutil.rmtree(self.folder, ignore_errors=True)


class Template:
    """Starts the template process, asks it for sets of processes, and ends it. Safe to use from several threads."""

    def __init__(self) -> None:
        self.folder = private_folder()
        self.lock = threading.Lock()
        self.count = 0
        self.lock_on_folder = -1
        try:
            self.lock_on_folder = hold(self.folder)
            self._start()
        except OSError as error:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise disk_error(error, self.folder) from error
        self.machine = self._hello()

    def _start(self) -> None:
        self.control, theirs = socket.socketpair()
        with theirs, (self.folder / LOG).open("wb") as log:
            self.process = subprocess.Popen(
                # -P: a file of the learner's that is called random.py must not be imported in place of Python's own.
                [sys.executable, "-P", "-m", "dsaccum_helpers.training.template", str(self.folder)],
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
                env=_environment(self.folder),
                cwd=self.folder,  # the kernel's own may have been deleted, and torch does not load in such a folder
                start_new_session=True,  # interrupting the cell must not interrupt the template
            )

    def _hello(self) -> dict[str, Any]:
        self.control.settimeout(START_SECONDS)
        try:
            line = self.control.makefile("rb").readline()
        except TimeoutError:
            line = b""
        except BaseException:
            self.close()
            raise
        self.control.settimeout(None)
        hello = json.loads(line) if line else {"error": "the process ended or did not answer"}
        if "error" in hello:
            log = (self.folder / LOG).read_text(errors="replace")[-1500:]
            self.close()
            raise RunError(_start_sentence(hello["error"], log))
        return hello

    @property
    def alive(self) -> bool:
        """Is the template there to fork from?"""
        return self.process.poll() is None and self.folder.is_dir()

    def fork(self, processes: int) -> ProcessSet:
        """Ask for a set of processes. Returns at once, while they are still being made. Raises ``RunError``."""
        with self.lock:
            self.count += 1
            name = f"run{self.count}"
        folder = self.folder / name
        try:
            folder.mkdir(mode=0o700)
        except OSError as error:
            raise disk_error(error, folder) from error
        read_events, write_events = os.pipe()
        read_start, write_start = os.pipe()
        read_status, write_status = os.pipe()
        made = ProcessSet(self, name, folder, processes, (read_events, read_status, write_start))
        try:
            line = json.dumps({"do": "fork", "set": name, "processes": processes, "folder": str(folder)}) + "\n"
            with self.lock:
                socket.send_fds(self.control, [line.encode()], [write_events, read_start, write_status])
        except OSError as error:
            made.close()
            raise RunError("The process that training starts from is gone. Smallest fix: press Run again.") from error
        finally:
            for descriptor in (write_events, read_start, write_status):
                os.close(descriptor)
        return made

    def kill(self, one: ProcessSet) -> None:
        """End all processes of a set; the end of its pipes tells when they are gone."""
        with self.lock, contextlib.suppress(OSError):
            self.control.sendall((json.dumps({"do": "kill", "set": one.name}) + "\n").encode())

    def close(self) -> None:
        """End the template and everything it forked; remove the private folder."""
        self.control.close()
        try:
            self.process.wait(timeout=2.0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        if self.lock_on_folder >= 0:
            os.close(self.lock_on_folder)
            self.lock_on_folder = -1


def private_folder() -> Path:
    """A folder that only this user can read (0700), after removing those that a killed kernel left behind."""
    try:
        base = Path(tempfile.gettempdir())
    except OSError as error:
        raise RunError(
            "No folder for temporary files can be written. Smallest fix: free some space, or set TMPDIR."
        ) from error
    for old in base.glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):
            # A folder of a few seconds may belong to a kernel that has not locked it yet.
            ours = old.stat().st_uid == os.getuid() and (old / LOG).is_file()
            if ours and time.time() - old.stat().st_mtime > 60 and _abandoned(old):
                shutil.rmtree(old, ignore_errors=True)
    try:
        return Path(tempfile.mkdtemp(prefix=PREFIX))
    except OSError as error:
        raise disk_error(error, base) from error


def hold(folder: Path) -> int:
    """Lock a folder for as long as this process lives, or until the returned descriptor is closed."""
    descriptor = os.open(folder, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    return descriptor


def _abandoned(folder: Path) -> bool:
    # A lock, not a process id: two containers may share the folder and not their processes.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def disk_error(error: OSError, place: Path) -> RunError:
    """One sentence for a disk that cannot be written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return RunError(
            f"The disk is full: nothing can be written to {place}. Smallest fix: free some space, or set TMPDIR."
        )
    return RunError(
        f"Cannot write to {place}: {error.strerror}. Smallest fix: set TMPDIR to a folder you can write to."
    )


def wait_gone(pids: list[int], seconds: float) -> bool:
    """Wait until none of these processes exists any more; False where one still does after so many seconds."""
    limit = time.monotonic() + seconds
    while any(_exists(pid) for pid in pids):
        if time.monotonic() > limit:
            return False
        time.sleep(0.005)
    return True


def stopped(pids: list[int]) -> list[int]:
    """Ranks whose process is stopped (SIGSTOP, a debugger): the usual reason why all others wait for ever."""
    ranks = []
    for rank, pid in enumerate(pids):
        with contextlib.suppress(OSError, IndexError):
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] in "Tt":
                ranks.append(rank)
    return ranks


def signal_name(number: int) -> str:
    """SIGKILL for 9; the number itself where it has no name."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _environment(folder: Path) -> dict[str, str]:
    """One thread a process (two were never faster and up to 26 times slower), traffic on this machine only."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", PYTHONUNBUFFERED="1")
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    environment.update(GLOO_SOCKET_IFNAME=loopback, NCCL_SOCKET_IFNAME=loopback, TOKENIZERS_PARALLELISM="false")
    # An import of torch makes these folders, although nothing is ever compiled.
    environment.update(TORCHINDUCTOR_CACHE_DIR=str(folder / "inductor"), TRITON_CACHE_DIR=str(folder / "triton"))
    # The template imports this very package, also where it was found through a path of the kernel.
    paths = [str(Path(__file__).parents[2]), *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep))]
    with contextlib.suppress(OSError):  # relative ones are meant from the kernel's folder
        paths = [str(Path(path).absolute()) for path in paths]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    # The kernel may itself be part of a job; its ranks are not ours.
    for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"):
        environment.pop(name, None)
    return environment


def _start_sentence(error: str, log: str) -> str:
    if "No module named" in error:
        return f"Training needs a package that is missing ({error}). Smallest fix: make install."
    if "No space left" in error or "No space left" in log:
        return "The disk is full: the training processes cannot start. Smallest fix: free some space, or set TMPDIR."
    return f"The training processes cannot start ({error}). Smallest fix: look at python -m deepspeed.env_report."
