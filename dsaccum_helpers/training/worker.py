"""What runs in each training process. Also a script: ``torchrun`` and ``deepspeed`` can start it unchanged.

    torchrun --nproc_per_node 2 -m dsaccum_helpers.training.worker --setting '{"task": "digits"}' --output points.jsonl
    deepspeed --num_gpus 2 --module dsaccum_helpers.training.worker --setting '{"task": "digits"}'

Rank 0 writes one JSON object a line: ``point``, ``alive``, ``expected``, ``ended``.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import os
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from dsaccum_helpers.mismatches import find
from dsaccum_helpers.setting import Setting
from dsaccum_helpers.training.engine_run import Emit, EngineRun, finish, is_disk, is_memory, words
from dsaccum_helpers.training.events import ORACLE


def prepare_process() -> None:
    """Once a process, before DeepSpeed is used: one thread, and no operator compiled at the first run.

    DeepSpeed's shared-memory operator for the CPU needs a compiler, compiles for about 40 seconds and is never used in
    training; it hangs for ever on the lock of an interrupted build.
    """
    import torch

    torch.set_num_threads(1)
    if not torch.cuda.device_count():
        os.environ.setdefault("DS_ACCELERATOR", "cpu")
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def choose_device(rank: int) -> Any:
    """This process's device: one GPU each where there are GPUs, otherwise the CPU."""
    import torch

    if os.environ.get("DS_ACCELERATOR") != "cpu" and torch.cuda.device_count():
        torch.cuda.set_device(rank)
        return torch.device("cuda", rank)
    return torch.device("cpu")


def join(rank: int, processes: int, store: str | None, *, start: bool = True) -> Any:
    """Enter the process group; returns the device. ``store`` is a file for the rendezvous: no port is opened for it.

    ``start``: start DeepSpeed's communication too. ``train`` does it otherwise, where it knows what is to be trained.
    """
    import torch
    from torch import distributed

    os.environ.update(RANK=str(rank), LOCAL_RANK=os.environ.get("LOCAL_RANK", str(rank)), WORLD_SIZE=str(processes))
    device = choose_device(int(os.environ["LOCAL_RANK"]))
    backend = "nccl" if device.type == "cuda" else "gloo"
    if store is None:
        distributed.init_process_group(backend, rank=rank, world_size=processes)
    else:
        shared = distributed.FileStore(store, processes)
        distributed.init_process_group(backend, store=shared, rank=rank, world_size=processes)
    if start:
        _start()
    torch.use_deterministic_algorithms(True, warn_only=True)
    # Would write through every buffer that ZeRO allocates (2 GB at stage 1 and 2), at every update.
    torch.utils.deterministic.fill_uninitialized_memory = False
    return device


def _start() -> None:
    """Let DeepSpeed take over the process group that there is."""
    import deepspeed
    from torch import distributed

    deepspeed.init_distributed(dist_backend=distributed.get_backend(), auto_mpi_discovery=False, verbose=False)


def train(job: dict[str, Any], rank: int, device: Any, emit: Emit, folder: Path | None) -> None:
    """One run, from the job to the last point. What goes wrong is emitted as the ``ended`` event, never raised."""
    setting = Setting(**job["setting"])
    place, folder = folder, folder if job.get("keep_weights") else None
    try:
        if "module" in job or job["mismatch"] == ORACLE or find(job["mismatch"]).start is None:
            _start()
        if "module" in job:  # a kind of run that lives above this package, with a ``train`` of its own
            importlib.import_module(job["module"]).train(job, rank, device, emit, place)
        elif job["mismatch"] == ORACLE:
            _train_oracle(setting, rank, device, emit, folder)
        else:
            engine = EngineRun(setting, job["mismatch"], rank, device, emit, place)
            engine.watched = bool(job.get("watch"))
            engine.train(folder, to_the_end=bool(job.get("to_the_end")))
    except Exception as error:
        report_failure(error, rank, emit)


def report_failure(error: Exception, rank: int, emit: Emit) -> None:
    """Say what went wrong, first to the kernel: the log may be what cannot be written."""
    event = {"event": "ended", "how": "failed", "rank": rank, "words": words(error)}
    emit(event | {"memory": is_memory(error), "disk": is_disk(error)})
    with contextlib.suppress(OSError):
        traceback.print_exc()


def _train_oracle(setting: Setting, rank: int, device: Any, emit: Emit, folder: Path | None) -> None:
    import torch

    from dsaccum_helpers.training.loops import Oracle
    from dsaccum_helpers.training.recorder import Evaluation
    from dsaccum_helpers.training.tasks import Stream, load_task

    if rank:
        return
    task = load_task(setting.task)
    oracle, stream = Oracle(task, setting, device), Stream(task, setting)
    evaluate, began, size = Evaluation(task, device), time.monotonic(), setting.train_batch_size
    parameters = list(oracle.module.parameters())
    for step in range(setting.optimizer_steps + 1):
        norm = update = rate = None
        if step:
            rate = oracle.scheduler.get_last_lr()[0]
            oracle.accumulate(*stream.take((step - 1) * size, size))
            norm, update = oracle.update(setting.gradient_clipping)
            oracle.scheduler.step()
        point = {"step": step, "loss": evaluate(parameters), "gradient_norm": norm, "update_norm": update}
        counts = {"samples": step * size, "engine_samples": step * size, "micro_batches": step}
        emit({"event": "point", **point, "learning_rate": rate, **counts, "seconds": time.monotonic() - began})
    weights = torch.cat([master.flatten().cpu() for master in oracle.masters])
    finish(weights, setting.optimizer_steps, emit, folder)


def main() -> int:
    """Run one job as started by a launcher, which sets RANK, WORLD_SIZE and MASTER_ADDR."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--setting", default="{}", help="a Setting as JSON")
    parser.add_argument("--mismatch", default="matched", help="a code of the catalogue, or oracle")
    parser.add_argument("--output", type=Path, help="a file for the points (default: standard output)")
    parser.add_argument("--local_rank", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    rank, processes = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    try:
        setting = Setting().change(**{**json.loads(options.setting), "processes": processes})
        if options.mismatch != ORACLE:
            find(options.mismatch)
        stream = options.output.open("a") if options.output and rank == 0 else sys.stdout
    except (ValueError, TypeError, OSError) as error:
        parser.error(str(error))
    ended: list[str] = []

    def emit(event: dict[str, Any]) -> None:
        if event["event"] == "ended":
            ended.append(event["how"])
        print(json.dumps(event), file=stream, flush=True)

    warnings.simplefilter("ignore", FutureWarning)
    prepare_process()
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29500")
    train({"setting": setting.to_dict(), "mismatch": options.mismatch}, rank, join(rank, processes, None), emit, None)
    from torch import distributed

    distributed.destroy_process_group()  # torch's threads must have ended before the interpreter does
    return int("failed" in ended)


if __name__ == "__main__":
    sys.exit(main())
