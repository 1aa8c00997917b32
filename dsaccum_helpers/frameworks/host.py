"""Starts programs of frameworks in processes of their own and waits for them. Imports neither torch nor a framework."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from itertools import count
from pathlib import Path
from typing import Any

from dsaccum_helpers.frameworks.result import ProgramResult, read_result
from dsaccum_helpers.mismatches.framework_runs import FrameworkRun
from dsaccum_helpers.training.events import RunError

PROGRAMS = ("accelerate_loop", "transformers_trainer", "lightning_module")
START_SECONDS = 180.0
"""How long the imports may take, beside the run itself: about ten seconds, minutes on a cold network disk."""
#: What a launcher or a shell may have set for another job.
FOREIGN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Host:
    """One process that all runs are forked from. Not for several threads at once."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="dsaccum-frameworks-"))
        self.numbers = count(1)
        with (self.folder / "host.log").open("wb") as log:
            self.process = subprocess.Popen(
                # -P: a file of the learner's that is called random.py must not be imported in place of Python's own.
                [sys.executable, "-P", "-m", "dsaccum_helpers.frameworks.forks", str(self.folder)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=_environment(),
                cwd=self.folder,
                start_new_session=True,  # Ctrl-C is ours to hear; the whole group is ended at once
            )

    def run(self, run: FrameworkRun, watch: bool, seconds: int) -> ProgramResult:
        """Train one run to its end. Raises ``RunError`` where it does not come to one."""
        folder = self.folder / f"run{next(self.numbers)}"
        folder.mkdir()
        job = {"run": run._asdict(), "watch": watch, "seconds": seconds, "folder": str(folder)}
        try:
            answer = self._ask(job, START_SECONDS + 2 * seconds)
        except BaseException:
            self.kill()
            raise
        result = read_result(folder, run)
        if "missing" in answer or result is None or any(answer["codes"]):
            raise RunError(_sentence(run, seconds, answer, folder))
        shutil.rmtree(folder, ignore_errors=True)
        return result

    def _ask(self, job: dict[str, Any], seconds: float) -> dict[str, Any]:
        sent, received = self.process.stdin, self.process.stdout
        assert sent is not None
        assert received is not None
        with contextlib.suppress(BrokenPipeError):
            sent.write((json.dumps(job) + "\n").encode())
            sent.flush()
        text, limit = b"", time.monotonic() + seconds
        while not text.endswith(b"\n"):
            if not select.select([received], [], [], max(0.0, limit - time.monotonic()))[0]:
                raise RunError(f"The run has not ended in {seconds:.0f} seconds. Smallest fix: close other programs.")
            data = os.read(received.fileno(), 65536)
            if not data:
                log = (self.folder / "host.log").read_text(errors="replace").strip().splitlines()
                reason = log[-1] if log else "no word"
                remedy = 'pip install "dsaccum-helpers[course,frameworks]"'
                raise RunError(f"The processes for frameworks cannot start ({reason}). Smallest fix: {remedy}.")
            text += data
        answer: dict[str, Any] = json.loads(text)
        return answer

    def kill(self) -> None:
        """End the host and everything that it forked, and remove the folder."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        shutil.rmtree(self.folder, ignore_errors=True)


def program_source(program: str) -> str:
    """The text of a program, as a learner reads it. Raises ``RunError`` for a name that is none."""
    _known(program)
    return Path(__file__).with_name(f"{program}.py").read_text(encoding="utf-8")


def run_program(run: FrameworkRun, *, watch: bool = True, seconds: int = 60) -> ProgramResult:
    """Train one run of a program in fresh processes, under the live observer where ``watch`` is set.

    Frameworks are imported once and then kept: the first run of each takes up to ten seconds more. ``seconds`` is the
    limit for the run itself. Raises ``RunError`` where the run cannot be started, hangs or is killed; what a framework
    refuses is a result. Ctrl-C ends all processes.
    """
    _known(run.program)
    if not _HOSTS or _HOSTS[0].process.poll() is not None:
        close()
        _HOSTS.append(Host())
    return _HOSTS[0].run(run, watch, seconds)


def _known(program: str) -> None:
    if program not in PROGRAMS:
        raise RunError(f"There is no program {program!r}. Smallest fix: one of {', '.join(PROGRAMS)}.")


_HOSTS: list[Host] = []


@atexit.register
def close() -> None:
    """End the processes that runs are forked from; the next run starts them anew."""
    while _HOSTS:
        _HOSTS.pop().kill()


def _environment() -> dict[str, str]:
    """CPU only, one thread a process, nothing over the network, nothing of another job's."""
    kept = {
        name: value for name, value in os.environ.items() if name not in FOREIGN and not name.startswith("ACCELERATE_")
    }
    loopback = "lo0" if sys.platform == "darwin" else "lo"
    paths = [str(Path(__file__).parents[2]), *filter(None, kept.get("PYTHONPATH", "").split(os.pathsep))]
    return kept | {
        "DS_ACCELERATOR": "cpu",
        "CUDA_VISIBLE_DEVICES": "",
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": loopback,
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONPATH": os.pathsep.join(paths),
    }


def _sentence(run: FrameworkRun, seconds: int, answer: dict[str, Any], folder: Path) -> str:
    if "missing" in answer:
        remedy = 'pip install "dsaccum-helpers[frameworks]"'
        return f"{run.program} needs {answer['missing']}, which is not installed. Smallest fix: {remedy}."
    bad = next((rank for rank, code in enumerate(answer["codes"]) if code not in (0, -signal.SIGKILL)), None)
    # Where one process ends badly the others are killed: they come second.
    bad = next((rank for rank, code in enumerate(answer["codes"]) if code), 0) if bad is None else bad
    code = answer["codes"][bad]
    if answer["hung"]:
        return f"{run.program} hung: it has not ended after {seconds} seconds. Smallest fix: a larger seconds=."
    log = folder / f"rank{bad}.log"
    last = log.read_text(errors="replace").strip().splitlines()[-1:] if log.is_file() else []
    how = f"was ended by signal {-code}" if code < 0 else f"ended with status {code}"
    return f"Process {bad} of {run.program} {how} ({' '.join(last) or 'no word'}). Smallest fix: run it once more."
