"""What the entries about framework layers and loaders share: versions, complete settings, the length of an epoch."""

from __future__ import annotations

from dsaccum_helpers.batch import KEYS
from dsaccum_helpers.effective.owners import ACCUMULATION, COUNTS, FILLS_ONE, LIGHTNING, PER_DEVICE, TRAINERS
from dsaccum_helpers.effective.world import whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dsaccum_helpers.effective import Effective
    from dsaccum_helpers.findings import Fix
    from dsaccum_helpers.job import Job


def counted(number: int, noun: str) -> str:
    """1 window, 2 windows, 2 batches."""
    return f"{number} {noun}" + ("" if number == 1 else "es" if noun.endswith(("h", "s")) else "s")


def complete(job: Job, micro: int | None, steps: int | None, replicas: int | None) -> dict[str, Any]:
    """All batch numbers of a setting, under the names of every owner, as a Fix needs them.

    A number that is not known is left to be filled in: "auto" where a framework does that, else removed.
    """
    if job.framework == "lightning":
        return {KEYS[0]: None, KEYS[1]: micro, KEYS[2]: None, **under_owners(job, micro, steps)}
    blank = "auto" if job.framework in FILLS_ONE else None
    train = micro * steps * replicas if micro and steps and replicas else None
    numbers = zip(KEYS, (train or blank, micro or blank, steps or blank), strict=True)
    return {**dict(numbers), **under_owners(job, micro, steps)}


def under_owners(job: Job, micro: int | None, steps: int | None) -> dict[str, int]:
    """The numbers that are known, under the names by which a trainer or Accelerate has them."""
    if job.framework == "lightning":
        said = {LIGHTNING: steps}
    else:
        said = {PER_DEVICE: micro, ACCUMULATION: steps} if job.framework in TRAINERS else {}
        said |= dict.fromkeys(accumulation_owners(job), steps)
    return {name: number for name, number in said.items() if number is not None}


def accumulation_owners(job: Job) -> list[str]:
    """The facts beside the DeepSpeed config that say an accumulation count in Accelerate."""
    names = (*COUNTS, ACCUMULATION) if job.framework == "accelerate" else COUNTS
    return [name for name in names if job.fact(name)]


def epoch_length(job: Job, numbers: Effective) -> tuple[int, str] | None:
    """Micro-batches of one rank in one epoch, and how that is known in words; None where it is not."""
    length = job.value("loader.length")
    if length is not None:
        return length, f"the loader gives {counted(length, 'micro-batch')} an epoch"
    size, batch = job.value("dataset.length"), whole(job.value("loader.batch_size"))
    batch = batch or (numbers.micro and whole(numbers.micro.value))
    if size is None or batch is None or numbers.processes is None or not numbers.replicas:
        return None
    share = -(-size // numbers.replicas)  # DistributedSampler fills up the last rank
    drop = bool(job.value("dataset.drop_last"))
    length = share // batch if drop else -(-share // batch)
    words = f"{size} samples over {counted(numbers.replicas, 'rank')} are {share} each, which makes "
    words += f"{counted(length, 'micro-batch')} of {batch}"
    return length, words + (" an epoch, the incomplete last one dropped" if drop else " an epoch")


def near_divisor(number: int, near: int) -> int | None:
    """The divisor of ``number`` above 1 that is nearest to ``near``, between its half and its double."""
    for distance in range(1, min(near, 4096) + 1):
        for divisor in (near - distance, near + distance):
            if 1 < divisor <= number and near <= 2 * divisor and number % divisor == 0:
                return divisor
    return None


def whole_windows(job: Job, numbers: Effective, length: int, steps: int) -> list[Fix]:
    """Fixes that make an epoch a whole number of windows: a shorter or longer epoch, or another count."""
    from dsaccum_helpers.findings import Fix

    fixes = []
    if length > steps:
        short = length - length % steps
        text = f"Leave out the last {counted(length % steps, 'micro-batch')} of each epoch: {short} are"
        fixes.append(Fix(f"{text} {counted(short // steps, 'window')} of {steps}.", {"loader.length": short}))
    near = near_divisor(length, steps)
    if near:
        micro = numbers.micro and whole(numbers.micro.value)
        text = f"Accumulate {near} micro-batches: {length} are {counted(length // near, 'window')} of {near}."
        fixes.append(Fix(text, complete(job, micro or None, near, numbers.replicas)))
    if length < steps:
        text = f"Give the loader at least {steps} micro-batches an epoch."
        fixes.append(Fix(text, {"loader.length": steps}))
    return fixes
