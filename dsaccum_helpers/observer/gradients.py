"""The gradient that a window has gathered, against the one that the optimizer is given."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch


class GradientSum:
    """Adds up the gradients of all micro-batches of one window as autograd delivers them, before ZeRO takes them away.

    It holds one copy of the gradients in fp32 while it is on. ``parameters``: those that are trained.
    """

    def __init__(self, parameters: Sequence[torch.Tensor]) -> None:
        self.every = list(parameters)
        self.parameters: list[torch.Tensor] = []
        self.handles: list[Any] = []
        self.fresh: dict[int, torch.Tensor] = {}
        self.sums: dict[int, torch.Tensor] = {}
        self.borrowed: set[int] = set()

    @property
    def on(self) -> bool:
        """Are the hooks in place?"""
        return bool(self.handles)

    def start(self) -> None:
        """Hang the hooks in."""
        if not self.handles:
            self.parameters = [parameter for parameter in self.every if parameter.requires_grad]
            self.handles = [p.register_hook(self._hook(i)) for i, p in enumerate(self.parameters)]

    def stop(self) -> None:
        """Take the hooks out and forget what was gathered."""
        for handle in self.handles:
            handle.remove()
        self.handles = []
        self.forget()

    def forget(self) -> None:
        """Begin a new window."""
        self.fresh, self.sums, self.borrowed = {}, {}, set()

    def _hook(self, index: int) -> Any:
        def take(gradient: torch.Tensor) -> None:
            gradient = _dense(gradient)
            # Held, not copied: AccumulateGrad sees the second holder and copies for itself.
            if index in self.fresh:  # checkpointing runs a part of the graph in a backward of its own
                self.fresh[index] = self.fresh[index] + gradient
            else:
                self.fresh[index] = gradient

        return take

    def add(self) -> None:
        """One backward pass is over."""
        again = [i for i in self.fresh if i in self.sums]
        if again:
            gradients = [_single(self.fresh[i]) for i in again]
            sums = [self.sums[i] for i in again]
            if self.borrowed:
                self.sums.update(zip(again, torch._foreach_add(sums, gradients), strict=True))
                self.borrowed.difference_update(again)
            else:
                torch._foreach_add_(sums, gradients)
        if len(again) < len(self.fresh):
            for i, gradient in self.fresh.items():
                if i not in self.sums:
                    self.sums[i] = _single(gradient)
                    self.borrowed.add(i)
        self.fresh = {}

    def norm(self, group: Any, world: int, average: bool) -> float:
        """L2 norm of the window's gradient over all ranks of ``group``; a collective where ``world`` > 1."""
        if world > 1:
            parts = [
                self.sums[i].reshape(-1) if i in self.sums else torch.zeros(_size(p), device=p.device)
                for i, p in enumerate(self.parameters)
            ]
            flat = torch.cat(parts)
            torch.distributed.all_reduce(flat, group=group)
            return float(flat.norm()) / (world if average else 1)
        return norm(list(self.sums.values()))


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    # An embedding with sparse=True gives one that most operators refuse.
    return gradient if gradient.layout == torch.strided else gradient.to_dense()


def _single(gradient: torch.Tensor) -> torch.Tensor:
    return gradient if gradient.dtype == torch.float32 else gradient.to(torch.float32)


def _size(parameter: Any) -> int:
    # A parameter that ZeRO-3 has taken apart holds no element, and says in ds_numel how many it has.
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def norm(tensors: list[torch.Tensor]) -> float:
    """The L2 norm over all elements of all tensors, in fp32; 0 where there are none."""
    if not tensors:
        return 0.0
    norms = torch._foreach_norm(tensors, 2, dtype=torch.float32)
    return float(torch.stack([one.to(norms[0].device) for one in norms]).norm())


def given_norm(engine: Any) -> float | None:
    """Before the update: the norm of the parameters' own gradients, where the optimizer reads them there.

    None where a ZeRO or 16-bit optimizer around the torch one keeps them elsewhere, and says their norm afterwards.
    """
    if engine.optimizer is not getattr(engine, "basic_optimizer", None):
        return None
    return norm([_dense(p.grad.detach()) for p in engine.module.parameters() if p.grad is not None])


def reported_norm(engine: Any) -> float | None:
    """After the update: the norm before clipping that the optimizer wrapper worked out; None where it has none."""
    value = getattr(engine.optimizer, "_global_grad_norm", None)
    if value is None:
        return None
    value = float(value)
    return value if math.isfinite(value) else None


def checksum(engine: Any) -> float:
    """One number that differs where the parameters do (stages 0 to 2: each rank holds all of them)."""
    return norm([p.detach() for p in engine.module.parameters()])
