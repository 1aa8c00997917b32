"""The logged loss is multiplied or divided by the accumulation count; the training is not."""

from __future__ import annotations

from dsaccum_helpers.effective.owners import TRAINERS
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches import numerics
from dsaccum_helpers.mismatches.entry import Mismatch, needs_accumulation
from dsaccum_helpers.mismatches.windows import at, live, same_place, setup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Event, Job
    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.setting import Setting

FEWEST = 4  # with 2 or 3 micro-batches the ratio of two losses says nothing
NEAR = 0.15


class LoggedLossScaled(Mismatch):
    """What is printed is no mean over the window."""

    code = "logged-loss-scaled"
    title = "The logged loss is scaled by the accumulation count"
    symptom = "The training loss is N times the evaluation loss, or 1/N of it, from the first step on."
    cause = "engine.backward(loss) returns the loss divided by N; some trainers add the window's losses up."
    consequence = "Reporting only: the gradients are those of the loss that went into backward."
    remedy = "Log the loss as the model gives it, before engine.backward."
    learn = "notebooks/04_loop_mistakes.ipynb"
    not_watched = (
        "The training is right; what a script logs is its own, and only `dsaccum check` reads the script or the log."
    )
    severity = "note"

    def check(self, job: Job) -> Iterable[Finding]:
        """What the log shows, and what the script hands to a log."""
        yield from self._script(job)
        count = numerics.steps(job)
        for event in job.events:
            if event.kind == "losses" and count and count >= FEWEST:
                yield from self._ratio(job, event, count)

    def _script(self, job: Job) -> Iterator[Finding]:
        """What backward returned, or a single loss that is divided for the log."""
        known = setup(job)
        for program in job.programs if known.gas is None or known.gas > 1 else ():
            for event in same_place(live(program)):
                count = known.gas or "the accumulation steps"
                if event.kind == "use-returned-loss":
                    message = f"engine.backward() returns the loss divided by {count}, and that number is logged "
                    message += f"({at(event)}): it is 1/{count} of the loss. Training is not affected."
                    yield self.found(message, [event.source], [Fix("Log the loss that went into backward.")])
                elif event.kind == "use-divided-loss" and event.loops:
                    message = f"The loss of one micro-batch is divided by {event.info['division'].text} for the log "
                    message += f"({at(event)}): it is 1/{count} of the loss. Training is not affected."
                    yield self.found(message, [event.source], [Fix("Log the loss as it is, or the sum of a window.")])

    def _ratio(self, job: Job, event: Event, count: int) -> Iterator[Finding]:
        """The first training loss against the first evaluation loss."""
        train, other = event.values.get("train"), event.values.get("eval")
        if not all(isinstance(one, int | float) and one > 0 for one in (train, other)):
            return
        ratio = train / other
        if abs(ratio / count - 1) <= NEAR:
            how, text = f"{count} times", "the window's losses are added up, not averaged"
        elif abs(ratio * count - 1) <= NEAR:
            how, text = f"1/{count} of", "each loss is divided by the accumulation steps before it is logged"
        else:
            return
        message = (
            f"The first logged training loss, {train:g}, is {how} the evaluation loss, {other:g}, and "
            f"gradient_accumulation_steps is {count}: {text}."
        )
        fixes = [Fix("Look at grad_norm: if it does not grow with the accumulation steps, only the report is scaled.")]
        if job.framework in TRAINERS:
            fixes.append(
                Fix("Install a newer transformers: from 4.46 on its Trainer has had several faults of this kind.")
            )
        yield self.found(message, [event.source, *numerics.steps_source(job)], fixes)

    def needs(self, setting: Setting) -> str | None:
        """Divided by one, the loss stays what it is."""
        return needs_accumulation(setting)

    @staticmethod
    def loop(run: Any) -> None:
        """Report what backward returns."""
        for inputs, targets in run.loader:
            loss = run.criterion(run.engine(inputs), targets)
            loss = run.engine.backward(loss)
            run.engine.step()
            run.report(loss)

    @staticmethod
    def mended_loop(run: Any) -> None:
        """Report what the model gives."""
        for inputs, targets in run.loader:
            loss = run.criterion(run.engine(inputs), targets)
            run.engine.backward(loss)
            run.engine.step()
            run.report(loss)

    def predict(self, setting: Setting) -> Prediction:
        """The right training, and 1/N of each loss in its report."""
        return self._told(setting, self._prediction(setting), 1 / setting.gradient_accumulation_steps)

    def mended_prediction(self, setting: Setting, right: Prediction) -> Prediction:
        """The right training, and the whole loss."""
        return self._told(setting, right, 1.0)

    def _told(self, setting: Setting, training: Prediction, share: float) -> Prediction:
        from dataclasses import replace

        return replace(training, reports=setting.micro_batches, reported=share)
