"""Wrappers around calls, and how each is taken out again without harming what others have put on top."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dsaccum_helpers.observer.places import caller


class Hooks:
    """What hangs in one engine; ``remove`` takes out all of it, last first."""

    def __init__(self) -> None:
        self.undo: list[Callable[[], None]] = []

    def wrap(self, owner: Any, name: str, make: Callable[[Any], Any]) -> None:
        """Replace ``owner.name`` by ``make(what was there)``; nothing happens where there is no such attribute."""
        before = getattr(owner, name, None)
        if before is None:
            return
        had, old = name in vars(owner), vars(owner).get(name)
        call = make(before)

        def wrapper(*words: Any, **options: Any) -> Any:
            return call(*words, **options)

        setattr(owner, name, wrapper)

        def undo() -> None:
            nonlocal call
            call = before  # who has wrapped it since still calls ours, which now only passes through
            if vars(owner).get(name) is not wrapper:
                return
            if had:
                setattr(owner, name, old)
            else:
                delattr(owner, name)

        self.undo.append(undo)

    def handle(self, handle: Any) -> None:
        """Something with a ``remove`` of its own."""
        self.undo.append(handle.remove)

    def remove(self) -> None:
        """Take everything out."""
        while self.undo:
            self.undo.pop()()


class Shared:
    """Hooks that are one for all engines of the process: calls that do not go through an engine.

    ``backwards`` counts every backward pass that was seen, of whatever engine.
    """

    def __init__(self) -> None:
        self.probes: list[Any] = []
        self.hooks = Hooks()
        self.inside = 0
        self.backwards = 0

    def enter(self, probe: Any) -> None:
        """One more engine is watched."""
        if not self.probes:
            self._hang()
        self.probes.append(probe)

    def leave(self, probe: Any) -> None:
        """This engine is watched no longer."""
        if probe in self.probes:
            self.probes.remove(probe)
        if not self.probes:
            self.hooks.remove()

    def _hang(self) -> None:
        self.inside = 0
        self.hooks.wrap(torch.Tensor, "backward", self._direct)
        for name in ("clip_grad_norm_", "clip_grad_value_"):
            for module in (torch.nn.utils, torch.nn.utils.clip_grad):
                self.hooks.wrap(module, name, self._clip)
        self.hooks.wrap(torch.optim.lr_scheduler.LRScheduler, "step", self._scheduler)

    def _direct(self, backward: Any) -> Any:
        def wrapped(tensor: Any, *words: Any, **options: Any) -> Any:
            if self.inside:
                return backward(tensor, *words, **options)
            self.inside += 1
            self.backwards += 1
            try:
                probes = [probe for probe in self.probes if probe.pending]
                for probe in probes:
                    probe.before_direct(tensor, caller())
                try:
                    result = backward(tensor, *words, **options)
                except Exception:
                    for probe in probes:
                        probe.failed()
                    raise
                for probe in probes:
                    probe.after_backward()
                return result
            finally:
                self.inside -= 1

        return wrapped

    def _clip(self, clip: Any) -> Any:
        def wrapped(parameters: Any, *words: Any, **options: Any) -> Any:
            parameters = [parameters] if torch.is_tensor(parameters) else list(parameters)
            for probe in self.probes:
                probe.clipped(parameters, caller())
            return clip(parameters, *words, **options)

        return wrapped

    def _scheduler(self, step: Any) -> Any:
        def wrapped(scheduler: Any, *words: Any, **options: Any) -> Any:
            optimizer = getattr(scheduler, "optimizer", None)
            for probe in self.probes:
                probe.scheduler_stepped(scheduler, optimizer)
            return step(scheduler, *words, **options)

        return wrapped


SHARED = Shared()
