"""The process that training processes are forked from: it imports torch and DeepSpeed once, a fork takes milliseconds.

Started by ``processes.Template`` as ``python -m dsaccum_helpers.training.template``, with one end of a socket as
standard input. It never trains and never initialises a GPU. Commands come as JSON lines: ``fork`` (with the write end
of the run's event pipe, the read end of its start pipe and the write end of its status pipe) and ``kill``. When the
socket closes, or the kernel that started it is gone, everything it forked is killed and its folder removed: nothing
outlives a kernel.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any, NoReturn

from dsaccum_helpers.training import worker

PARENT_CHECK_SECONDS = 1.0
NO_ROOM = "the system has no room for one more process"
_PR_SET_PDEATHSIG = 1


class RunSet:
    """The processes of one run, their exit statuses as far as they are known, and the pipe that reports them."""

    def __init__(self, pids: list[int], status_pipe: int) -> None:
        self.pids, self.status_pipe = pids, status_pipe
        self.running = dict(zip(pids, range(len(pids)), strict=True))
        self.tell({"event": "forked", "pids": pids})

    def tell(self, event: dict[str, Any]) -> None:
        """Write a line for the kernel; it may have stopped listening."""
        with contextlib.suppress(OSError):
            os.write(self.status_pipe, (json.dumps(event) + "\n").encode())

    def exited(self, pid: int, status: int) -> None:
        """Report one process; the pipe closes behind the last one."""
        rank = self.running.pop(pid)
        self.tell({"event": "exited", "rank": rank, "status": os.waitstatus_to_exitcode(status)})
        if not self.running:
            os.close(self.status_pipe)

    def refuse(self) -> None:
        """Not all processes could be made: say so, and end those that were."""
        self.tell({"event": "ended", "how": "failed", "rank": len(self.pids), "words": NO_ROOM})
        self.kill()
        if not self.pids:
            os.close(self.status_pipe)

    def kill(self) -> None:
        """End every process of the set at once; SIGKILL, because a rank inside a collective hears nothing else."""
        for pid in self.running:
            os.kill(pid, signal.SIGKILL)


class Server:
    """Answers the commands of one kernel, in one thread."""

    def __init__(self, control: socket.socket, folder: Path) -> None:
        self.control, self.folder = control, folder
        self.sets: dict[str, RunSet] = {}
        self.parent, self.own_pid = os.getppid(), os.getpid()
        self.pending = b""
        self.children, woken = os.pipe()
        os.set_blocking(woken, False)
        signal.set_wakeup_fd(woken, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self.close())
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def serve(self) -> NoReturn:
        """Until the kernel is gone."""
        while True:
            ready, _, _ = select.select([self.control.fileno(), self.children], [], [], PARENT_CHECK_SECONDS)
            if os.getppid() != self.parent:
                self.close()
            if self.children in ready:
                os.read(self.children, 4096)
                self.reap()
            if self.control.fileno() in ready:
                self.read_commands()

    def read_commands(self) -> None:
        """Handle what has arrived; the descriptors of a message belong to the only ``fork`` in it."""
        data, descriptors, _, _ = socket.recv_fds(self.control, 65536, 3)
        if not data:
            self.close()
        *lines, self.pending = (self.pending + data).split(b"\n")
        for line in lines:
            command = json.loads(line)
            if command["do"] == "fork":
                self.fork(command, descriptors)
            elif command["set"] in self.sets:
                self.sets[command["set"]].kill()

    def fork(self, command: dict[str, Any], descriptors: list[int]) -> None:
        """Fork all ranks of a set; each waits for its job on the start pipe."""
        events, start, status = descriptors
        pids = []
        try:
            for rank in range(command["processes"]):
                pid = os.fork()
                if pid == 0:
                    os.close(status)
                    self.become_rank(command, rank, events, start)
                pids.append(pid)
        except OSError:  # the system has no room for one more process
            traceback.print_exc()
        os.close(events)
        os.close(start)
        self.sets[command["set"]] = one = RunSet(pids, status)
        if len(pids) < command["processes"]:
            one.refuse()
            if not pids:
                del self.sets[command["set"]]

    def become_rank(self, command: dict[str, Any], rank: int, events: int, start: int) -> NoReturn:
        """In the forked process: leave everything of the template behind, then work."""
        code = 1
        try:
            _die_with_parent(self.own_pid)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            for descriptor in (self.control.fileno(), self.children, *(s.status_pipe for s in self.sets.values())):
                with contextlib.suppress(OSError):
                    os.close(descriptor)
            code = rank_main(Path(command["folder"]), rank, command["processes"], events, start)
        except BaseException:
            with contextlib.suppress(OSError):
                traceback.print_exc()
        finally:
            with contextlib.suppress(Exception):
                sys.stderr.flush()
            os._exit(code)  # no exit hook of torch or of the template may run in a rank

    def reap(self) -> None:
        """Collect every process that has ended."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for name, one in list(self.sets.items()):
                if pid in one.running:
                    one.exited(pid, status)
                    if not one.running:
                        del self.sets[name]

    def close(self) -> NoReturn:
        """The kernel is gone: so is everything that it started."""
        for one in self.sets.values():
            one.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        os._exit(0)


