"""The pipeline engine, which runs a whole window inside one call: ``train_batch``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from dsaccum_helpers.observer.facts import Seen, seen
from dsaccum_helpers.observer.hooks import SHARED
from dsaccum_helpers.observer.places import Place, caller, shown
from dsaccum_helpers.observer.probe import Probe
from dsaccum_helpers.observer.tensors import samples_of
from dsaccum_helpers.observer.window import Backward


class PipelineProbe(Probe):
    """Sees the micro-batches that a stage reads, and the gradients of its own layers.

    The weights of losses are not seen: the engine calls backward below every place where a hook could hang.
    """

    def start(self) -> None:
        """Hang all hooks in."""
        self.calls = self.read_in_call = 0
        self.place: Place | None = None
        self.ends_low = 0
        super().start()
        self.hooks.wrap(self.engine, "train_batch", self._train_batch)
        self.hooks.wrap(self.engine, "_next_batch", self._next_batch)

    def hang_calls(self) -> None:
        """Neither forward, backward nor step of a pipeline engine may be called."""

    def _train_batch(self, train_batch: Any) -> Any:
        def wrapped(*words: Any, **options: Any) -> Any:
            self.calls, self.read_in_call, self.place = self.calls + 1, 0, caller()
            SHARED.inside += 1
            SHARED.backwards += 1
            try:
                return train_batch(*words, **options)
            finally:
                SHARED.inside -= 1
                groups = self.engine.optimizer.param_groups
                self.ends_low += bool(groups) and groups[0].get("lr") == 0

        return wrapped

    def _next_batch(self, next_batch: Any) -> Any:
        def wrapped() -> Any:
            try:
                batch = next_batch()
            except StopIteration:
                if self.read_in_call and self.place is not None:
                    self.event("pipeline-train-batch", self.place)
                raise
            self.read_in_call += 1
            record = Backward(self.place or caller(), True, False, self.engine.gradient_accumulation_steps(), None)
            record.samples = samples_of((batch,), self.engine.train_micro_batch_size_per_gpu())
            record.read = record.samples
            self.window.backwards.append(record)
            self.window.steps += 1
            return batch

        return wrapped

    def _comparable(self) -> bool:
        # A ZeRO or 16-bit optimizer gives the norm of all stages, and ours is that of one.
        one_stage = self.engine.num_stages == 1 or self.engine.optimizer is self.engine.basic_optimizer
        return one_stage and super()._comparable()

    def before_update(self) -> None:
        """The gradients of all micro-batches lie in one sum already."""
        self.gradients.add()
        super().before_update()

    def unfinished(self, length: int | None) -> Iterator[Seen]:
        """One call of train_batch for each micro-batch of the loader goes through the data as often as it accumulates.

        That can be meant; a learning rate that was at its end for most of the run says that it was not.
        """
        gas = self.engine.gradient_accumulation_steps()
        if gas < 2 or not length or self.calls != length:
            return
        low = self.ends_low > self.calls / 2
        message = f"train_batch is called {self.calls} times ({shown(self.place)}), once for each micro-batch of the "
        message += f"loader, and reads {gas} micro-batches each time: the data were read {gas} times."
        message += f" The learning rate was 0 for {self.ends_low} of these updates." if low else ""
        fix = f"Call it len(loader) // {gas} = {length // gas} times for each epoch."
        yield seen("pipeline-train-batch", message, [self.place], severity="error" if low else "note", fix=fix)
