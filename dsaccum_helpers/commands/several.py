"""Several processes of one command on this machine, joined by environment variables as a launcher sets them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

from dsaccum_helpers.errors import DsaccumError

__all__ = ["most", "start"]

GRACE_SECONDS = 10.0
"""How long the other processes may go on after one has failed: they may be waiting for it."""


def most() -> int:
    """How many processes one machine is asked to start: one for each core, and 16 on a small one too."""
    return max(16, os.cpu_count() or 1)


def start(processes: int, words: list[str]) -> int:
    """``dsaccum watch`` with these words in each of them; the first exit status that is not 0. Ctrl-C ends all.

    Raises ``DsaccumError`` for more processes than this machine should start; then none has been started.
    """
    if processes > most():
        raise DsaccumError(f"--processes {processes} is too many for this machine. Smallest fix: --processes {most()}.")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(processes)}
    command = [sys.executable, "-m", "dsaccum_helpers.commands", "watch", *words]
    running = []
    try:
        for rank in range(processes):
            own = {"RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(processes)}
            running.append(subprocess.Popen(command, env={"OMP_NUM_THREADS": "1", **os.environ, **shared, **own}))
        return _wait(running)
    finally:
        for one in running:
            if one.poll() is None:
                one.kill()
            one.wait()


def _wait(running: list[subprocess.Popen[bytes]]) -> int:
    """Until all have ended, or a while after one has failed."""
    failed: float | None = None
    first = 0
    while any(one.poll() is None for one in running):
        time.sleep(0.05)
        codes = [one.returncode for one in running if one.returncode]
        if codes and failed is None:
            failed, first = time.monotonic(), codes[0]
        if failed is not None and time.monotonic() - failed > GRACE_SECONDS:
            break
    first = first or next((one.returncode for one in running if one.returncode), 0)
    return first if first > 0 else 128 - first if first else 0
