"""The right loop, in DeepSpeed and in plain PyTorch (the oracle). Imports torch, and DeepSpeed to make an engine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from dsaccum_helpers.mismatches import MATCHED, Mismatch
from dsaccum_helpers.mismatches.prediction import Prediction
from dsaccum_helpers.setting import Setting
from dsaccum_helpers.training.events import Expected
from dsaccum_helpers.training.tasks import Loader, Stream, Task, fresh_model


@dataclass
class Run:
    """What a training loop is given: the engine, the loader of one epoch, the criterion and the accumulation count.

    ``scheduler`` is ``None`` where the engine owns it, as it should. ``auxiliary(outputs)`` is the second term of the
    loss where the task has one. ``report(value)`` stands for what a script prints or logs. ``resume(count)`` stands for
    the end of one job and the start of the next: saves a checkpoint and loads it into a new engine, with this count.
    """

    engine: Any
    loader: Loader
    criterion: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
    gradient_accumulation_steps: int
    scheduler: Any = None
    auxiliary: Callable[[torch.Tensor], torch.Tensor] | None = None
    report: Callable[[Any], None] | None = None
    resume: Callable[[int], None] | None = None


def right_loop(run: Run) -> None:
    """One epoch: backward and step for each micro-batch; the engine divides, accumulates and updates."""
    for inputs, targets in run.loader:
        loss = run.criterion(run.engine(inputs), targets)
        run.engine.backward(loss)
        run.engine.step()


def linear_schedule(setting: Setting) -> Callable[[torch.optim.Optimizer], torch.optim.lr_scheduler.LambdaLR]:
    """The setting's learning-rate schedule, in optimizer steps."""
    return lambda optimizer: torch.optim.lr_scheduler.LambdaLR(optimizer, setting.rate_factor)


def make_engine(
    task: Task, setting: Setting, mismatch: Mismatch, config: dict[str, Any] | None = None
) -> tuple[Any, Any]:
    """The DeepSpeed engine of a run, and the scheduler where the script keeps it to itself.

    ``config``: in place of the entry's own. Needs an initialised process group. Raises what ``deepspeed.initialize``
    raises.
    """
    import deepspeed

    chosen = config or mismatch.config(setting)
    if mismatch.start is not None:
        mismatch.start(chosen)
    schedule = linear_schedule(setting)
    model = fresh_model(task, setting)
    if mismatch.pipeline:
        layers = list(model) if isinstance(model, torch.nn.Sequential) else [model]
        model = deepspeed.PipelineModule(layers=layers, num_stages=1, loss_fn=task.criterion)
    engine, _, _, _ = deepspeed.initialize(
        model=model,
        model_parameters=list(model.parameters()),
        config=chosen,
        lr_scheduler=None if mismatch.script_owns_scheduler else schedule,
    )
    return engine, schedule(engine.basic_optimizer) if mismatch.script_owns_scheduler else None


def make_optimizer(parameters: list[torch.Tensor], setting: Setting) -> torch.optim.Optimizer:
    """The plain-PyTorch twin of the config's optimizer block."""
    return getattr(torch.optim, setting.optimizer)(parameters, lr=setting.rate)


