"""The loader's batch is not the micro-batch of the config."""

from __future__ import annotations

from dsaccum_helpers.batch import KEYS
from dsaccum_helpers.effective import effective
from dsaccum_helpers.effective.owners import TRAINERS
from dsaccum_helpers.effective.world import whole
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.entry import Mismatch
from dsaccum_helpers.mismatches.layers import complete, counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dsaccum_helpers.effective import Effective
    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job
    from dsaccum_helpers.setting import Setting

MICRO = KEYS[1]


class LoaderBatchDiffers(Mismatch):
    """The engine never looks at the size of what it is fed."""

    code = "loader-batch-differs"
    title = "The loader's batch is not the micro-batch of the config"
    symptom = "No message. Epochs have more or fewer steps than planned; throughput and sample counts are off."
    cause = "DataLoader(batch_size=...) was set by hand, and train_micro_batch_size_per_gpu was not."
    consequence = (
        "Every update averages over another number of samples than the config claims: twice, with twice the batch."
    )
    remedy = "DataLoader(batch_size=engine.train_micro_batch_size_per_gpu())."
    learn = "notebooks/04_loop_mistakes.ipynb"

    def check(self, job: Job) -> Iterable[Finding]:
        """The loader's batch size against the engine's; else the loader's length against that of the data."""
        numbers = effective(job)
        micro = whole(numbers.micro and numbers.micro.value)
        if job.framework in TRAINERS or numbers.error or micro is None:
            return  # a Trainer makes its loader itself; numbers that are refused have a finding of their own
        batch = whole(job.value("loader.batch_size"))
        if batch and job.value("accelerator.split_batches") is True and numbers.replicas:
            batch //= numbers.replicas
        if batch and batch != micro:
            if whole(job.value(MICRO)) or numbers.processes:
                yield self._size(job, numbers, micro, batch)
        else:
            yield from self._length(job, numbers, micro)

    def _size(self, job: Job, numbers: Effective, micro: int, batch: int) -> Finding:
        """Samples are counted that were not read, or read and not counted."""
        steps, replicas = whole(numbers.steps and numbers.steps.value), numbers.replicas
        message = f"The config says {counted(micro, 'sample')} per micro-batch and rank, the loader gives {batch}"
        if steps and replicas and (numbers.processes or numbers.parallel):
            real, claimed = batch * steps * replicas, micro * steps * replicas
            message += f": each update averages {batch} x {steps} x {replicas} = {real} samples"
            message += f", while DeepSpeed counts {claimed}"
        message += f". Throughput and sample counts are off by {micro}/{batch}."
        loader = job.fact("loader.batch_size")
        where = [loader.source] if loader and loader.source.file else []
        where += [numbers.micro.source] if numbers.micro and numbers.micro.source else []
        given, same = whole(job.value("loader.batch_size")), _length_of(job, numbers, batch, keep=True)
        fixes = [
            Fix(
                f"DataLoader(batch_size=engine.train_micro_batch_size_per_gpu()), which is {micro}.",
                {"loader.batch_size": micro * (given // batch if given else 1), **_length_of(job, numbers, micro)},
            ),
            Fix(
                f"Write {MICRO} {batch} into the config: the loader is right.",
                complete(job, batch, steps, replicas if numbers.processes else None) | same,
            ),
        ]
        train = micro * (steps or 0) * (replicas or 0)
        if train and numbers.processes and replicas and train % (batch * replicas) == 0 and train // (batch * replicas):
            count = train // (batch * replicas)
            if count != steps:
                text = f"Keep {train} samples per update: {batch} x {count} accumulation steps x {replicas} ranks."
                fixes.append(Fix(text, complete(job, batch, count, replicas) | same))
        return self.found(message, where, fixes)

    def _length(self, job: Job, numbers: Effective, micro: int) -> Iterator[Finding]:
        """A loader whose length is off by a whole factor gives other batches, or the data are split twice or never."""
        size, length = whole(job.value("dataset.length")), whole(job.value("loader.length"))
        replicas = numbers.replicas
        if not (size and length and replicas and numbers.processes):
            return
        right = -(-size // (micro * replicas))
        factor = next((n for n in _factors(right, length, replicas) if _near(right, length, n)), None)
        if factor is None:
            return
        message = f"{size} samples over {counted(replicas, 'rank')} at {micro} each are {counted(right, 'micro-batch')}"
        message += f", the loader has {length}"
        if length > right:
            message += f", {factor} times as many: "
            message += (
                "every rank reads all the data (no DistributedSampler)."
                if factor == replicas
                else f"it gives smaller batches than the {micro} of the config, or reads the data {factor} times."
            )
        else:
            message += f", {factor} times fewer: it gives {factor * micro} samples at once"
            message += ", or the data are split twice." if factor == replicas else ", or not all the data."
        facts = [job.fact("loader.length"), job.fact("dataset.length"), numbers.micro]
        where = [fact.source for fact in facts if fact and fact.source and fact.source.file]
        yield self.found(
            message, where, [Fix(f"A loader of {counted(right, 'micro-batch')} a rank.", {"loader.length": right})]
        )

    def loader_batch_size(self, setting: Setting) -> int:
        """Twice the micro-batch that the config promises."""
        return 2 * setting.train_micro_batch_size_per_gpu


def _length_of(job: Job, numbers: Effective, size: int, keep: bool = False) -> dict[str, int | None]:
    """The loader's length that belongs to this batch size; no longer known where the data's is not."""
    data = whole(job.value("dataset.length"))
    if job.fact("loader.length") is None:
        return {}
    if data and numbers.replicas:
        return {"loader.length": -(-data // (size * numbers.replicas))}
    return {} if keep else {"loader.length": None}


def _factors(right: int, length: int, replicas: int) -> list[int]:
    """The whole factors that can lie between two lengths, that of the ranks first."""
    near = max(right, length) // min(right, length)
    return [n for n in dict.fromkeys((replicas, near, near + 1)) if n > 1]


def _near(right: int, length: int, factor: int) -> bool:
    """Is one length the other times (or through) the factor, but for rounding to whole batches?"""
    small, large = sorted((right, length))
    if small < 2 or small == large:
        return False
    return factor * (small - 1) < large <= factor * small or (small > 8 and abs(large - factor * small) <= factor)
