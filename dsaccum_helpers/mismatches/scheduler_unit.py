"""The learning-rate scheduler counts micro-batches instead of optimizer steps."""

from __future__ import annotations

from dsaccum_helpers.batch import KEYS
from dsaccum_helpers.effective import effective
from dsaccum_helpers.effective.owners import TRAINERS
from dsaccum_helpers.effective.world import whole
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.entry import Mismatch, needs_accumulation
from dsaccum_helpers.mismatches.layers import epoch_length
from dsaccum_helpers.mismatches.planned import planned_epochs
from dsaccum_helpers.mismatches.schedules import from_script

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from dsaccum_helpers.effective import Effective
    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job, Source
    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.setting import Setting

STEPS = KEYS[2]


class SchedulerUnit(Mismatch):
    """A schedule is planned in optimizer steps; stepped more often, or of another length, it does not fit the run."""

    code = "scheduler-unit"
    title = "The scheduler does not count optimizer steps"
    symptom = (
        "At best a UserWarning of torch. The learning rate falls N times too fast, then training stands still; or it "
        "never comes to its end."
    )
    cause = (
        "scheduler.step() stands in the loop over micro-batches, or the length of the schedule counts micro-batches."
    )
    consequence = (
        "Stepped in every micro-batch the learning rate is at its end after 1/N of the updates (after 2 of 8 measured, "
        "with 4 micro-batches each). Made for the micro-batches it has come 1/N of its way when the run ends."
    )
    remedy = "Pass lr_scheduler to deepspeed.initialize, which steps it at each update, and plan it in optimizer steps."
    learn = "notebooks/04_loop_mistakes.ipynb"
    script_owns_scheduler = True

    def check(self, job: Job) -> Iterable[Finding]:
        """What the named facts and the scripts say of it; else torch's warning, which is a note."""
        found = [*self._facts(job), *from_script(self, job)]
        yield from found or self._warned(job)

    def _warned(self, job: Job) -> Iterator[Finding]:
        """torch's warning beside a plain engine that accumulates; frameworks print it in right programs too."""
        steps = effective(job).steps
        if job.framework != "deepspeed" or job.programs or steps is None or steps.value < 2:
            return
        for event in job.said("step-before-scheduler")[:1]:
            message = (
                f"torch warns that the scheduler was stepped before the first update. With {STEPS} {steps.value} a "
                f"scheduler that is stepped in every micro-batch runs {steps.value} times too fast and warns so; one "
                "that was made for another optimizer than the engine's does too. The script would tell."
            )
            fix = Fix("Pass lr_scheduler to deepspeed.initialize beside its optimizer, and step neither in the loop.")
            yield self.found(message, [event.source], [fix], severity="note")

    def _facts(self, job: Job) -> Iterator[Finding]:
        """A schedule is right where its length is its steps per update times the updates."""
        numbers = effective(job)
        each = job.fact("scheduler.steps_per_optimizer_step")
        rate = each.value if each else 1
        updates, total = _updates(job, numbers), _total(job)
        if updates and total and rate:
            fewest, most, words = updates
            if rate * fewest * 0.9 - 1 <= total[0] <= rate * most * 1.12 + 1:
                return  # stepped often or not, the schedule ends with the run
            yield self._length(job, numbers, rate, total, (fewest, words))
        elif rate != 1:
            message = f"The scheduler is stepped {rate:g} times in each optimizer step{_named(rate, numbers)}"
            message += f": the learning rate has run through its schedule after 1/{rate:g} of the updates."
            fix = Fix("Step the scheduler once for each optimizer step.", {"scheduler.steps_per_optimizer_step": 1})
            yield self.found(message, _where(each and each.source), [fix])

    def _length(
        self, job: Job, numbers: Effective, rate: float, total: tuple[int, Source], updates: tuple[int, str]
    ) -> Finding:
        """The schedule is longer or shorter than the run."""
        planned, source = total
        count, words = updates
        steps = rate * count
        message = f"{words}; the scheduler is stepped {steps:g} times{_named(rate, numbers)}"
        message += f" and was made for {planned}. The learning rate "
        if planned < steps:
            message += f"is at its end after {planned / steps:.0%} of the updates."
        else:
            ratio = planned / steps
            whole_ratio = f", {round(ratio)} times as many{_named(round(ratio), numbers)}" if ratio >= 1.5 else ""
            message += f"only comes {steps / planned:.0%} of the way{whole_ratio}."
        fixes = []
        if rate != 1 and count * 0.9 <= planned <= count * 1.12:
            text = "Step the scheduler once for each optimizer step."
            fixes.append(Fix(text, {"scheduler.steps_per_optimizer_step": 1}))
        name = "scheduler.total_steps" if job.fact("scheduler.total_steps") else "scheduler.params.total_num_steps"
        length = max(round(steps), 1)
        fixes.append(Fix(f"Make the schedule for {length} steps.", {name: length}))
        each = job.fact("scheduler.steps_per_optimizer_step")
        ratio = max(planned / steps, steps / planned)
        severity = None if abs(ratio - round(ratio)) < 0.15 * round(ratio) and ratio >= 1.5 else "warning"
        return self.found(message, _where(source, each and each.source), fixes, severity=severity)

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


def _where(*sources: Source | None) -> list[Source]:
    return [source for source in sources if source and source.file]


def _named(rate: float, numbers: Effective) -> str:
    """Which number of the job this factor is."""
    steps = whole(numbers.steps and numbers.steps.value)
    world = whole(numbers.processes and numbers.processes.value)
    names = []
    if steps and steps > 1 and rate == steps:
        names.append("the accumulation steps: once for each micro-batch")
    if world and world > 1 and rate == world:
        names.append("the number of processes")
    if steps and world and steps > 1 and world > 1 and rate == steps * world:
        names.append("accumulation steps x processes")
    return f" ({rate:g} is {' or '.join(names)})" if names else ""


def _total(job: Job) -> tuple[int, Source] | None:
    """For how many steps the schedule was made, and where that is said."""
    fact = job.fact("scheduler.total_steps")
    if fact:
        return fact.value, fact.source
    config = job.config
    if config is not None and job.framework not in TRAINERS:
        planned = whole(config.get("scheduler", "params", "total_num_steps"))
        if planned and not isinstance(config.get("scheduler", "params", "total_num_steps"), str):
            return planned, config.source("scheduler", "params", "total_num_steps")
    return None


def _updates(job: Job, numbers: Effective) -> tuple[int, int, str] | None:
    """Optimizer steps of the whole run, at least and at most, and how they come about; None where not known."""
    known, epochs = epoch_length(job, numbers), planned_epochs(job)
    steps = whole(numbers.steps and numbers.steps.value)
    if known is None or not steps or not epochs:
        return None
    length = known[0]
    fewest, most = int(length * epochs) // steps, -(-length // steps) * -(-int(epochs) // 1)
    words = f"{length} micro-batches x {epochs:g} epoch{'s' * (epochs != 1)} / {steps} are {fewest} optimizer steps"
    return (fewest, max(fewest, most), words) if fewest else None