class Oracle:
    """Plain PyTorch: one full batch, one update. In bf16 the model computes in bf16 over fp32 master weights.

    ``masters`` are the fp32 parameters, in the order of ``module.parameters()``.
    """

    def __init__(self, task: Task, setting: Setting, device: torch.device) -> None:
        self.task, self.setting, self.device = task, setting, device
        dtype = torch.bfloat16 if setting.dtype == "bf16" else torch.float32
        self.module = fresh_model(task, setting).to(device=device, dtype=dtype)
        self.masters = [p.detach().clone().float() for p in self.module.parameters()]
        self.optimizer = make_optimizer(self.masters, setting)
        self.scheduler = linear_schedule(setting)(self.optimizer)

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor, auxiliary: float = 1.0) -> torch.Tensor:
        """The mean loss over these samples; ``auxiliary`` is the factor of its second term, where the task has one."""
        outputs = self.module(inputs.to(self.device))
        loss = self.task.criterion(outputs, targets.to(self.device))
        return loss if self.task.auxiliary is None else loss + auxiliary * self.task.auxiliary(outputs)

    def accumulate(
        self, inputs: torch.Tensor, targets: torch.Tensor, weight: float = 1.0, auxiliary: float = 1.0
    ) -> None:
        """Add ``weight`` × the gradient of the mean loss over these samples to the masters' gradients."""
        self.module.zero_grad(set_to_none=True)
        self.loss(inputs, targets, auxiliary).backward()
        self.hand_over(weight)

    def hand_over(self, weight: float) -> None:
        """Add ``weight`` × the module's gradients, whatever their type, to the masters' gradients."""
        for master, parameter in zip(self.masters, self.module.parameters(), strict=True):
            gradient = parameter.grad.float() * weight if parameter.grad is not None else torch.zeros_like(master)
            master.grad = gradient if master.grad is None else master.grad + gradient

    def round_gradients(self) -> None:
        """Round the masters' gradients to the model's type, in which the processes exchange them."""
        for master, parameter in zip(self.masters, self.module.parameters(), strict=True):
            if master.grad is not None:
                master.grad = master.grad.to(parameter.dtype).float()

    def update(self, clipping: float) -> tuple[float, float]:
        """Clip, step, clear: (gradient norm before clipping, norm of the change), both L2 over all parameters."""
        before = [master.clone() for master in self.masters]
        norm = l2_norm([master.grad for master in self.masters if master.grad is not None])
        if clipping > 0.0:
            torch.nn.utils.clip_grad_norm_(self.masters, clipping)
        self.optimizer.step()
        self.optimizer.zero_grad()
        with torch.no_grad():
            for master, parameter in zip(self.masters, self.module.parameters(), strict=True):
                parameter.copy_(master)
        return norm, l2_norm(torch._foreach_sub(self.masters, before))


def l2_norm(tensors: list[torch.Tensor] | tuple[torch.Tensor, ...]) -> float:
    """The L2 norm over all elements of all tensors, in fp32."""
    if not tensors:
        return 0.0
    return float(torch.stack(torch._foreach_norm(tensors, 2, dtype=torch.float32)).norm())


def replay(oracle: Oracle, prediction: Prediction, beat: Callable[[], None]) -> Iterator[tuple[float, float]]:
    """Train the oracle as predicted, update by update: (gradient norm before clipping, norm of the change)."""
    stream, read, processes = Stream(oracle.task, oracle.setting), 0, oracle.setting.processes
    if prediction.empty_step:
        for master in oracle.masters:
            master.grad = torch.zeros_like(master)
        oracle.optimizer.step()
        oracle.optimizer.zero_grad()
    for step, window in enumerate(prediction.windows()):
        if prediction.exchanges:
            _Window(oracle, prediction, stream, beat).accumulate(window, read)
        for size, weight in window:
            if weight and not prediction.exchanges:
                # What all processes read at one time lies side by side: the mean over them is one mean.
                together = stream.take(read, size * (1 if prediction.first_rank_only else processes))
                oracle.accumulate(*together, weight, prediction.auxiliary)
                beat()
            read += size * processes
        for group in oracle.optimizer.param_groups:
            group["lr"] = prediction.learning_rates[step]
        yield oracle.update(prediction.gradient_clipping)


