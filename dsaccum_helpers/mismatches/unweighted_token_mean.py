"""The mean of per-micro-batch means over unequal token counts."""

from __future__ import annotations

from dsaccum_helpers.effective import effective
from dsaccum_helpers.effective.owners import TRAINERS
from dsaccum_helpers.effective.versions import older
from dsaccum_helpers.effective.world import whole
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.entry import Mismatch, needs_accumulation
from dsaccum_helpers.mismatches.layers import counted
from dsaccum_helpers.mismatches.windows import count_divisions, live

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job
    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.setting import Setting

ACROSS = "trainer.average_tokens_across_devices"
#: From these versions on the Trainer counts tokens over the window, and by default over all devices too.
COUNTS_WINDOW, COUNTS_DEVICES = "4.46.0", "4.54.0"


class UnweightedTokenMean(Mismatch):
    """A micro-batch of few tokens weighs as much as one of many."""

    code = "unweighted-token-mean"
    title = "Micro-batches of unequal token counts are averaged as if they were equal"
    symptom = "No message. The loss with accumulation differs from that of the same batch at once."
    cause = "Each micro-batch takes the mean over its own label tokens, and the engine averages these means."
    consequence = (
        "Tokens of short sequences weigh more: in a constructed case the first gradient was off by 80 % on one process "
        "and by 179 % on two."
    )
    remedy = "Sum the token losses and divide by the tokens of the whole window, over all ranks."
    learn = "notebooks/04_loop_mistakes.ipynb"

    def check(self, job: Job) -> Iterable[Finding]:
        """The data have unequal token counts, and more than one mean is averaged."""
        equal = job.fact("dataset.equal_token_counts")
        if equal is None or equal.value is not False or _mean_of_window(job):
            return
        numbers = effective(job)
        steps = whole(numbers.steps and numbers.steps.value) or 1
        world = numbers.replicas or whole(numbers.processes and numbers.processes.value) or 1
        where = [equal.source]
        if job.framework in TRAINERS:
            yield from self._trainer(job, steps, world)
        elif steps * world > 1:
            means = counted(steps, "micro-batch") + (f" x {world} ranks" if world > 1 else "")
            message = (
                f"Each of {means} takes the mean over its own label tokens, and these means are averaged as equals."
            )
            fixes = [
                Fix(
                    "Sum the token losses, divide by the label tokens of the whole window over all ranks, and multiply "
                    "by the number of ranks; engine.backward(loss, scale_wrt_gas=False)."
                ),
                Fix(
                    "Or pack the sequences, so that every micro-batch has the same number of label tokens.",
                    {"dataset.equal_token_counts": True},
                ),
            ]
            yield self.found(message, where, fixes)

    def _trainer(self, job: Job, steps: int, world: int) -> Iterator[Finding]:
        """The Trainer weights tokens by itself, as far as its version and its argument let it."""
        across = job.fact(ACROSS)
        where = [across.source] if across and across.source.file else []
        if older(job, "transformers", COUNTS_WINDOW):
            if steps * world > 1:
                message = f"transformers {job.version('transformers')} averages {steps} x {world} means as equals; "
                message += f"from {COUNTS_WINDOW} on tokens are counted over the window."
                yield self.found(message, where, [Fix("Install transformers>=4.54.")])
            return
        off = across.value is False if across else older(job, "transformers", COUNTS_DEVICES) is True
        if world > 1 and off:
            said = "is false" if across else f"is false by default before transformers {COUNTS_DEVICES}"
            message = (
                f"average_tokens_across_devices {said}: inside a rank the tokens are counted over the window, but the "
                f"means of the {world} ranks are averaged as equals."
            )
            yield self.found(message, where, [Fix("average_tokens_across_devices true.", {ACROSS: True})])

    def needs(self, setting: Setting) -> str | None:
        """Micro-batches of half and of one and a half times the size; in the run, samples stand for tokens."""
        size = setting.train_micro_batch_size_per_gpu
        if size % 2:
            return (
                f"The run reads micro-batches of half the size and of one and a half times the size, and {size} has "
                f"no half. Smallest fix: train_micro_batch_size_per_gpu {size + 1}."
            )
        return needs_accumulation(setting)

    def loader_sizes(self, setting: Setting) -> tuple[int, ...]:
        """Small and large in turn, as a loader packs them that fills micro-batches by tokens: a window is complete."""
        size, count = setting.train_micro_batch_size_per_gpu, setting.gradient_accumulation_steps
        return (size // 2, 3 * size // 2) * (count // 2) + (size,) * (count % 2)

    mended_sizes = loader_sizes

    @staticmethod
    def loop(run: Any) -> None:
        """Each loss is a mean over as many samples as this micro-batch happens to have."""
        for inputs, targets in run.loader:
            loss = run.criterion(run.engine(inputs), targets)
            run.engine.backward(loss)
            run.engine.step()

    @staticmethod
    def mended_loop(run: Any) -> None:
        """Divide the sum of each micro-batch by the samples of the whole window, and let the engine divide nothing."""
        micro_batch, count = run.engine.train_micro_batch_size_per_gpu(), run.engine.gradient_accumulation_steps()
        for inputs, targets in run.loader:
            total = run.criterion(run.engine(inputs), targets) * len(inputs)
            run.engine.backward(total / (micro_batch * count), scale_wrt_gas=False)
            run.engine.step()

    def mended_prediction(self, setting: Setting, right: Prediction) -> Prediction:
        """Each mean weighs as much as its samples."""
        from dataclasses import replace

        window = setting.train_micro_batch_size_per_gpu * setting.gradient_accumulation_steps
        return replace(right, weights=tuple(size / window for size in self.loader_sizes(setting)))


def _mean_of_window(job: Job) -> bool:
    """Does a script divide every loss by a total of the window, and tell the engine not to scale?"""
    backwards = [event for program in job.programs for event in live(program) if event.kind == "backward"]
    return bool(backwards) and all(
        not event.info["scaled"] and any(kind == "total" for kind, _ in count_divisions(event, None))
        for event in backwards
    )
