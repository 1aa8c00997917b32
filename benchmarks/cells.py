"""The cells that are pressed, one for each way to start the same training; and what the last two of them call."""

from __future__ import annotations

import json
import os
import socket
import sys
from dataclasses import asdict
from typing import Any

from dsaccum_helpers.setting import Setting

SCRIPT = "dsaccum_helpers.training.worker"


def _free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
    return port


def _argument(setting: Setting) -> str:
    # In a line that begins with "!" a brace is IPython's, and two are one brace.
    return json.dumps(setting.to_dict()).replace("{", "{{").replace("}", "}}")


def deepspeed(setting: Setting) -> str:
    """DeepSpeed's own launcher."""
    return (
        f"!deepspeed --num_accelerators {setting.processes} --master_addr 127.0.0.1 --master_port {_free_port()} "
        f"--module {SCRIPT} --setting '{_argument(setting)}'"
    )


def torchrun(setting: Setting) -> str:
    """PyTorch's launcher, by its module, because not every environment has the command."""
    return (
        f'!"{sys.executable}" -m torch.distributed.run --standalone --nproc_per_node {setting.processes} '
        f"-m {SCRIPT} --setting '{_argument(setting)}'"
    )


def notebook_launcher(setting: Setting) -> str:
    """Accelerate's launcher for notebooks: one process trains in the kernel itself, several are forked from it."""
    return (
        "from accelerate import notebook_launcher\n"
        "from benchmarks.cells import training\n"
        f"notebook_launcher(training, args=({setting.to_dict()!r},), num_processes={setting.processes}, "
        f"use_port='{_free_port()}')"
    )


def ours(setting: Setting) -> str:
    """Ours, with every point printed as it comes."""
    return (
        "from benchmarks.cells import show\n"
        "from dsaccum_helpers import Setting, compare\n"
        f"comparison = compare(setting=Setting(**{setting.to_dict()!r}), progress=show)"
    )


def six_of_ours(setting: Setting) -> str:
    """Six runs of ours in one press, each from other weights and in another order."""
    return (
        "from benchmarks.cells import show_six\n"
        "from dsaccum_helpers import Setting\n"
        f"show_six(Setting(**{setting.to_dict()!r}))"
    )


def show(comparison: Any, point: Any, run: int = 0) -> None:
    """Print a point as the launched script does."""
    if point is not None:
        print(json.dumps({"event": "point", "run": run, **asdict(point)}), flush=True)


def show_six(setting: Setting) -> None:
    """Run six seeds with the kernel's own runner and print every point."""
    from dsaccum_helpers.training import default_runner

    runner = default_runner()
    runs = [runner.start(setting.change(seed=setting.seed + index)) for index in range(6)]
    for run, point in runner.stream(runs):
        show(None, point, runs.index(run))


def training(setting: dict[str, Any]) -> None:
    """What ``notebook_launcher`` calls in each process: the same work as the script's, in the same order."""
    from torch import distributed

    from dsaccum_helpers.training import worker

    worker.prepare_process()
    rank = int(os.environ.get("RANK", "0"))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", str(_free_port()))
    if distributed.is_initialized():  # a later press: this kernel has a process group, and there can be only one
        device = worker.choose_device(rank)
    else:
        device = worker.join(rank, setting["processes"], None)

    def emit(event: dict[str, Any]) -> None:
        print(json.dumps(event), flush=True)

    worker.train({"setting": setting, "mismatch": "matched"}, rank, device, emit, None)
