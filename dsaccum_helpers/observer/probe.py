"""The hooks of one engine, and the window that they fill."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from dsaccum_helpers.observer.gradients import GradientSum, checksum, given_norm, reported_norm
from dsaccum_helpers.observer.hooks import SHARED, Hooks
from dsaccum_helpers.observer.losses import terms
from dsaccum_helpers.observer.outside import Outside
from dsaccum_helpers.observer.places import Place, caller
from dsaccum_helpers.observer.tensors import first_tensor, samples_of
from dsaccum_helpers.observer.window import Backward, Closed, Window

#: The first updates are looked at with the gradients, later ones once in so many: they cost a copy.
FIRST_UPDATES, GRADIENTS_EVERY = 3, 16


class Probe(Outside):
    """Watches one engine.

    ``closed`` is called with each finished window, ``event`` with a call that is wrong by itself, ``resumed`` when a
    checkpoint was loaded.
    """

    def __init__(
        self,
        engine: Any,
        sample_every: int,
        closed: Callable[[Closed], None],
        event: Callable[[str, Place], None],
        resumed: Callable[[Place], None],
    ) -> None:
        self.engine, self.sample_every = engine, sample_every
        self.closed, self.event, self.resumed = closed, event, resumed
        self.hooks = Hooks()
        self.gradients = GradientSum(list(engine.module.parameters()))
        self.group = getattr(engine, "data_parallel_group", None)
        self.world = torch.distributed.get_world_size(self.group) if torch.distributed.is_initialized() else 1
        self.fp16 = bool(engine.fp16_enabled())
        self.updates = 0
        self.suspicious = False
        self.marks = (0.0, 0.0)  # errors and warnings that this rank has found, as bits; the others are told of them
        self.in_forward = self.in_take = self.pending = 0
        self.samples: int | None = None
        self.read: int | None = None
        self.pointer = 0
        self.last: Any = None
        self.same = False
        self.behind = 0
        self.forward_place: Place | None = None
        self.items = self.seen_items = 0
        self.given: float | None = None
        self.window = self._new()

    def start(self) -> None:
        """Hang all hooks in."""
        engine, hooks = self.engine, self.hooks
        self.hang_calls()
        hooks.wrap(engine, "_take_model_step", self._take)
        hooks.wrap(engine, "load_checkpoint", self._load)
        self.hang_outside()
        SHARED.enter(self)
        if engine.micro_steps % engine.gradient_accumulation_steps() or self._holds_gradients():
            # What was gathered before the watch began cannot be weighed; other ranks may have begun with it.
            self.window.broken = True
        self.gradients.start()

    def _holds_gradients(self) -> bool:
        return any(parameter.grad is not None for parameter in self.engine.module.parameters())

    def stop(self) -> None:
        """Take all hooks out."""
        self.gradients.stop()
        SHARED.leave(self)
        self.hooks.remove()

    def hang_calls(self) -> None:
        """The hooks of forward, backward and step."""
        engine, hooks = self.engine, self.hooks
        # A function, which a copy of the model shares: a bound method would be copied with the whole engine.
        hooks.handle(engine.module.register_forward_pre_hook(lambda *args: self._forward_pre(*args), with_kwargs=True))
        hooks.wrap(engine, "forward", self._forward)
        hooks.wrap(engine, "backward", self._backward)
        hooks.wrap(engine, "step", self._step)

    # Forward and backward

    def _forward(self, forward: Any) -> Any:
        def wrapped(*words: Any, **options: Any) -> Any:
            self.in_forward += 1
            try:
                return forward(*words, **options)
            finally:
                self.in_forward -= 1

        return wrapped

    def _forward_pre(self, module: Any, words: tuple[Any, ...], options: dict[str, Any]) -> None:
        if module is not self.engine.module or not (module.training and torch.is_grad_enabled()):
            return
        given = (*words, *options.values())
        first = first_tensor(given)
        pointer = 0
        if first is not None:  # a sparse tensor has no one place in memory
            pointer = first.data_ptr() if first.layout == torch.strided else id(first)
        # The memory of a tensor that is gone is used again: only one that still lives is the same micro-batch.
        self.same = pointer == self.pointer and self.last is not None and self.last() is not None
        self.pointer, self.last = pointer, None if first is None else weakref.ref(first)
        self.pending += 1
        self.samples = samples_of(given, self.engine.train_micro_batch_size_per_gpu())
        if not self.in_forward and self.window.bypassed is None:
            self.window.bypassed = caller()
        if self.pending == 1:
            self.forward_place = caller()

    def _backward(self, backward: Any) -> Any:
        def wrapped(loss: Any, *words: Any, **options: Any) -> Any:
            scaled = options.get("scale_wrt_gas", words[1] if len(words) > 1 else True)
            SHARED.inside += 1
            SHARED.backwards += 1
            noted = len(self.window.backwards)
            try:
                self._before(loss, bool(scaled), False, caller())
                result = backward(loss, *words, **options)
            except Exception:
                if len(self.window.backwards) > noted:
                    self.failed()
                raise
            finally:
                SHARED.inside -= 1
            self.after_backward()
            return result

        return wrapped

    def before_direct(self, loss: Any, place: Place) -> None:
        """backward() is about to run on a tensor that this engine's forward pass may have a part in."""
        if self.engine.zero_optimization_stage() == 0:
            self.event("backward-bypasses-engine", place)
        self._before(loss, False, True, place)

    def _before(self, loss: Any, scaled: bool, direct: bool, place: Place) -> None:
        engine, window = self.engine, self.window
        gas = engine.gradient_accumulation_steps()
        record = Backward(place, scaled, direct, gas, engine._is_gradient_accumulation_boundary)
        record.forwards, record.samples = self.pending, self.samples
        record.items, record.read = self.items - self.seen_items, self.read
        self.seen_items = self.items
        if (not self.pending or self.same) and len(window.backwards) > sum(window.groups):
            window.repeated += 1
        self.pending, self.same = 0, False
        if self.gradients.fresh:
            # Another engine's loss has run through this model: what it left counts only if nobody has cleared it.
            self.gradients.fresh, window.strayed = {}, True
        if self.fp16:
            record.scale = float(getattr(engine.optimizer, "loss_scale", 1.0) or 1.0)
        if window.sampled and torch.is_tensor(loss):
            record.terms = terms(loss)
        if self.behind and len(record.terms) <= self.behind:
            # A loss that was gathered over several micro-batches has a term for each.
            window.skipped.append(self.forward_place or place)
        self.behind = 0
        window.backwards.append(record)
        self.note_rate()

    def after_backward(self) -> None:
        """The pass is over, and what came of it is noted."""
        record = self.window.backwards[-1]
        for term in record.terms:
            term.handle.remove()
        if self.gradients.on:
            self.gradients.add()

    def failed(self) -> None:
        """backward() was refused, or broke off (out of memory): it counts as none."""
        record = self.window.backwards.pop()
        for term in record.terms:
            term.handle.remove()
        if self.gradients.fresh or not self.gradients.on:  # what came of it until then may be in the gradients
            self.gradients.fresh, self.window.broken = {}, True

    def left_behind(self) -> None:
        """The next micro-batch is read, and the one before was passed forward without a backward."""
        self.behind += 1

    # Step

    def _step(self, step: Any) -> Any:
        def wrapped(*words: Any, **options: Any) -> Any:
            window = self.window
            window.steps += 1
            window.step_place = caller()
            window.groups.append(len(window.backwards) - sum(window.groups))
            return step(*words, **options)

        return wrapped

    def _take(self, take: Any) -> Any:
        def wrapped(*words: Any, **options: Any) -> Any:
            self.before_update()
            self.in_take += 1
            try:
                result = take(*words, **options)
            finally:
                self.in_take -= 1
            self._close()
            return result

        return wrapped

    def before_update(self) -> None:
        """The window is complete, and the optimizer has not seen it yet."""
        self.note_rate()
        if self.gradients.on:
            self.given = given_norm(self.engine)

    def _close(self) -> None:
        closed = Closed(self.window, self.engine.train_micro_batch_size_per_gpu())
        self._compare(closed)
        self.updates += 1
        self.closed(closed)
        self.window = self._new()
        self.gradients.forget()
        self.note_rate()
        if self.window.gradients and not self.gradients.on:
            self.gradients.start()
        elif self.gradients.on and not self.window.gradients:
            self.gradients.stop()

    def _compare(self, closed: Closed) -> None:
        """The numbers that need the update to be over; collectives, the same on every rank."""
        engine = self.engine
        own: float | None = None
        if self.gradients.on:
            own = self.gradients.norm(self.group, self.world, getattr(engine, "gradient_average", True))
            closed.seen = self.given if self.given is not None else reported_norm(engine)
            overflow = getattr(engine.optimizer, "overflow", False)
            if closed.seen is not None and own > 1e-12 and not overflow and self._comparable():
                closed.ratio = closed.seen / own
        if not self.window.sampled:
            return
        if self.window.broken:
            closed.forget()
        if self.world == 1:
            closed.total = closed.own_total
        else:
            self._exchange(closed, with_parameters=own is not None)

    def _exchange(self, closed: Closed, *, with_parameters: bool) -> None:
        """What needs all ranks: one small vector of each."""
        nothing = float("nan")
        fewest, most = closed.token_range or (nothing, nothing)
        sums = checksum(self.engine) if with_parameters and self.engine.zero_optimization_stage() < 3 else nothing
        total = nothing if closed.own_total is None else closed.own_total
        mine = torch.tensor([total, fewest, most, sums, self.window.broken, *self.marks], dtype=torch.float64)
        mine = mine.to(next(self.engine.module.parameters()).device)
        parts = [torch.empty_like(mine) for _ in range(self.world)]
        torch.distributed.all_gather(parts, mine, group=self.group)
        totals, low, high, sums_of, broke, *marks = torch.stack(parts).cpu().T.tolist()
        closed.marks = list(zip(*marks, strict=True))
        if any(broke):
            closed.forget()
        mean = sum(totals) / len(totals)
        closed.total = mean if mean == mean else None
        closed.token_range = (min(low), max(high)) if sum(low) == sum(low) else None
        if sum(sums_of) == sum(sums_of):
            closed.spread = (max(sums_of) - min(sums_of)) / max(*map(abs, sums_of), 1e-30)

    def _load(self, load: Any) -> Any:
        def wrapped(*words: Any, **options: Any) -> Any:
            place = caller()
            result = load(*words, **options)
            self.resumed(place)
            return result

        return wrapped

    def _comparable(self) -> bool:
        """Are the optimizer's norm and ours norms of the same? Not where other ranks hold a part of the model, nor
        where layers were frozen or thawed since the hooks were hung in.
        """
        engine = self.engine
        parts = getattr(engine, "has_moe_layers", False) or getattr(engine, "sequence_parallel_size", 1) != 1
        if parts or (getattr(engine, "mpu", None) is not None and not hasattr(engine, "train_batch")):
            return False
        trained = {id(parameter) for parameter in engine.module.parameters() if parameter.requires_grad}
        return trained == {id(parameter) for parameter in self.gradients.parameters}

    def _new(self) -> Window:
        every = self.sample_every
        early = self.updates < FIRST_UPDATES or self.suspicious
        self.suspicious = False
        return Window(
            sampled=early or self.updates % every == 0, gradients=early or self.updates % (GRADIENTS_EVERY * every) == 0
        )
