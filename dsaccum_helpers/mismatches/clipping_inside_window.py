"""Gradients clipped before the window is complete."""

from __future__ import annotations

from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.entry import Mismatch, needs_accumulation
from dsaccum_helpers.mismatches.windows import at, live, once, pairs, same_place, setup

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

NORM = 0.1
"""At which the runs clip: short enough for every task."""


class ClippingInsideWindow(Mismatch):
    """Clipping an unfinished sum is not clipping the gradient."""

    code = "clipping-inside-window"
    title = "Gradients are clipped before the window is complete"
    symptom = "No message. The norm that is logged is that of an unfinished sum."
    cause = "clip_grad_norm_ stands in the loop over micro-batches, without asking whether the window is complete."
    consequence = (
        "ZeRO-0 rescales the running sum in every micro-batch, ZeRO-1 in all but the last (weights 0.006 to 0.08 away "
        "from those of one clip of the whole window, measured); ZeRO-2 and 3 keep their gradients elsewhere, so "
        "nothing is clipped."
    )
    remedy = "gradient_clipping in the DeepSpeed config; under Accelerate clip only if accelerator.sync_gradients."
    learn = "notebooks/04_loop_mistakes.ipynb"

    def check(self, job: Job) -> Iterator[Finding]:
        """Clips in the loop over micro-batches without a question for the boundary."""
        known = setup(job)
        if known.gas == 1:
            return
        for program in job.programs:
            for event in same_place(live(program)):
                if event.kind == "clip" and event.loops and not once(event.guards):
                    if event.actor.kind == "deepspeed" and _in_micro_batch(program, event):
                        yield self._raw(event, known)
                    elif event.actor.kind == "accelerate" and not known.deepspeed:
                        yield self._accelerate(event, known)

    def _raw(self, event: Event, known: Setup) -> Finding:
        window = f"of {known.gas} " if known.gas else ""
        message = f"{event.info['by']} is called in every micro-batch ({at(event)}): inside a window {window}"
        if known.stage in (2, 3):
            message += f"it finds no gradients at ZeRO-{known.stage}, so nothing is clipped by it at all."
        else:
            message += "it clips an unfinished sum, again and again."
        fix = Fix(
            "Leave the line out and set gradient_clipping in the DeepSpeed config: the engine clips the whole window."
        )
        return self.found(message, [event.source], [fix])

    def _accelerate(self, event: Event, known: Setup) -> Finding:
        message = (
            f"{event.info['by']} is called in every micro-batch ({at(event)}), on an unfinished sum of the window "
        )
        message += f"of {known.gas or 'several'}; in fp16 the gradients are unscaled more than once as well."
        fix = Fix("Put it under `if accelerator.sync_gradients:`.")
        return self.found(message, [event.source], [fix])

    def needs(self, setting: Setting) -> str | None:
        """A window of one micro-batch is complete at once."""
        return needs_accumulation(setting)

    def config(self, setting: Setting) -> dict[str, Any]:
        """The engine is told not to clip, because the script does."""
        return setting.ds_config() | {"gradient_clipping": 0.0}

    @staticmethod
    def loop(run: Any) -> None:
        """Clip behind each backward, as a loop without accumulation would."""
        from torch.nn.utils import clip_grad_norm_

        for inputs, targets in run.loader:
            loss = run.criterion(run.engine(inputs), targets)
            run.engine.backward(loss)
            clip_grad_norm_(run.engine.parameters(), max_norm=0.1)
            run.engine.step()

    def mended_config(self, setting: Setting) -> dict[str, Any]:
        """The engine clips the whole window; the loop is the right one."""
        return setting.ds_config() | {"gradient_clipping": NORM}

    def predict(self, setting: Setting) -> Prediction:
        """Each process clips its running sum; behind the last backward only stage 0 still has gradients to clip."""
        from dataclasses import replace

        unclipped = self._prediction(setting, gradient_clipping=0.0)
        if setting.zero_stage >= 2:
            return unclipped
        last = setting.zero_stage == 0
        return replace(unclipped, exchanges="sums", inner_clipping=NORM, boundary_clipping=last)

    def mended_prediction(self, setting: Setting, right: Prediction) -> Prediction:
        """The mean of the window, clipped once."""
        from dataclasses import replace

        return replace(right, gradient_clipping=NORM)


def _in_micro_batch(program: Program, event: Event) -> bool:
    """Does the clip stand in the same loop as a backward?"""
    return any(pair.engine is event.actor and pair.backward.loops == event.loops for pair in pairs(program))
