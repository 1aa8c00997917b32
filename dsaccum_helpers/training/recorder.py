"""Measures a run without changing it: the loss, the norms and the learning rate at every optimizer step. Imports torch.

It wraps two methods of the engine it is given, so that a loop of the course stays the code a learner would write.
Everything is measured from tensors: the samples from what the loader handed out, the update from the weights.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed
from torch._utils import _flatten_dense_tensors

from dsaccum_helpers.setting import Setting
from dsaccum_helpers.training.tasks import Loader, Task, fresh_model

#: A sign of life at least this often, however long an optimizer step takes (seconds).
HEARTBEAT_SECONDS = 0.5


class Recorder:
    """Emits one ``point`` for each optimizer step of an engine, through ``emit(dict)``, from rank 0."""

    def __init__(
        self,
        engine: Any,
        task: Task,
        setting: Setting,
        loader: Loader,
        emit: Callable[[dict], None],
        *,
        keep_first: bool = False,
    ) -> None:
        self.task, self.setting, self.loader, self.emit = task, setting, loader, emit
        self.began = self.heard = time.monotonic()
        self.first_rank = setting.processes == 1 or distributed.get_rank() == 0
        self.evaluate = Evaluation(task, loader.device)
        self.steps, self.updating = 0, False
        #: The weights behind the first update, as ``final_weights`` gives them, where they are wanted.
        self.first_weights: torch.Tensor | None = None
        self.keep_first = keep_first
        self.attach(engine)
        self.point(None, None, None)

    def attach(self, engine: Any) -> None:
        """Measure this engine from now on: the run's first one, or one that goes on with its checkpoint."""
        self.engine, self.stage = engine, engine.zero_optimization_stage()
        # Looked up once: walking the module tree at every step would cost more than everything else here.
        self.parameters = list(engine.module.parameters())
        self.change = Change(self.local_weights())
        self.step_engine = engine.step
        engine.step = self.step
        # Every update of an engine goes through here, whoever decided that the window is full.
        engine._take_model_step = self.updates(engine._take_model_step)

    def report(self, value: Any) -> None:
        """What a script prints or logs: a number, or a tensor of one."""
        if self.first_rank:
            number = value.detach() if isinstance(value, torch.Tensor) else value
            self.emit({"event": "report", "value": float(number)})

    def step(self, *arguments: Any, **keywords: Any) -> Any:
        """``engine.step``, and a sign of life behind it."""
        answer = self.step_engine(*arguments, **keywords)
        self.beat()
        return answer

    def updates(self, update: Callable[..., Any]) -> Callable[..., Any]:
        """A function that updates the weights, with a point behind each of its calls."""

        def measured(*arguments: Any, **keywords: Any) -> Any:
            if self.updating:
                return update(*arguments, **keywords)
            self.updating, rate, norm = True, 0.0, None
            if self.first_rank:
                rate = self.engine.get_lr()[0]
                if self.stage == 0:
                    # Stage 0 keeps the reduced gradient on the parameters and reports no norm; afterwards it is gone.
                    gradients = [p.grad for p in self.parameters if p.grad is not None]
                    norm = flat_norm(_flatten_dense_tensors(gradients).float()) if gradients else 0.0
            answer = update(*arguments, **keywords)
            self.updating = False
            self.steps += 1
            if self.keep_first and self.steps == 1:
                self.first_weights = self.final_weights()
            if self.first_rank or self.stage:  # at stage 0 the other ranks know nothing that this one does not
                self.point(norm, self.update_norm(), rate)
            return answer

        return measured

    def count_steps_of(self, optimizer: Any) -> None:
        """Measure behind ``optimizer.step`` too, where a script calls it past the engine."""
        optimizer.step = self.updates(optimizer.step)

    def beat(self) -> None:
        """Tell the watchdog that this goes on, where nothing else has told it for a while."""
        if self.first_rank and time.monotonic() - self.heard > HEARTBEAT_SECONDS:
            self.heard = time.monotonic()
            self.emit({"event": "alive", "micro_batches": self.loader.micro_batches_read})

    def point(self, norm: float | None, update: float | None, rate: float | None) -> None:
        """Measure and emit one point."""
        if self.steps and norm is None:
            norm = float(self.engine.optimizer._global_grad_norm)
        with self.full_parameters():
            if not self.first_rank:
                return
            loss = self.evaluate(self.parameters)
        self.heard = time.monotonic()
        self.emit(
            {
                "event": "point",
                "step": self.steps,
                "loss": loss,
                "gradient_norm": norm,
                "update_norm": update,
                "learning_rate": rate,
                "samples": self.loader.samples_read * self.setting.processes,
                "engine_samples": self.engine.global_samples,
                "seconds": round(self.heard - self.began, 4),
                "micro_batches": self.loader.micro_batches_read,
            }
        )

    def local_weights(self) -> list[torch.Tensor]:
        """The fp32 weights that this process updates: all of them at stage 0, its partition at stages 1 to 3."""
        optimizer = self.engine.optimizer
        for name in ("fp32_partitioned_groups_flat", "single_partition_of_fp32_groups", "fp32_groups_flat_partition"):
            if hasattr(optimizer, name):
                return [tensor.detach() for tensor in getattr(optimizer, name)]
        masters = [p for group in self.engine.basic_optimizer.param_groups for p in group["params"]]
        return [p.detach() for p in masters]

    def update_norm(self) -> float:
        """The L2 norm of the last change of all weights. Collective at stages 1 to 3, which partition them."""
        change = self.change.norm()
        if self.stage == 0 or self.setting.processes == 1:
            return change
        square = torch.tensor(change**2, dtype=torch.float64, device=self.loader.device)
        distributed.all_reduce(square)
        return float(square.sqrt())

    def full_parameters(self) -> contextlib.AbstractContextManager:
        """Stage 3 scatters the parameters over the processes: gather them while they are read. Collective there."""
        if self.stage < 3:
            return contextlib.nullcontext()
        import deepspeed

        return deepspeed.zero.GatheredParameters(self.parameters)

    def distance(self, weights: torch.Tensor) -> float:
        """How far these weights, flat as ``final_weights`` gives them, are from where the run began (L2)."""
        dtype = torch.bfloat16 if self.setting.dtype == "bf16" else torch.float32
        start = [p.detach().to(dtype).flatten() for p in fresh_model(self.task, self.setting).parameters()]
        return flat_norm(weights - torch.cat(start).float())

    def final_weights(self) -> torch.Tensor:
        """All fp32 weights, flat, in the order of ``module.parameters()``. Collective."""
        # Every process has all of them, also where the parameters themselves are bf16; old releases partition those.
        if self.stage == 0 and not any(hasattr(parameter, "_hp_mapping") for parameter in self.parameters):
            return torch.cat([tensor.flatten() for tensor in self.local_weights()]).float().cpu()
        from deepspeed.utils import safe_get_full_fp32_param

        full = []
        for parameter in self.parameters:
            master = None
            if hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping"):
                master = safe_get_full_fp32_param(parameter)
            full.append((parameter if master is None else master).detach().float().flatten().cpu())
        return torch.cat(full)


