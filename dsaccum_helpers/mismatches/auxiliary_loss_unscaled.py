"""A router or auxiliary loss outside the scaling."""

from __future__ import annotations

from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.backward_bypasses_engine import scales_direct
from dsaccum_helpers.mismatches.entry import Mismatch, needs_accumulation
from dsaccum_helpers.mismatches.windows import at, compatible, live, same_place, setup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job
    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.setting import Setting
    from dsaccum_helpers.trace import Event, Term
    from dsaccum_helpers.training.tasks import Task


class AuxiliaryLossUnscaled(Mismatch):
    """One summand of the loss is a mean over the window, another a mean over one micro-batch."""

    code = "auxiliary-loss-unscaled"
    title = "An auxiliary loss is left out of the scaling"
    symptom = "No message. Raising the accumulation steps changes the balance of the losses."
    cause = (
        "The main loss is divided by the window's total and passed with scale_wrt_gas=False; the auxiliary loss is not."
    )
    consequence = (
        "The auxiliary loss enters every update accumulation-steps times. The size of the gradient hardly tells: with "
        "a tenth of the outputs' mean square as auxiliary loss, and 4 micro-batches, it changed by 1 to 4 % (measured)."
    )
    remedy = "Divide the auxiliary loss by the accumulation steps, or pass both undivided and let the engine divide."
    learn = "notebooks/04_loop_mistakes.ipynb"

    def check(self, job: Job) -> Iterator[Finding]:
        """Summands with and without a division in a loss that the engine does not scale."""
        known = setup(job)
        if known.gas == 1:
            return
        for program in job.programs:
            for event in same_place(live(program)):
                if event.kind == "direct-backward" and scales_direct(event, known.stage, job):
                    own = {term.own for term in event.info["loss"].terms}
                    if own == {True, False}:
                        yield self._past_the_hook(event, known.gas)
                if event.kind == "backward" and not event.info["scaled"] and len(event.info["loss"].terms) > 1:
                    scaled = [_scaled(term, event) for term in event.info["loss"].terms]
                    if any(scaled) and not all(scaled):
                        yield self._said(event, known.gas)

    def _past_the_hook(self, event: Event, gas: int | None) -> Finding:
        count = gas or "accumulation-steps"
        message = f"backward() is called on the loss itself ({at(event)}): the engine's hook divides what came out of "
        message += "its "
        message += f"forward pass by {count}, and a summand that did not, such as a penalty on the weights, stays "
        message += f"undivided: it enters every update {count} times."
        fix = Fix(f"{event.actor.name}.backward(loss), which divides the whole loss.")
        return self.found(message, [event.source], [fix])

    def _said(self, event: Event, gas: int | None) -> Finding:
        count = gas or "the accumulation steps"
        message = (
            f"With scale_wrt_gas=False ({at(event)}) the engine divides nothing. One summand of the loss is divided "
        )
        message += "over the window by the script, another one is not: it enters every update "
        message += f"{gas} times, without 1/{gas}." if gas else "once for each micro-batch, undivided."
        fix = Fix(f"Divide the auxiliary loss by {count}.")
        return self.found(message, [event.source], [fix])

    def needs(self, setting: Setting) -> str | None:
        """Divided by one, nothing is left out."""
        return needs_accumulation(setting)

    def prepare(self, task: Task) -> Task:
        """A second term of the loss."""
        from dataclasses import replace

        return replace(task, auxiliary=_small_outputs)

    @staticmethod
    def loop(run: Any) -> None:
        """The main loss is made ready for the whole window, the auxiliary loss is added as it is."""
        for inputs, targets in run.loader:
            outputs = run.engine(inputs)
            loss = run.criterion(outputs, targets) / run.gradient_accumulation_steps
            loss = loss + run.auxiliary(outputs)
            run.engine.backward(loss, scale_wrt_gas=False)
            run.engine.step()

    @staticmethod
    def mended_loop(run: Any) -> None:
        """Divide both."""
        for inputs, targets in run.loader:
            outputs = run.engine(inputs)
            loss = run.criterion(outputs, targets) + run.auxiliary(outputs)
            run.engine.backward(loss / run.gradient_accumulation_steps, scale_wrt_gas=False)
            run.engine.step()

    def predict(self, setting: Setting) -> Prediction:
        """The right gradient of the main loss, and N times that of the auxiliary one."""
        from dataclasses import replace

        return replace(self._prediction(setting), auxiliary=float(setting.gradient_accumulation_steps))


def _small_outputs(outputs: Any) -> Any:
    """A term that keeps the outputs small, as a router's z-loss does: a tenth of their mean square."""
    return 0.1 * outputs.float().square().mean()


def _scaled(term: Term, event: Event) -> bool:
    """Is the summand divided by the count, or by something that was counted over the window?"""
    around = frozenset().union(*(loop.items for loop in event.loops))
    found = [d.value for d in term.divisions if d.value is not None and compatible(d.guards, event.guards)]
    return any(value.counts or value.count_power > 0 or value.over & around for value in found)
