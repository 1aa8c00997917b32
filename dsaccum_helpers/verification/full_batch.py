"""What runs in the training processes for a person's config: the engine, and the full batch in plain PyTorch.

Imports torch, and DeepSpeed for the engine. The oracle is written from torch.optim, torch's clipping and our own
arithmetic of the schedules: nothing of DeepSpeed takes part in it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy
import torch

from dsaccum_helpers.setting import Setting
from dsaccum_helpers.training.recorder import Recorder
from dsaccum_helpers.training.tasks import Stream, Task, fresh_model, load_task

Emit = Callable[[dict[str, Any]], None]


class MicroBatches:
    """One process's micro-batches of all windows: the processes read blocks that lie side by side in the stream."""

    def __init__(self, task: Task, setting: Setting, rank: int, device: torch.device) -> None:
        self.stream, self.setting, self.rank, self.device = Stream(task, setting), setting, rank, device
        self.samples_read = 0
        self.micro_batches_read = 0

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        size, processes = self.setting.train_micro_batch_size_per_gpu, self.setting.processes
        for turn in range(self.setting.micro_batches):
            inputs, targets = self.stream.take((turn * processes + self.rank) * size, size)
            self.samples_read += size
            self.micro_batches_read += 1
            yield inputs.to(self.device), targets.to(self.device)


def train(job: dict[str, Any], rank: int, device: torch.device, emit: Emit, folder: Path) -> None:
    """One run of the job that ``proof.ConfigRun`` hands over; raises what DeepSpeed or torch raise."""
    setting = Setting(**job["setting"])
    task = load_task(setting.task)
    if job["plan"]["oracle"]:
        weights = _oracle(task, setting, job["plan"], device, emit)
    else:
        weights = _engine(task, setting, job["plan"], rank, device, emit)
    if rank == 0:
        numpy.save(folder / "weights.npy", weights.numpy())
        emit({"event": "ended", "how": "finished", "rank": 0, "micro_batches": setting.micro_batches})


def _engine(
    task: Task, setting: Setting, plan: dict[str, Any], rank: int, device: torch.device, emit: Emit
) -> torch.Tensor:
    """The right loop with the config's own optimizer, clipping and schedule; the fp32 weights at the end, flat."""
    import deepspeed

    model = fresh_model(task, setting)
    engine, _, _, _ = deepspeed.initialize(
        model=model, model_parameters=list(model.parameters()), config=plan["config"], dist_init_required=False
    )
    loader: Any = MicroBatches(task, setting, rank, device)
    recorder = Recorder(engine, task, setting, loader, emit)
    for inputs, targets in loader:
        engine.backward(task.criterion(engine(inputs), targets) * plan["factor"])
        engine.step()
    return recorder.final_weights()


def _oracle(task: Task, setting: Setting, plan: dict[str, Any], device: torch.device, emit: Emit) -> torch.Tensor:
    """Rows of weights: where the run begins, the full batch's, and those of the full batch in another order.

    Behind the weights of each row stand the gradient norms of its updates (zeros in the first).
    """
    right, turned = FullBatch(task, setting, plan, device), FullBatch(task, setting, plan, device)
    start, norms = right.weights(), []
    stream, size, began = Stream(task, setting), setting.train_batch_size, time.monotonic()
    for step, rate in enumerate(plan["rates"], start=1):
        inputs, targets = stream.take((step - 1) * size, size)
        loss, norm = right.update(inputs, targets, rate)
        # The sum over the same samples, from the last to the first: by how much does its rounding move the weights?
        norms.append((norm, turned.update(inputs.flip(0), targets.flip(0), rate)[1]))
        point = {"step": step, "loss": loss, "gradient_norm": norm, "update_norm": None, "learning_rate": rate}
        counts = {"samples": step * size, "engine_samples": step * size, "micro_batches": step}
        emit({"event": "point", **point, **counts, "seconds": time.monotonic() - began})
    by_order = torch.tensor(norms).T
    rows = zip((start, right.weights(), turned.weights()), (torch.zeros(len(norms)), *by_order), strict=True)
    return torch.stack([torch.cat(row) for row in rows])


class FullBatch:
    """Plain PyTorch: one full batch, one update. In bf16 the model computes in bf16 over fp32 master weights."""

    def __init__(self, task: Task, setting: Setting, plan: dict[str, Any], device: torch.device) -> None:
        self.task, self.device, self.clipping, self.factor = task, device, plan["clipping"], plan["factor"]
        dtype = torch.bfloat16 if setting.dtype == "bf16" else torch.float32
        self.module = fresh_model(task, setting).to(device=device, dtype=dtype)
        self.masters = [p.detach().clone().float() for p in self.module.parameters()]
        self.optimizer = getattr(torch.optim, plan["optimizer"])(self.masters, **plan["parameters"])

    def update(self, inputs: torch.Tensor, targets: torch.Tensor, rate: float) -> tuple[float, float]:
        """One optimizer step at this learning rate: (loss before it, gradient norm before clipping)."""
        self.module.zero_grad(set_to_none=True)
        loss = self.task.criterion(self.module(inputs.to(self.device)), targets.to(self.device))
        (loss * self.factor).backward()
        for master, parameter in zip(self.masters, self.module.parameters(), strict=True):
            assert parameter.grad is not None
            master.grad = parameter.grad.float()
        # Without a limit this only measures: a norm above infinity does not exist.
        norm = torch.nn.utils.clip_grad_norm_(self.masters, self.clipping or float("inf"))
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        with torch.no_grad():
            for master, parameter in zip(self.masters, self.module.parameters(), strict=True):
                parameter.copy_(master)
        return float(loss), float(norm)

    def weights(self) -> torch.Tensor:
        """All fp32 weights, flat, in the order of ``module.parameters()``."""
        return torch.cat([master.detach().flatten().cpu() for master in self.masters])
