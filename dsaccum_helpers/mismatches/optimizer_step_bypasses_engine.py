"""``optimizer.step()`` in place of ``engine.step()``."""

from __future__ import annotations

from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.entry import Mismatch
from dsaccum_helpers.mismatches.windows import at, live, same_place, setup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job
    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.mismatches.windows import Setup
    from dsaccum_helpers.setting import Setting
    from dsaccum_helpers.trace import Engine, Event


class OptimizerStepBypassesEngine(Mismatch):
    """The engine's optimizer is stepped behind the engine's back."""

    code = "optimizer-step-bypasses-engine"
    title = "The optimizer is stepped in place of the engine"
    symptom = "ZeRO-0: no message. ZeRO-1 and 2: KeyError: 0. ZeRO-3: the counters of the engine stay at 0."
    cause = "optimizer.step() was kept from a plain PyTorch loop; the engine owns the optimizer and its window."
    consequence = (
        "ZeRO-0 and 3: an update in every micro-batch from an unfinished window (80 instead of 20 measured), at a "
        "learning rate that never moves; at ZeRO-0 ranks drift apart. ZeRO-1 and 2: the first such step raises "
        "KeyError."
    )
    remedy = "Call engine.step() after every engine.backward(loss), and nothing else."
    learn = "notebooks/04_loop_mistakes.ipynb"
    silences = ("guarded-engine-step", "manual-accumulation")
    bypasses_engine_step = True

    def check(self, job: Job) -> Iterator[Finding]:
        """Steps of an optimizer that belongs to an engine."""
        known = setup(job)
        for program in job.programs:
            events = live(program)
            for event in same_place(events):
                if event.kind == "optimizer-step" and not event.info["prepared"]:
                    engine = event.actor or _engine_without_step(events, event)
                    if engine is not None and engine.kind == "deepspeed":
                        yield self._said(event, engine, known)

    def _said(self, event: Event, engine: Engine, known: Setup) -> Finding:
        message = f"The optimizer of the engine is stepped directly ({at(event)}). {engine.name}.step() does not count "
        message += f"this: the window{f' of {known.gas}' if known.gas else ''} does not exist for it. "
        stages = {0: "At ZeRO-0 every call is an update from an unfinished sum, and ranks drift apart."}
        stages |= dict.fromkeys((1, 2), f"At ZeRO-{known.stage} it ends in KeyError: 0.")
        message += stages.get(known.stage if known.stage is not None else -1, "At ZeRO-3 its counters stay at 0.")
        fix = Fix(f"Replace this line by {engine.name}.step(), once after every {engine.name}.backward(loss).")
        return self.found(message, [event.source], [fix])

    def stops(self, setting: Setting) -> str | None:
        """Stages 1 and 2 hand the optimizer its gradients at the end of a window, which only comes where it is one."""
        if setting.zero_stage not in (1, 2) or setting.gradient_accumulation_steps == 1:
            return None
        return (
            f"At ZeRO stage {setting.zero_stage} the optimizer is given its part of the gradients at the end of a "
            "window, and only engine.step() counts towards it: there is nothing to step with. Smallest fix: "
            "engine.step() in place of optimizer.step() and optimizer.zero_grad()."
        )

    @staticmethod
    def loop(run: Any) -> None:
        """Step and clear the optimizer, as in plain PyTorch."""
        for inputs, targets in run.loader:
            loss = run.criterion(run.engine(inputs), targets)
            run.engine.backward(loss)
            run.engine.optimizer.step()
            run.engine.optimizer.zero_grad()

    def predict(self, setting: Setting) -> Prediction:
        """Each micro-batch is an update of its own, divided all the same; the scheduler is never stepped.

        At stage 0 the processes exchange gradients at the end of a window, so never: each trains by itself. A window of
        one micro-batch is always at its end.
        """
        count, steps = setting.gradient_accumulation_steps, setting.micro_batches
        return self._prediction(
            setting,
            weights=(1 / count,),
            optimizer_steps=steps,
            scheduler_steps=(0,) * steps,
            first_rank_only=setting.zero_stage == 0 and count > 1,
        )


def _engine_without_step(events: list[Event], event: Event) -> Engine | None:
    """Something called optimizer is stepped in the loop of an engine that nobody steps."""
    stepped = {one.actor for one in events if one.kind == "step"}
    for other in events:
        near = other.kind == "backward" and other.loops == event.loops and bool(event.loops)
        if near and other.actor is not None and other.actor not in stepped:
            return other.actor
    return None
