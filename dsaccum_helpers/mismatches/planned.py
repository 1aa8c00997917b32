"""How many optimizer steps the whole run will have (pure)."""

from __future__ import annotations

from dsaccum_helpers.effective import effective
from dsaccum_helpers.effective.owners import TRAINERS
from dsaccum_helpers.effective.world import whole
from dsaccum_helpers.mismatches import numerics
from dsaccum_helpers.mismatches.layers import epoch_length

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from dsaccum_helpers.job import Job

#: Trainers that step with the micro-batches left at the end of an epoch, so that a short window is a step too.
FLUSHES = (*TRAINERS, "accelerate")


def planned_epochs(job: Job) -> float | None:
    """How often the run goes through the data, None where nobody says a number."""
    names = ("epochs", "trainer.num_train_epochs", "trainer.max_epochs")
    epochs = next((fact.value for name in names if (fact := job.fact(name))), None)
    return epochs if isinstance(epochs, int | float) and not isinstance(epochs, bool) and epochs > 0 else None


def micro_batches(job: Job) -> int | None:
    """Micro-batches that one process reads in the whole run, None where that cannot be known."""
    known, epochs = epoch_length(job, effective(job)), planned_epochs(job)
    return int(known[0] * epochs) if known and epochs else None


def optimizer_steps(job: Job) -> tuple[int, str] | None:
    """Optimizer steps of the whole run, and how that is known in words."""
    for event in job.events:
        total = event.values.get("optimization_steps") if event.kind == "training-summary" else None
        if isinstance(total, int):
            return total, f"the log counts {total} optimizer steps"
    asked = whole(job.value("trainer.max_steps"))
    if asked:
        return asked, f"max_steps is {asked}"
    total, count = micro_batches(job), numerics.steps(job)
    if total is None or count is None:
        return None
    length = epoch_length(job, effective(job))
    each = length[0] if length else 0
    steps = total // count
    if job.framework in FLUSHES and each:
        steps = int(-(-each // count) * (total / each))
    return steps, f"{total} micro-batches in windows of {count} are {steps} optimizer steps"