def rank_main(folder: Path, rank: int, processes: int, events: int, start: int) -> int:
    """One rank of one run: join the group, wait for the job, train, tell. Returns the exit status."""
    log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(log, 1)
    os.dup2(log, 2)
    ended: list[str] = []

    def emit(event: dict[str, Any]) -> None:
        if event["event"] == "ended":
            ended.append(event["how"])
        os.write(events, (json.dumps(event) + "\n").encode())

    try:
        device = worker.join(rank, processes, str(folder / "rendezvous"), start=False)
    except Exception as error:
        worker.report_failure(error, rank, emit)
        return 1
    if not os.read(start, 1):  # a spare set that nobody needed
        return 0
    job = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    worker.train(job, rank, device, emit, folder)
    return int("failed" in ended)


def _die_with_parent(parent: int) -> None:
    """The operating system kills this process when the template ends. Linux only; elsewhere ``close`` has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it ended before the line above
            os._exit(1)


def preload() -> dict[str, Any]:
    """Import all that a rank needs, touch no GPU, and say what this machine has."""
    # Counts GPUs without starting CUDA, which would make every forked process useless.
    os.environ["PYTORCH_NVML_BASED_CUDA_CHECK"] = "1"
    import torch
    import torch._dynamo  # the first optimizer would import it, for a second

    worker.prepare_process()
    import deepspeed
    import deepspeed.utils

    from dsaccum_helpers.training import loops, recorder, tasks  # noqa: F401

    for name in ("regression", "digits", "language"):
        tasks.load_task(name)
    if torch.cuda.is_initialized():
        raise RuntimeError("an import has initialised CUDA, so that no process can be forked from here")
    gpus = torch.cuda.device_count() if os.environ.get("DS_ACCELERATOR") != "cpu" else 0
    return {
        "accelerator": "cuda" if gpus else "cpu",
        "gpus": gpus,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "versions": {"torch": torch.__version__, "deepspeed": deepspeed.__version__},
    }


def preload_compiler() -> None:
    """What ZeRO's torch.compile decorators import at the first engine (never to compile anything): over a second."""
    with contextlib.suppress(ImportError):
        importlib.import_module("torch._inductor.compile_fx")
    gc.collect()
    gc.freeze()  # keeps the pages of the template shared with its forks


def main() -> NoReturn:
    """Say hello with what this machine has, or with what is missing, then serve."""
    control = socket.socket(fileno=os.dup(0))
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    try:
        hello = preload()
        preload_compiler()
    except Exception as error:
        traceback.print_exc()
        control.sendall((json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n").encode())
        sys.exit(1)
    control.sendall((json.dumps(hello) + "\n").encode())
    Server(control, Path(sys.argv[1])).serve()


if __name__ == "__main__":
    main()
