"""The batch holds no whole number of generation groups (reinforcement learning trainers)."""

from __future__ import annotations

from collections import namedtuple

from dsaccum_helpers.effective import effective
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.entry import Mismatch
from dsaccum_helpers.mismatches.layers import complete, older, whole

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job

#: Arguments that only a trainer with groups of generations has; its default is then 8 of them.
GROUPED = ("steps_per_generation", "generation_batch_size", "num_iterations", "reward_weights", "scale_rewards")
DEFAULT = 8
#: TRL before the first version counts prompts; from the second on it counts the accumulation too.
COUNTS_GENERATIONS, COUNTS_STEPS = "0.15.0", "0.17.0"
GENERATIONS, PER_DEVICE = "generation.num_generations", "trainer.per_device_train_batch_size"

Group = namedtuple("Group", "micro world steps generations")
Group.__doc__ = "The factors of the generation batch, steps 1 where accumulation does not count, and the group size."


class GenerationBatch(Mismatch):
    """Since TRL 0.15 the per-device batch counts generations, not prompts."""

    code = "generation-batch"
    title = "Batch and number of generations do not divide"
    symptom = "ValueError: the global (or effective) train batch size must be evenly divisible by num_generations."
    cause = "per_device_train_batch_size counts generations, not prompts, and only training processes are counted."
    consequence = "Nothing is trained: the trainer refuses a batch that holds no whole number of groups."
    remedy = "Make per_device_train_batch_size x processes (x steps, from TRL 0.17) a multiple of num_generations."
    rank = 4

    def check(self, job: Job) -> Iterable[Finding]:
        """The trainer's own rule, by version; the log's factors where the arguments are not there."""
        if older(job, "trl", COUNTS_GENERATIONS):
            return
        logged = next(iter(job.said("generation-batch")), None)
        if logged is None and job.framework != "trl":
            return
        group = _group(job)
        if group is None or _fits(group):
            return
        product = group.micro * group.world * group.steps
        factors = f"{group.micro} per device x {group.world} process{'es' * (group.world != 1)}"
        factors += f" x {group.steps} accumulation steps" if _counts_steps(job) else ""
        message = (
            f"{factors} make {product} generations, and {product} is no multiple of num_generations {group.generations}"
            f" (remainder {product % group.generations})."
        )
        extra = whole(job.value("generation.processes"))
        if extra:
            message += f" The {extra} rank{'s' * (extra != 1)} set aside for generation are not counted."
        facts = [job.fact(name) for name in (GENERATIONS, PER_DEVICE, "processes")]
        where = [fact.source for fact in facts if fact and fact.source.file]
        yield self.found(message, [*where, *([logged.source] if logged else [])], _fixes(job, group))


def _counts_steps(job: Job) -> bool:
    """Do accumulation steps count? Yes from TRL 0.17; an unknown version is judged by its own log, else as recent."""
    for event in job.said("generation-batch"):
        factors = event.values.get("factors") or ()
        if job.version("trl") is None and len(factors) in (2, 3):
            return len(factors) == 3
    return older(job, "trl", COUNTS_STEPS) is not True


def _group(job: Job) -> Group | None:
    """The factors as the arguments say them; where these are not there, as the log prints them."""
    event = next(iter(job.said("generation-batch")), None)
    factors = [whole(factor) for factor in event.values.get("factors") or ()] if event else []
    logged_world, logged_micro, logged_steps = (*factors, None, None, None)[:3]
    default = DEFAULT if any(job.fact(f"trainer.{name}") for name in GROUPED) else None
    generations = whole(job.value(GENERATIONS)) or (event and whole(event.values.get("generations"))) or default
    micro = whole(job.value(PER_DEVICE)) or logged_micro
    micro = micro or (whole(job.value("train_micro_batch_size_per_gpu")) if event else None)
    numbers = effective(job)
    world = (whole(numbers.processes.value) if numbers.processes else None) or logged_world
    steps = 1
    if _counts_steps(job):
        known = _steps(job, micro, world) or logged_steps
        if known is None:
            return None
        steps = known
    if not (generations and micro and world) or generations < 2:
        return None
    return Group(micro, world, steps, generations)


def _steps(job: Job, micro: int | None, world: int | None) -> int | None:
    """How many micro-batches one generation fills."""
    batch, steps = whole(job.value("trainer.generation_batch_size")), whole(job.value("trainer.steps_per_generation"))
    if steps:
        return steps
    if batch and micro and world:
        # A remainder here is refused too; one step then stands for the batch as it is.
        return batch // (micro * world) or None
    fact = job.fact("trainer.gradient_accumulation_steps")
    if fact is None:
        return None if job.said("generation-batch") else 1
    return whole(fact.value)


def _fits(group: Group) -> bool:
    return group.micro * group.world * group.steps % group.generations == 0


def _fixes(job: Job, group: Group) -> Iterator[Fix]:
    """More per device, fewer generations, or more processes; each the nearest that fits."""
    micro, world, steps, generations = group
    accumulation = whole(job.value("trainer.gradient_accumulation_steps")) or (steps if _counts_steps(job) else 1)
    cleared = {name: None for name in ("trainer.generation_batch_size",) if job.fact(name)}
    unit = generations // _gcd(generations, world * steps)
    size = -(-micro // unit) * unit
    yield Fix(
        f"per_device_train_batch_size {size}: {size} x {world}{f' x {steps}' if steps > 1 else ''} = "
        f"{size * world * steps} generations are {size * world * steps // generations} prompts of {generations}.",
        {**complete(job, size, accumulation, world), PER_DEVICE: size, **cleared},
    )
    product = micro * world * steps
    fewer = [n for n in range(min(generations, product, 4096), 1, -1) if product % n == 0][:1]
    for number in fewer:
        yield Fix(f"num_generations {number}: it divides {product}.", {GENERATIONS: number, **_same(job, number)})
    unit = generations // _gcd(generations, micro * steps)
    more = -(-world // unit) * unit
    if more != world and more <= 8 * world:
        text = f"{more} training processes: {micro} x {more} is a multiple of {generations}."
        yield Fix(text, {**complete(job, micro, accumulation, more), "processes": more, **cleared})


def _same(job: Job, number: int) -> dict[str, int]:
    """The argument under its other name, where it is known under that too."""
    return {"trainer.num_generations": number} if job.fact("trainer.num_generations") else {}


def _gcd(left: int, right: int) -> int:
    while right:
        left, right = right, left % right
    return left
