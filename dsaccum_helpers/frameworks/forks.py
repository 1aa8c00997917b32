"""The process that runs of programs are forked from: it imports torch, DeepSpeed and the frameworks once.

Accelerate, Transformers and Lightning keep state in their modules, so every run gets processes of its own; an import
takes up to ten seconds, a fork takes milliseconds. ``host`` starts ``python -m dsaccum_helpers.frameworks.forks`` with
its folder: one job a line on standard input, one answer a line on standard output. It ends with its input.
"""

from __future__ import annotations

import importlib
import json
import os
import select
import shutil
import signal
import sys
import time
import traceback
from pathlib import Path
from typing import Any, NoReturn

from dsaccum_helpers.training.template import preload, preload_compiler

GRACE_SECONDS = 2.0
"""How long the other processes of a run may go on when one has ended badly."""


def main() -> NoReturn:
    """Answer jobs until there are no more; then end whatever still runs."""
    answers = os.dup(1)
    os.dup2(2, 1)  # a library that prints must not print into the answers
    jobs = os.fdopen(os.dup(0), "rb", buffering=0)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    preload()
    preload_compiler()
    while line := jobs.readline():
        os.write(answers, (json.dumps(_do(json.loads(line), jobs.fileno())) + "\n").encode())
    _leave()


def _do(job: dict[str, Any], jobs: int) -> dict[str, Any]:
    """Fork the ranks of one job and wait for them."""
    try:
        importlib.import_module("dsaccum_helpers.frameworks.rank")
        importlib.import_module(f"dsaccum_helpers.frameworks.{job['run']['program']}")
    except ImportError as error:
        return {"missing": error.name or str(error)}
    running = {_fork(job, rank): rank for rank in range(job["run"]["processes"])}
    codes: dict[int, int] = {}
    limit, hung = time.monotonic() + job["seconds"], False
    while running:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            codes[running.pop(pid)] = code = os.waitstatus_to_exitcode(status)
            limit = min(limit, time.monotonic() + GRACE_SECONDS) if code else limit
        elif time.monotonic() > limit:
            hung = not any(codes.values())
            _kill(running)
            limit = float("inf")
        elif select.select([jobs], [], [], 0.02)[0]:  # nobody sends a second job: the host is gone
            _kill(running)
            _leave()
    return {"hung": hung, "codes": [codes[rank] for rank in sorted(codes)]}


def _fork(job: dict[str, Any], rank: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        # The system ends a process that hangs, where this one was killed and cannot.
        signal.alarm(job["seconds"] + round(GRACE_SECONDS))
        folder = Path(job["folder"])
        log = os.open(folder / f"rank{rank}.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        from dsaccum_helpers.frameworks.rank import run_rank

        run_rank(folder, rank, job)
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)  # no exit hook of torch, or of the process that was forked, may run here


def _leave() -> NoReturn:
    shutil.rmtree(sys.argv[1], ignore_errors=True)
    os._exit(0)


def _kill(pids: dict[int, int]) -> None:
    for pid in pids:
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
