"""``train_batch()`` fed a loader instead of an iterator, or counted once per micro-batch."""

from __future__ import annotations

from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.entry import Mismatch, needs_accumulation
from dsaccum_helpers.mismatches.windows import at, live, once, same_place, setup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job
    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.mismatches.windows import Setup
    from dsaccum_helpers.setting import Setting
    from dsaccum_helpers.trace import Event, Loop


class PipelineTrainBatch(Mismatch):
    """One call is a whole window with its update."""

    code = "pipeline-train-batch"
    title = "train_batch() is taken for one micro-batch"
    symptom = "TypeError: 'DataLoader' object is not an iterator; StopIteration; or, silently, N times the updates."
    cause = "PipelineEngine.train_batch(data_iter) pulls accumulation-steps micro-batches itself and updates once."
    consequence = (
        "A loop over micro-batches around it makes accumulation-steps updates out of what is counted as one: the data "
        "are read so many times, and the schedule is at its end after 1/N of the calls (measured)."
    )
    remedy = (
        "One call for each optimizer step, fed iter(RepeatingLoader(loader)): len(loader) // accumulation steps calls."
    )
    learn = "notebooks/04_loop_mistakes.ipynb"
    silences = ("manual-accumulation", "guarded-engine-step")
    pipeline = True

    def check(self, job: Job) -> Iterator[Finding]:
        """What train_batch is fed, and which loops stand around it."""
        known = setup(job)
        for program in job.programs:
            for event in same_place(live(program)):
                if event.kind == "train-batch":
                    yield from self._in_event(event, known)
                elif event.actor is not None and event.actor.pipeline and event.kind in ("backward", "step"):
                    message = f"A pipeline engine has no {event.kind}() of its own ({at(event)}): DeepSpeed raises "
                    message += "PipelineError, only train_batch() is accessible."
                    yield self.found(message, [event.source], [Fix("loss = engine.train_batch(data_iter)")])

    def _in_event(self, event: Event, known: Setup) -> Iterator[Finding]:
        count, data = known.gas or "accumulation-steps", event.info.get("data")
        role = getattr(data, "role", None)
        if role == "loader":
            message = (
                f"train_batch is fed a loader ({at(event)}): it calls next() on it {count} times, and a DataLoader is "
            )
            message += "no iterator."
            fix = Fix("data = iter(RepeatingLoader(loader)) once, and train_batch(data_iter=data) in the loop.")
            yield self.found(message, [event.source], [fix])
            return
        items = getattr(data, "items", None)
        if items and not data.open and known.gas and len(items) < known.gas:
            message = (
                f"train_batch takes {known.gas} micro-batches from its iterator ({at(event)}), and this one holds "
            )
            message += f"{len(items)}: StopIteration at the next one."
            yield self.found(message, [event.source], [Fix("Feed iter(RepeatingLoader(loader)), made once.")])
            return
        loop = _micro_batch_loop(event.loops, known)
        guard = once(event.guards)
        if loop is not None or (guard is not None and guard.kind in ("every", "boundary")):
            message = f"train_batch is a whole window of {count} micro-batches with its update ({at(event)}). The "
            message += f"{'loop' if loop else 'condition'} around it takes it for one micro-batch: "
            message += f"{count} updates where one is counted." if loop else "the data between are never trained on."
            fix = Fix("Call train_batch once for each optimizer step, without the inner loop or condition.")
            yield self.found(message, [event.source, *([loop.source] if loop else [])], [fix])
        elif role == "iterator" and not data.facts.get("repeating") and (loop := _whole_loader(event.loops)):
            message = (
                f"The loop calls train_batch once for each micro-batch of the loader ({at(event)}), and each call "
            )
            message += f"takes {count} of them: the iterator is used up after 1/{count} of the loop (StopIteration)."
            fix = Fix("range(len(loader) // engine.gradient_accumulation_steps()), or iter(RepeatingLoader(loader)).")
            yield self.found(message, [event.source, loop.source], [fix])

    def needs(self, setting: Setting) -> str | None:
        """Layers in a row, and a ZeRO stage that the pipeline engine takes."""
        if setting.zero_stage > 1:
            return (
                f"ZeRO-{setting.zero_stage} is refused by the pipeline engine (ZeRO-2 and ZeRO-3 are incompatible with "
                "pipeline parallelism). Smallest fix: zero_stage 1."
            )
        if setting.task not in ("regression", "digits"):
            return "The language model is no row of layers. Smallest fix: task 'digits'."
        return needs_accumulation(setting)

    @staticmethod
    def loop(run: Any) -> None:
        """Call train_batch once for each micro-batch of the loader."""
        from deepspeed.utils import RepeatingLoader

        data = iter(RepeatingLoader(run.loader))
        for _ in range(len(run.loader)):
            run.engine.train_batch(data_iter=data)

    @staticmethod
    def mended_loop(run: Any) -> None:
        """Call train_batch once for each window."""
        from deepspeed.utils import RepeatingLoader

        data = iter(RepeatingLoader(run.loader))
        for _ in range(len(run.loader) // run.engine.gradient_accumulation_steps()):
            run.engine.train_batch(data_iter=data)

    def predict(self, setting: Setting) -> Prediction:
        """As many updates as micro-batches were meant: the data are read N times, behind the end of the schedule."""
        return self._prediction(setting, optimizer_steps=setting.micro_batches)

    def micro_batches_read(self, setting: Setting) -> int:
        """N for each call."""
        return setting.micro_batches * setting.gradient_accumulation_steps


def _micro_batch_loop(loops: tuple[Loop, ...], known: Setup) -> Loop | None:
    """An inner loop that counts to the accumulation steps."""
    for loop in loops[1:] or loops:
        if loop.count is not None and loop.over == "range":
            value = loop.count.known(gas=known.gas)
            multiple = loop.count.count_power == 1
            if multiple or (value is not None and value == known.gas and len(loops) > 1):
                return loop if known.gas != 1 else None
    return None


def _whole_loader(loops: tuple[Loop, ...]) -> Loop | None:
    """The innermost loop, where it runs as often as a loader has micro-batches."""
    loop = loops[-1] if loops else None
    if loop is None or loop.count is None or loop.over != "range":
        return None
    powers = loop.count.symbols
    return loop if len(powers) == 1 and next(iter(powers)).startswith("len:") and loop.count.factor == 1 else None
