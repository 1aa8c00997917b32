"""Calls around the engine: clearing, clipping, stepping the optimizer or the scheduler by hand."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch

from dsaccum_helpers.observer.hooks import Hooks
from dsaccum_helpers.observer.places import Place, caller
from dsaccum_helpers.observer.window import Window


class Outside:
    """What an engine's owner does beside ``backward`` and ``step``; notes it in ``window``."""

    engine: Any
    window: Window
    hooks: Hooks
    event: Callable[[str, Place], None]
    in_take: int

    def hang_outside(self) -> None:
        """The hooks for these calls. Schedulers of torch are seen by the hook that all engines share."""
        engine, hooks = self.engine, self.hooks
        optimizer, basic = engine.optimizer, getattr(engine, "basic_optimizer", None)
        hooks.wrap(engine, "zero_grad", lambda call: self._zero_grad(call, "engine"))
        hooks.wrap(engine, "no_sync", self._no_sync)
        hooks.wrap(engine, "set_gradient_accumulation_boundary", self._set_boundary)
        if isinstance(basic, torch.optim.Optimizer):
            hooks.handle(basic.register_step_pre_hook(self._basic_step))
        if optimizer is not None:
            hooks.wrap(optimizer, "zero_grad", lambda call: self._zero_grad(call, "optimizer"))
        if optimizer is not None and optimizer is not basic:
            hooks.wrap(optimizer, "step", self._optimizer_step)
        if basic is not None and basic is not optimizer:
            hooks.wrap(basic, "zero_grad", lambda call: self._zero_grad(call, "the torch optimizer"))
        scheduler = getattr(engine, "lr_scheduler", None)
        if scheduler is not None and not isinstance(scheduler, torch.optim.lr_scheduler.LRScheduler):
            hooks.wrap(scheduler, "step", self._engine_scheduler)

    def note_rate(self) -> None:
        """The learning rate at this moment, where it has moved."""
        groups = getattr(self.engine.optimizer, "param_groups", None)
        rate = groups[0].get("lr") if groups else None
        if isinstance(rate, float | int) and (not self.window.rates or self.window.rates[-1] != rate):
            self.window.rates.append(rate)

    def clipped(self, parameters: list[Any], place: Place) -> None:
        """Somebody clips gradients, perhaps those of this engine."""
        own = {id(parameter) for parameter in self.engine.module.parameters()}
        if not self.in_take and any(id(one) in own for one in parameters):
            self.window.clipped.append((place, len(self.window.backwards)))

    def scheduler_stepped(self, scheduler: Any, optimizer: Any) -> None:
        """A scheduler of torch is stepped, perhaps one that moves this engine's learning rate."""
        engine = self.engine
        if self.in_take or getattr(scheduler, "_is_initial", False):
            return
        if scheduler is getattr(engine, "lr_scheduler", None):
            self._outside_step(caller(3))
        elif optimizer is not None and optimizer in (getattr(engine, "basic_optimizer", None), engine.optimizer):
            self.window.scheduler_place = caller(3)

    def _outside_step(self, place: Place) -> None:
        self.window.scheduler_outside += 1
        self.window.scheduler_place = place

    def _engine_scheduler(self, step: Any) -> Any:
        def wrapped(*words: Any, **options: Any) -> Any:
            if not self.in_take:
                self._outside_step(caller())
            return step(*words, **options)

        return wrapped

    def _zero_grad(self, zero_grad: Any, on: str) -> Any:
        def wrapped(*words: Any, **options: Any) -> Any:
            if not self.in_take and self.window.backwards:
                self.window.zeroed.append((caller(), len(self.window.backwards), on))
            return zero_grad(*words, **options)

        return wrapped

    def _optimizer_step(self, step: Any) -> Any:
        def wrapped(*words: Any, **options: Any) -> Any:
            if self.in_take:
                return step(*words, **options)
            self.event("optimizer-step-bypasses-engine", caller())
            self.in_take += 1  # the torch optimizer below it is stepped by the same call
            try:
                return step(*words, **options)
            finally:
                self.in_take -= 1

        return wrapped

    def _basic_step(self, optimizer: Any, words: Any, options: Any) -> None:
        if not self.in_take:
            self.event("optimizer-step-bypasses-engine", caller())

    def _set_boundary(self, setter: Any) -> Any:
        def wrapped(is_boundary: Any) -> Any:
            place = caller()
            self.window.override_place = place
            return setter(is_boundary)

        return wrapped

    def _no_sync(self, no_sync: Any) -> Any:
        @contextlib.contextmanager
        def wrapped(*words: Any, **options: Any) -> Iterator[Any]:
            self.window.no_sync = True
            if self.engine.zero_optimization_stage() > 1:
                self.event("no-sync-with-partitioned-gradients", caller(3))
            with no_sync(*words, **options) as inside:
                yield inside

        return wrapped
