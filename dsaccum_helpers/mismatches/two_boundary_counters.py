"""The engine and Accelerate count the micro-batches of a window differently."""

from __future__ import annotations

from dsaccum_helpers.effective import effective
from dsaccum_helpers.effective.owners import TRAINERS, uses_deepspeed
from dsaccum_helpers.effective.versions import older
from dsaccum_helpers.effective.world import whole
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.entry import Mismatch
from dsaccum_helpers.mismatches.layers import counted, epoch_length, whole_windows
from dsaccum_helpers.mismatches.planned import planned_epochs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job

#: The first Accelerate that hands its own boundary to the engine (PR 3630).
ONE_COUNTER = "1.8.0"


class TwoBoundaryCounters(Mismatch):
    """Old Accelerate starts a new window at the end of the loader, the engine keeps counting."""

    code = "two-boundary-counters"
    title = "The engine and Accelerate count window boundaries differently"
    symptom = "No message. sync_gradients is true where the engine does not update, and the reverse."
    cause = "Accelerate before 1.8.0 begins a new window with each epoch; the engine counts on across epochs."
    consequence = (
        "From the second epoch on the scheduler, the logs and checkpoints move at other times than the weights."
    )
    remedy = "Accelerate 1.8.0 or newer, or a number of micro-batches that is a multiple of the accumulation steps."
    learn = "notebooks/05_frameworks.ipynb"
    silences = ("leftover-micro-batches",)
    rank = 4
    not_reproduced = (
        "It needs an Accelerate before 1.8.0; the one that is installed hands its boundary to the engine, so that both "
        "count alike."
    )

    def check(self, job: Job) -> Iterable[Finding]:
        """A version with two counters, and an epoch that is no whole number of windows."""
        under = job.framework == "accelerate" or job.framework in TRAINERS
        if not under or older(job, "accelerate", ONE_COUNTER) is not True:
            return
        numbers = effective(job)
        steps, known = whole(numbers.steps and numbers.steps.value), epoch_length(job, numbers)
        if not steps or steps == 1 or known is None or uses_deepspeed(job) is False or planned_epochs(job) == 1:
            return
        length, words = known
        rest = length % steps
        if not rest:
            return
        message = (
            f"{words[0].upper()}{words[1:]}, in windows of {steps}: {rest} are left. "
            f"Accelerate {job.version('accelerate')} starts a new window with the next epoch, the engine counts on, "
            f"so the two are {counted(rest, 'micro-batch')} apart."
        )
        fact = job.fact("loader.length") or job.fact("dataset.length")
        where = [fact.source] if fact else []
        where += [numbers.steps.source] if numbers.steps and numbers.steps.source else []
        fixes = [Fix("Install accelerate>=1.8.0, where the engine follows Accelerate's counter.")]
        yield self.found(message, where, [*fixes, *whole_windows(job, numbers, length, steps)])
