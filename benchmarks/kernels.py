"""A real notebook kernel, driven as a notebook drives it: what a person at a cell would see, and when."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from jupyter_client.manager import start_new_kernel

ROOT = Path(__file__).resolve().parents[1]
MOST_SECONDS = 300.0
"""So long may a cell be silent. The first launch on a machine may compile something."""


@dataclass
class Press:
    """What came back from one cell, in seconds since it was sent.

    ``first``: the first point behind an optimizer step; ``whole``: the last point; ``end``: the cell is free again.
    ``curves``: the losses of each run in it, step 0 included.
    """

    first: float = 0.0
    whole: float = 0.0
    end: float = 0.0
    curves: dict[int, list[float]] = field(default_factory=dict)

    def take(self, line: str, now: float) -> None:
        """Take in one line of output; whatever is no point of ours passes by."""
        start = line.find('{"event": "point"')
        if start < 0:
            return
        point = json.loads(line[start:])
        if point["step"] >= 1 and not self.first:
            self.first = now
        self.whole = now
        self.curves.setdefault(point.get("run", 0), []).append(point["loss"])

    @property
    def points(self) -> int:
        """Points of all runs, those before training included."""
        return sum(map(len, self.curves.values()))


def environment() -> dict[str, str]:
    """That of a notebook: our package and this interpreter's commands are found, and traffic stays on this machine."""
    own = dict(os.environ, GLOO_SOCKET_IFNAME="lo", NCCL_SOCKET_IFNAME="lo")
    own["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), own.get("PATH", "")))
    own["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), own.get("PYTHONPATH"))))
    return own


class Kernel:
    """One open notebook."""

    def __init__(self, client: Any) -> None:
        self.client = client

    def press(self, code: str, points: int = 0) -> Press:
        """Run one cell and read along until it is free and so many points have come.

        Raises ``RuntimeError`` with what the cell printed where it fails or gives fewer points.
        """
        press, output, pending = Press(), list[str](), ""
        began = time.perf_counter()
        message = self.client.execute(code)
        while not press.end or press.points < points:
            try:
                reply = self.client.get_iopub_msg(timeout=5.0 if press.end else MOST_SECONDS)
            except Exception as error:  # queue.Empty, or what the transport raises
                raise RuntimeError(f"{press.points} of {points} points came:\n{''.join(output)[-3000:]}") from error
            now = time.perf_counter() - began
            content = reply["content"]
            if reply["parent_header"].get("msg_id") != message:
                continue
            if reply["msg_type"] == "stream":
                output.append(content["text"])
                *lines, pending = (pending + content["text"]).split("\n")
                for line in lines:
                    press.take(line, now)
            elif reply["msg_type"] == "error":
                raise RuntimeError("".join([*output, "\n", *content["traceback"]])[-3000:])
            elif reply["msg_type"] == "status" and content["execution_state"] == "idle":
                press.end = now
        return press


@contextlib.contextmanager
def open_kernel() -> Iterator[Kernel]:
    """A fresh kernel that answers, closed at the end as JupyterLab closes it."""
    manager, client = start_new_kernel(
        kernel_name="python3", env=environment(), cwd=str(ROOT), stderr=subprocess.DEVNULL
    )
    try:
        yield Kernel(client)
    finally:
        client.stop_channels()
        manager.shutdown_kernel()
