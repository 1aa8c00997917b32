"""An interval is meant in micro-batches and counted in optimizer steps, or the reverse."""

from __future__ import annotations

from dsaccum_helpers.effective.world import whole
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.job import Fact
from dsaccum_helpers.mismatches import numerics
from dsaccum_helpers.mismatches.entry import Mismatch, needs_accumulation
from dsaccum_helpers.mismatches.planned import micro_batches, optimizer_steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job
    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.setting import Setting

#: Intervals of trainers; for each the arguments that switch it on with "steps", whether it is on where these are not
#: given, and the default, which nobody chose.
INTERVALS = {
    "trainer.logging_steps": (("trainer.logging_strategy",), True, 500),
    "trainer.save_steps": (("trainer.save_strategy",), True, 500),
    "trainer.eval_steps": (("trainer.eval_strategy", "trainer.evaluation_strategy"), False, None),
}
EVERY = 10
"""The interval of the runs, in what the script takes for steps."""


class StepUnitConfusion(Mismatch):
    """A step of DeepSpeed and of every trainer is an optimizer step: a window, not a micro-batch."""

    code = "step-unit-confusion"
    title = "An interval is counted in optimizer steps"
    symptom = "Reports, evaluations or checkpoints come N times less often than expected, or never."
    cause = (
        "steps_per_print, logging_steps, save_steps, eval_steps and the number in a checkpoint's name count optimizer "
        "steps; the loop counts micro-batches."
    )
    consequence = "Training itself is right; what is reported, saved or planned by that count is not."
    remedy = "Divide an interval that is meant in micro-batches by gradient_accumulation_steps."
    learn = "notebooks/04_loop_mistakes.ipynb"
    not_watched = (
        "The training is right; what an interval was meant in is known to the script alone, and `dsaccum check` "
        "reads it there."
    )
    severity = "note"

    def check(self, job: Job) -> Iterable[Finding]:
        """What the config and the arguments count."""
        yield from self._intervals(job)
        yield from self._length(job)
        yield from self._script(job)

    def _script(self, job: Job) -> Iterator[Finding]:
        """A counter of optimizer steps that is set to something times the accumulation steps."""
        if not job.programs:
            return
        from dsaccum_helpers.mismatches.windows import at, live, once, same_place

        for program in job.programs:
            counted = {e.info["name"] for e in program.events if e.kind == "count" and once(e.guards)}
            for event in same_place(live(program)):
                if event.kind == "scale-counter" and event.info["name"] in counted:
                    name = event.info["name"]
                    text = (
                        f"{name} goes up once in each optimizer step, and here it is set to a number times the "
                        f"accumulation steps ({at(event)}): the number in a checkpoint's name counts optimizer steps "
                        "already, so the run takes itself to be further than it is and stops early."
                    )
                    yield self.found(text, [event.source], [Fix(f"Set {name} to the number as it is.")])

    def _intervals(self, job: Job) -> Iterator[Finding]:
        """Intervals that never come, and would come if they counted micro-batches."""
        count, planned = numerics.steps(job), optimizer_steps(job)
        if count is None or count < 2 or planned is None:
            return
        total, words = planned
        batches = micro_batches(job) or total * count
        late = {name: fact for name, fact in _intervals_of(job) if total < fact.value <= batches}
        if not late:
            return
        said = " and ".join(f"{name.rpartition('.')[2]} {fact.value}" for name, fact in late.items())
        times = " and ".join(f"{batches // fact.value} times" for fact in late.values())
        text = (
            f"{said} count{'s' * (len(late) == 1)} optimizer steps, and {words}, so that step never comes. Counted in "
            f"micro-batches, {count} of which make a step, it would come {times}."
        )
        values = {name: min(total, max(1, fact.value // count)) for name, fact in late.items()}
        mended = " and ".join(f"{name.rpartition('.')[2]} {value}" for name, value in values.items())
        consequence = "What is to be done at that interval never happens in this run; the training itself is right."
        where = [fact.source for fact in late.values()]
        fix = Fix(f"{mended}, in optimizer steps.", values)
        yield self.found(text, where, [fix], severity="warning", consequence=consequence)

    def _length(self, job: Job) -> Iterator[Finding]:
        """``max_steps`` that is exactly the number of micro-batches."""
        count, asked, batches = numerics.steps(job), job.fact("trainer.max_steps"), micro_batches(job)
        if count is None or count < 2 or asked is None or batches is None or asked.value != batches:
            return
        text = (
            f"max_steps {asked.value} counts optimizer steps, and equals the micro-batches of the planned epochs: "
            f"{asked.value} steps of {count} micro-batches go through the data {count} times as often."
        )
        value = max(1, batches // count)
        fix = Fix(f"max_steps {value} for the planned epochs.", {"trainer.max_steps": value})
        yield self.found(text, [asked.source], [fix], consequence=f"Training takes {count} times as long.")

    def needs(self, setting: Setting) -> str | None:
        """The interval must come once at least, in the unit that was meant."""
        if setting.micro_batches < EVERY:
            steps = -(-EVERY // setting.gradient_accumulation_steps)
            return (
                f"The run reports every {EVERY} micro-batches, and this one has {setting.micro_batches}. "
                f"Smallest fix: optimizer_steps {steps}."
            )
        return needs_accumulation(setting)

    @staticmethod
    def loop(run: Any) -> None:
        """Meant: a report for every 10 micro-batches. But global_steps counts windows."""
        for inputs, targets in run.loader:
            loss = run.criterion(run.engine(inputs), targets)
            run.engine.backward(loss)
            updates = run.engine.is_gradient_accumulation_boundary()
            run.engine.step()
            if updates and run.engine.global_steps % 10 == 0:
                run.report(loss)

    @staticmethod
    def mended_loop(run: Any) -> None:
        """Count what is meant."""
        for i, (inputs, targets) in enumerate(run.loader, start=1):
            loss = run.criterion(run.engine(inputs), targets)
            run.engine.backward(loss)
            run.engine.step()
            if i % 10 == 0:
                run.report(loss)

    def predict(self, setting: Setting) -> Prediction:
        """The right training, with a report for every tenth optimizer step."""
        from dataclasses import replace

        return replace(self._prediction(setting), reports=setting.optimizer_steps // EVERY)

    def mended_prediction(self, setting: Setting, right: Prediction) -> Prediction:
        """The right training, with a report for every tenth micro-batch."""
        from dataclasses import replace

        return replace(right, reports=setting.micro_batches // EVERY)


def _intervals_of(job: Job) -> Iterator[tuple[str, Fact]]:
    """The intervals that somebody chose, as whole numbers."""
    config = job.config
    if config is not None and (interval := whole(config.get("steps_per_print"))):
        yield "steps_per_print", Fact(interval, config.source("steps_per_print"))
    for name, (switches, on, default) in INTERVALS.items():
        fact = job.fact(name)
        said = next((job.value(switch) for switch in switches if job.fact(switch)), "steps" if on else "no")
        chosen = whole(fact.value) if fact is not None else None
        # A default that stands beside its switch is meant; one that a dump of all arguments shows is not.
        meant = chosen != default or any(job.fact(switch) for switch in switches)
        if fact is not None and chosen is not None and meant and said == "steps":
            yield name, Fact(chosen, fact.source)