class _Window:
    """One window as each process sees it: its own micro-batches, in the model's type, and then the mean over all."""

    def __init__(self, oracle: Oracle, prediction: Prediction, stream: Stream, beat: Callable[[], None]) -> None:
        self.oracle, self.prediction, self.stream, self.beat = oracle, prediction, stream, beat
        self.processes = oracle.setting.processes
        self.ranks = range(1 if prediction.first_rank_only else self.processes)

    def accumulate(self, window: list[tuple[int, float]], read: int) -> None:
        """Leave the window's gradient in the oracle's masters. ``read``: samples that all processes read before."""
        if self.prediction.exchanges == "each":
            self._each(window, read)
            return
        for rank in self.ranks:
            self._sum(window, read, rank)
        self.oracle.round_gradients()
        if self.prediction.boundary_clipping:
            torch.nn.utils.clip_grad_norm_(self.oracle.masters, self.prediction.inner_clipping)

    def _backward(self, start: int, rank: int, size: int, weight: float) -> None:
        if weight:
            batch = self.stream.take(start + rank * size, size)
            (weight * self.oracle.loss(*batch, self.prediction.auxiliary)).backward()
            self.beat()

    def _sum(self, window: list[tuple[int, float]], start: int, rank: int) -> None:
        """One process adds its micro-batches up, and hands the sum over at the end."""
        module, norm = self.oracle.module, self.prediction.inner_clipping
        others = self._take()
        for place, (size, weight) in enumerate(window):
            self._backward(start, rank, size, weight)
            if norm and place < len(window) - 1:
                torch.nn.utils.clip_grad_norm_(module.parameters(), norm)
            if self.prediction.fp32_sums:
                self.oracle.hand_over(1.0)
                module.zero_grad(set_to_none=True)
            start += size * self.processes
        self.oracle.hand_over(1.0)
        self.oracle.round_gradients()
        self._add(others, 1 / len(self.ranks))

    def _each(self, window: list[tuple[int, float]], start: int) -> None:
        """The processes exchange the gradient of each micro-batch, and add up what they have exchanged."""
        oracle = self.oracle
        for size, weight in window:
            sums = self._take()
            for rank in self.ranks:
                oracle.module.zero_grad(set_to_none=True)
                self._backward(start, rank, size, weight)
                oracle.hand_over(1 / len(self.ranks))
            oracle.round_gradients()
            self._add(sums, 1.0)
            if not self.prediction.fp32_sums:
                oracle.round_gradients()
            start += size * self.processes

    def _take(self) -> list[torch.Tensor | None]:
        """The masters' gradients; behind it neither they nor the module have any."""
        gradients = [master.grad for master in self.oracle.masters]
        self.oracle.optimizer.zero_grad()
        self.oracle.module.zero_grad(set_to_none=True)
        return gradients

    def _add(self, others: list[torch.Tensor | None], factor: float) -> None:
        """Multiply the masters' gradients by the factor, and add these others."""
        for master, other in zip(self.oracle.masters, others, strict=True):
            if master.grad is not None:
                master.grad = master.grad * factor if other is None else other + master.grad * factor


def _distance(oracle: Oracle, start: list[torch.Tensor]) -> float:
    """How far the oracle's weights are from where they began (L2)."""
    return l2_norm(torch._foreach_sub(oracle.masters, start))


def expect(
    task: Task,
    setting: Setting,
    mismatch: Mismatch,
    device: torch.device,
    beat: Callable[[], None],
    *,
    weights: torch.Tensor | None = None,
) -> Expected:
    """What plain PyTorch says about the first update of this run, and of one full batch.

    ``beat`` is called after each backward pass: a long window takes long here too. ``weights``: those of the run at its
    end, flat, to be compared with a whole run as predicted, which takes as long as a run in plain PyTorch.
    """
    full = Oracle(task, setting, device)
    full.accumulate(*Stream(task, setting).take(0, setting.train_batch_size))
    right = full.update(setting.gradient_clipping)
    prediction = mismatch.predict(setting)
    if not prediction.optimizer_steps:
        return Expected(None, None, *right)
    wrong = Oracle(task, setting, device)
    first_loss = None
    if prediction.reported is not None:
        first_loss = wrong.loss(*Stream(task, setting).take(0, prediction.micro_batch_size)).item()
    start, updates = [master.clone() for master in wrong.masters], replay(wrong, prediction, beat)
    first = next(updates)
    error = None
    if mismatch.measures_direction:
        error = first_error(task, setting, device, torch.cat([master.flatten() for master in wrong.masters]))
    if weights is None:
        return Expected(*first, *right, None, first_loss, error)
    for _ in updates:
        pass
    away = torch.cat([master.flatten() for master in wrong.masters]) - weights.to(device)
    return Expected(*first, *right, _distance(wrong, start), first_loss, error, float(away.abs().max()))


def first_error(task: Task, setting: Setting, device: torch.device, weights: torch.Tensor) -> float:
    """How far the first update is from the right one, as a share of it (L2).

    ``weights``: fp32, behind the first update, flat in the order of ``module.parameters()``. The right one is the mean
    over the window's micro-batches, each in the model's type and added up in fp32.
    """
    right = Oracle(task, setting, device)
    start = [master.clone() for master in right.masters]
    next(replay(right, MATCHED.predict(setting), lambda: None))
    away = weights.to(device) - torch.cat([master.flatten() for master in right.masters])
    return float(away.norm()) / _distance(right, start)
