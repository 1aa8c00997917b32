"""An "auto" micro-batch, and no loader that has a batch size to take it from."""

from __future__ import annotations

from dsaccum_helpers.batch import KEYS
from dsaccum_helpers.effective import effective
from dsaccum_helpers.effective.owners import FILLS_ONE
from dsaccum_helpers.effective.world import whole
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.entry import Mismatch
from dsaccum_helpers.mismatches.framework_runs import AUTO, Shown, accelerate, lightning
from dsaccum_helpers.mismatches.layers import complete

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job, Source

MICRO = KEYS[1]


class AutoWithoutLoaderBatch(Mismatch):
    """Accelerate and Lightning read the micro-batch off the loader; some loaders have none."""

    code = "auto-without-loader-batch"
    title = "The micro-batch is to come from a loader that has no batch size"
    symptom = (
        "ValueError of accelerate.prepare() about a dataloader with a `batch_size` attribute, or no message at all."
    )
    cause = "With batch_sampler, batch_size=None or an IterableDataset that makes its own batches, batch_size is None."
    consequence = "Accelerate stops in prepare(); Lightning stops or tells DeepSpeed a micro-batch of 1."
    remedy = "Write train_micro_batch_size_per_gpu as an integer into the DeepSpeed config."
    learn = "notebooks/05_frameworks.ipynb"
    not_watched = "The framework refuses before there is an engine to watch: `dsaccum check` says it."
    silences = ("auto-without-trainer", "batch-value-type", "loader-batch-differs")
    rank = 4
    programs = (
        Shown(
            "the loader is not handed to prepare()",
            accelerate(AUTO, loader="not prepared"),
            accelerate({**AUTO, MICRO: 4}, loader="not prepared"),
            "`accelerate.prepare()` requires you to pass at least one of training or evaluation dataloaders",
        ),
        Shown(
            "a loader with a batch_sampler",
            accelerate(AUTO, loader="batch_sampler"),
            accelerate({**AUTO, MICRO: 4}, loader="batch_sampler"),
            "At least one of the dataloaders passed to `accelerate.prepare()` has `None` as batch size.",
        ),
        Shown(
            "a loader with batch_size=None (Lightning's check for a GPU set aside)",
            lightning({}, cuda_check=False, loader="no batch size"),
            lightning({MICRO: 4}, cuda_check=False, loader="no batch size", loss="multiplied"),
            "'NoneType' object has no attribute 'batch_size'",
        ),
    )

    def check(self, job: Job) -> Iterable[Finding]:
        """The loader says that it has none, or Accelerate asks for one."""
        config = job.config if job.config and job.config.kind != "log" else None
        if config and whole(config.get(MICRO)):
            return
        if job.framework == "lightning":
            yield from self._lightning(job)
            return
        sizeless, events = job.value("loader.has_batch_size") is False, job.said("loader-batch-needed")
        asked = config.get(MICRO) if config else "auto"
        mended = job.value("loader.has_batch_size") is True or bool(job.value("loader.batch_size") and not sizeless)
        if job.framework == "accelerate" and asked == "auto" and (sizeless or (events and not mended)):
            fact = job.fact("loader.has_batch_size")
            where: list[Source] = [config.source(MICRO)] if config and config.has(MICRO) else []
            where += [fact.source] if fact and sizeless else []
            message = f'{MICRO} is "auto", which Accelerate takes from loader.batch_size; '
            message += "the loader has none (batch_sampler, batch_size=None or no loader in prepare())."
            yield self.found(message, [*where, *(event.source for event in events)], _fixes(job))
        elif job.framework not in FILLS_ONE and events and not mended and config is None:
            message = f"accelerate.prepare() found no loader with a batch size to fill in {MICRO}."
            yield self.found(message, [events[0].source], _fixes(job))

    def _lightning(self, job: Job) -> Iterator[Finding]:
        """Lightning reads batch_sampler.batch_size, which is missing for batch_size=None."""
        if job.value("loader.has_batch_size") is not False:
            return
        fact, size = job.fact("loader.has_batch_size"), whole(job.value("loader.batch_size"))
        message = f"The loader has no batch size, and the config no {MICRO}: Lightning cannot read one. "
        message += "Older versions tell DeepSpeed 1, newer ones stop with an AttributeError"
        message += f"; {size} samples are read for each 1 that DeepSpeed counts." if size and size > 1 else "."
        yield self.found(message, [fact.source] if fact else [], _fixes(job))


def _fixes(job: Job) -> Iterator[Fix]:
    """An integer in the config, or a loader that has a batch size."""
    numbers = effective(job)
    size = whole(job.value("loader.batch_size"))
    steps, train = whole(numbers.steps and numbers.steps.value), whole(job.value("train_batch_size"))
    if size is None and train and steps and numbers.replicas and train % (steps * numbers.replicas) == 0:
        size = train // (steps * numbers.replicas)
    if size:
        settings = complete(job, size, steps, numbers.replicas)
        yield Fix(f"Write {MICRO} {size} into the DeepSpeed config.", settings)
    else:
        yield Fix(f"Write {MICRO} as an integer into the DeepSpeed config: the samples of one micro-batch.")
    yield Fix("Or give the loader a batch size: DataLoader(..., batch_size=N).", {"loader.has_batch_size": True})
