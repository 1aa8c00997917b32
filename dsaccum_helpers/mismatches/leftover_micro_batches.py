"""The micro-batches of an epoch are not a multiple of the accumulation steps."""

from __future__ import annotations

from dsaccum_helpers.effective import effective
from dsaccum_helpers.effective.owners import TRAINERS
from dsaccum_helpers.effective.versions import older
from dsaccum_helpers.effective.world import whole
from dsaccum_helpers.mismatches.entry import Mismatch, needs_accumulation
from dsaccum_helpers.mismatches.layers import counted, epoch_length, whole_windows
from dsaccum_helpers.mismatches.planned import FLUSHES, planned_epochs

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job
    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.setting import Setting


#: The Trainer divides a short last window by its own length from this version on.
WEIGHTS_SHORT_WINDOWS = "4.46.0"


_NONE = "No update is made at all, without a message."
_SHORT = "The last update of each epoch is made of fewer micro-batches and is too small by as much (k of N: k/N of it)."


class LeftoverMicroBatches(Mismatch):
    """The window straddles the end of the epoch; what is left at the very end is never applied."""

    code = "leftover-micro-batches"
    title = "Micro-batches are left over at the end of an epoch"
    symptom = "No message. Fewer optimizer steps than planned, and the learning rate never reaches its end."
    cause = (
        "The script plans ceil(len(loader) / accumulation steps) updates an epoch; the engine carries the rest over."
    )
    consequence = "Updates mix two epochs, the last micro-batches are lost, and the schedule is longer than the run."
    remedy = "Make len(loader) a multiple of gradient_accumulation_steps (drop_last on the window, or pad the data)."
    learn = "notebooks/04_loop_mistakes.ipynb"
    severity = "warning"

    def check(self, job: Job) -> Iterable[Finding]:
        """An epoch that is no whole number of windows, in a framework that does not weight the short one rightly."""
        numbers = effective(job)
        steps, known = whole(numbers.steps and numbers.steps.value), epoch_length(job, numbers)
        if not steps or steps == 1 or known is None or not known[0] % steps:
            return
        if job.framework in TRAINERS and not older(job, "transformers", WEIGHTS_SHORT_WINDOWS):
            return
        length, words = known
        rest, epochs = length % steps, planned_epochs(job)
        none = length < steps and (epochs or 0) * length < steps and epochs is not None and job.framework not in FLUSHES
        message = f"{words[0].upper()}{words[1:]}; windows of {steps} leave {rest} over. "
        facts = [job.fact("loader.length") or job.fact("dataset.length"), numbers.steps]
        where = [fact.source for fact in facts if fact and fact.source and fact.source.file]
        yield self.found(
            message + _fate(job, length, steps, epochs, none),
            where,
            whole_windows(job, numbers, length, steps),
            severity="error" if none else None,
            consequence=_NONE if none else _SHORT if job.framework in FLUSHES else None,
        )

    def needs(self, setting: Setting) -> str | None:
        """Nothing can be left over of a window of one micro-batch."""
        return needs_accumulation(setting)

    def epochs(self, setting: Setting) -> tuple[int, int]:
        """Epochs of one window and a half: the script plans two updates in each."""
        count = setting.gradient_accumulation_steps
        return -(-setting.optimizer_steps // 2), count + count // 2

    def predict(self, setting: Setting) -> Prediction:
        """The engine makes one update for each full window, across epochs."""
        epochs, length = self.epochs(setting)
        return self._prediction(setting, optimizer_steps=epochs * length // setting.gradient_accumulation_steps)


def _fate(job: Job, length: int, steps: int, epochs: float | None, none: bool) -> str:
    """What becomes of the micro-batches that are left over."""
    rest = length % steps
    if none:
        return f"{epochs:g} x {counted(length, 'micro-batch')} hold no full window of {steps}: the run makes 0 updates."
    if job.framework in FLUSHES:
        return (
            f"The short window is an update of its own: {counted(rest, 'micro-batch')} divided by {steps}, not {rest}."
        )
    if length < steps:
        return f"An epoch makes no update of its own; windows of {steps} straddle epochs."
    if epochs == 1:
        return f"The last {rest} are never applied."
    text = f"They stay in the gradient buffers, weighted 1/{steps} each, and join the next epoch's first window"
    last = int(epochs) * length % steps if epochs else None
    if last:
        return f"{text}; after {int(epochs or 0)} epochs {last} are never applied."
    return f"{text}; updates straddle epochs." if last == 0 else f"{text}; those of the last epoch are never applied."