def flat_norm(flat: torch.Tensor) -> float:
    """The L2 norm of a vector, in fp32. A dot product adds up more exactly than ``vector_norm``, and sooner."""
    return math.sqrt(torch.dot(flat, flat))


class Change:
    """How far some tensors have moved since the last look: a few operators, whatever their number."""

    def __init__(self, tensors: list[torch.Tensor]) -> None:
        self.parts = [tensor.view(-1) for tensor in tensors]
        self.old, self.new = torch.cat(self.parts), torch.cat(self.parts)

    def norm(self) -> float:
        """The L2 norm of the change."""
        torch.cat(self.parts, out=self.new)
        change = self.old.sub_(self.new)
        self.old, self.new = self.new, change
        return flat_norm(change)


class Evaluation:
    """The loss on the task's fixed evaluation set, computed on a plain copy of the model so that no hook is touched."""

    def __init__(self, task: Task, device: torch.device) -> None:
        self.criterion = task.criterion
        self.module = task.make_model().to(device)
        self.own = [parameter.detach() for parameter in self.module.parameters()]
        self.inputs, self.targets = task.evaluation_inputs.to(device), task.evaluation_targets.to(device)

    @torch.inference_mode()
    def __call__(self, parameters: list[torch.Tensor]) -> float:
        """The mean loss of these weights, computed in fp32."""
        torch._foreach_copy_(self.own, parameters)
        return float(self.criterion(self.module(self.inputs), self.targets))
