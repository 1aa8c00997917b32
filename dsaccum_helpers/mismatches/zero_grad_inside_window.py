"""Gradients are cleared inside the accumulation window."""

from __future__ import annotations

from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.entry import Mismatch, needs_accumulation
from dsaccum_helpers.mismatches.windows import at, live, once, own_count, pairs, same_place, setup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job
    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.mismatches.windows import Setup
    from dsaccum_helpers.setting import Setting
    from dsaccum_helpers.trace import Event, Program


class ZeroGradInsideWindow(Mismatch):
    """What a window has gathered is thrown away before it is complete."""

    code = "zero-grad-inside-window"
    title = "Gradients are cleared inside the window"
    symptom = "No message. Training is noisier and slower than the batch size promises."
    cause = "zero_grad() in every micro-batch was kept from a plain PyTorch loop; the engine clears after its update."
    consequence = (
        "ZeRO-0, 1 and 3: only the last micro-batch of a window remains, divided by the accumulation steps (0.33 of "
        "the right norm measured, accumulation steps 4). ZeRO-2 is unharmed, its gradients are elsewhere; and "
        "engine.zero_grad() does not harm ZeRO-3 either."
    )
    remedy = "Leave zero_grad() out: engine.step() clears the gradients after each update."
    learn = "notebooks/04_loop_mistakes.ipynb"

    def check(self, job: Job) -> Iterator[Finding]:
        """zero_grad in the loop over micro-batches."""
        known = setup(job)
        for program in job.programs:
            for event in same_place(live(program)):
                if event.kind == "zero-grad" and event.actor is not None and event.actor.kind == "deepspeed":
                    window = _window(program, event, known)
                    if window and window != 1:
                        yield self._said(event, known, window)

    def _said(self, event: Event, known: Setup, window: float | str) -> Finding:
        message = f"{event.info['on']}.zero_grad() is called in every micro-batch ({at(event)}), inside the window of "
        message += f"{window}: "
        harmless = known.stage == 2 or (known.stage == 3 and event.info["on"] != "optimizer")
        if harmless:
            message += (
                f"at ZeRO-{known.stage} the gradients of the window are kept elsewhere, so this changes nothing; "
            )
            message += "at other stages it throws them away."
        else:
            message += "what the micro-batches before have gathered is thrown away, and only the last one remains, "
            message += f"divided by {window}. (ZeRO-2 would be unharmed.)"
        fix = Fix(f"Leave the line out: {event.actor.name}.step() clears the gradients after each update.")
        return self.found(message, [event.source], [fix], severity="note" if harmless else None)

    def needs(self, setting: Setting) -> str | None:
        """A window of one micro-batch has nothing behind it to lose."""
        return needs_accumulation(setting)

    @staticmethod
    def loop(run: Any) -> None:
        """Clear the gradients before each backward, as a loop without accumulation would."""
        for inputs, targets in run.loader:
            run.engine.zero_grad()
            loss = run.criterion(run.engine(inputs), targets)
            run.engine.backward(loss)
            run.engine.step()

    def predict(self, setting: Setting) -> Prediction:
        """At stages 0 and 1 the last micro-batch of a window; at 2 and 3 the gradients are kept elsewhere."""
        count = setting.gradient_accumulation_steps
        weights = (0.0,) * (count - 1) + (1 / count,) if setting.zero_stage < 2 else None
        return self._prediction(setting, weights=weights)


def _window(program: Program, event: Event, known: Setup) -> float | str | None:
    """How many micro-batches the window has in which the gradients are cleared, None where they are not."""
    for pair in pairs(program):
        if pair.engine is not event.actor or pair.backward.loops != event.loops or not event.loops:
            continue
        if once(event.guards) or any(guard.kind == "failed" for guard in event.guards):
            return None
        own = own_count(pair, known)
        return (
            known.gas if known.gas and known.gas > 1 else own or (None if known.gas == 1 else "the accumulation steps")
        )
    return None
