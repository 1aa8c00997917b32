"""A program, not a test: the right loop with nobody watching. Usage: unrecorded.py RANK PROCESSES FOLDER SETTINGS."""

from __future__ import annotations

import json
import os
import sys
import warnings
from pathlib import Path

import numpy
import torch

from dsaccum_helpers.mismatches import MATCHED
from dsaccum_helpers.setting import Setting
from dsaccum_helpers.training import worker
from dsaccum_helpers.training.loops import Run, make_engine, right_loop
from dsaccum_helpers.training.tasks import Loader, Stream, load_task


def main(rank: int, processes: int, folder: Path, settings: list[dict]) -> None:
    worker.prepare_process()
    device = worker.join(rank, processes, str(folder / "rendezvous"))
    import deepspeed

    for number, fields in enumerate(settings):
        setting = Setting(**fields)
        task = load_task(setting.task)
        engine, _ = make_engine(task, setting, MATCHED)
        length = setting.micro_batches
        sizes = (setting.train_micro_batch_size_per_gpu,)
        loader = Loader(Stream(task, setting), sizes, length, rank, processes, torch.device(device))
        right_loop(Run(engine, loader, task.criterion, setting.gradient_accumulation_steps))
        parameters = list(engine.module.parameters())
        with deepspeed.zero.GatheredParameters(parameters, enabled=setting.zero_stage == 3):
            weights = torch.cat([p.detach().flatten().cpu() for p in parameters]).numpy()
        if rank == 0:
            numpy.save(folder / f"{number}.npy", weights)


if __name__ == "__main__":
    warnings.simplefilter("ignore", FutureWarning)
    main(int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4]))
    os._exit(0)  # no exit hook of torch may run while gloo's threads do
