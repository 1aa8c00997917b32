"""The learning-rate scheduler counts micro-batches instead of optimizer steps."""

from __future__ import annotations

from dsaccum_helpers.mismatches.entry import Mismatch, needs_accumulation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.setting import Setting


class SchedulerUnit(Mismatch):
    """A schedule planned in optimizer steps, stepped once for every micro-batch."""

    code = "scheduler-unit"
    title = "The scheduler is stepped once for every micro-batch"
    symptom = "At best a UserWarning of torch. The learning rate falls N times too fast, then training stands still."
    cause = "scheduler.step() stands in the loop over micro-batches; the schedule was planned in optimizer steps."
    consequence = "The learning rate reaches zero after 1 / N of the updates."
    remedy = "Pass lr_scheduler to deepspeed.initialize: the engine steps it once for each update."
    script_owns_scheduler = True

    def needs(self, setting: Setting) -> str | None:
        """A constant learning rate has no schedule to run through too fast."""
        if setting.schedule == "constant":
            return "A constant learning rate has no schedule to run too fast. Smallest fix: schedule 'linear'."
        return needs_accumulation(setting)

    @staticmethod
    def loop(run: Any) -> None:
        """Step the scheduler with the micro-batches."""
        for inputs, targets in run.loader:
            loss = run.criterion(run.engine(inputs), targets)
            run.engine.backward(loss)
            run.engine.step()
            run.scheduler.step()

    def predict(self, setting: Setting) -> Prediction:
        """At update u the scheduler has already been stepped (u + 1) × N - 1 times."""
        count = setting.gradient_accumulation_steps
        return self._prediction(
            setting, scheduler_steps=tuple((u + 1) * count - 1 for u in range(setting.optimizer_steps))
        )
