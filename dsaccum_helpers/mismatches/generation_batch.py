"""The batch holds no whole number of generation groups (reinforcement learning trainers)."""

from __future__ import annotations

from collections import namedtuple
from math import gcd

from dsaccum_helpers.effective import effective
from dsaccum_helpers.effective.versions import older
from dsaccum_helpers.effective.world import whole
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.job import by_place
from dsaccum_helpers.mismatches.entry import Mismatch
from dsaccum_helpers.mismatches.layers import complete, counted

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Event, Job

#: Arguments that only a trainer with groups of generations has; its default is then 8 of them.
GROUPED = ("steps_per_generation", "generation_batch_size", "num_iterations", "reward_weights", "scale_rewards")
DEFAULT = 8
#: TRL before the first version counts prompts; from the second on it counts the accumulation too.
COUNTS_GENERATIONS, COUNTS_STEPS = "0.15.0", "0.17.0"
GENERATIONS, PER_DEVICE = "generation.num_generations", "trainer.per_device_train_batch_size"
BATCH, EVALUATION = "trainer.generation_batch_size", "trainer.per_device_eval_batch_size"

Group = namedtuple("Group", "micro world steps generations batch")
Group.__doc__ = """The factors of the generation batch, steps 1 where accumulation does not count, and the group size.

``batch``: generation_batch_size where it is given, else the product of the factors.
"""


class GenerationBatch(Mismatch):
    """Since TRL 0.15 the per-device batch counts generations, not prompts."""

    code = "generation-batch"
    title = "Batch and number of generations do not divide"
    symptom = "ValueError: the global (or effective) train batch size must be evenly divisible by num_generations."
    cause = "per_device_train_batch_size counts generations, not prompts, and only training processes are counted."
    consequence = "Nothing is trained: the trainer refuses a batch that holds no whole number of groups."
    remedy = "Make per_device_train_batch_size x processes (x steps, from TRL 0.17) a multiple of num_generations."
    learn = "notebooks/05_frameworks.ipynb"
    rank = 4
    not_reproduced = "It needs TRL, which this project does not install; what TRL refuses is arithmetic alone."

    def check(self, job: Job) -> Iterable[Finding]:
        """The trainer's own rule, by version; the log's factors where the arguments are not there."""
        if older(job, "trl", COUNTS_GENERATIONS) or (job.framework != "trl" and not job.said("generation-batch")):
            return
        logged, group = _logged(job), _group(job)
        if group is None or _fits(group):
            yield from self._evaluation(job)
            return
        message = (
            f"{_factors(job, group)}, and {group.batch} is no multiple of num_generations {group.generations} "
            f"(remainder {group.batch % group.generations})."
        )
        if group.batch % group.generations == 0:
            ranks = group.micro * group.world
            message = f"{_factors(job, group)}, which is no multiple of {group.micro} x {group.world} = {ranks} a step."
        extra = whole(job.value("generation.processes"))
        if extra:
            message += f" The {counted(extra, 'rank')} set aside for generation are not counted."
        facts = [job.fact(name) for name in (GENERATIONS, BATCH, PER_DEVICE, "processes")]
        where = [fact.source for fact in facts if fact and fact.source.file]
        yield self.found(message, by_place([*where, *([logged.source] if logged else [])]), _fixes(job, group))

    def _evaluation(self, job: Job) -> Iterator[Finding]:
        """The same rule for the batch of the evaluation, as a log complains of it."""
        event = _complaint(job)
        if event is None:
            return
        generations = whole(job.value(GENERATIONS)) or event.values["generations"]
        world, micro = _evaluated(job, event)
        mended = _with_evaluation(job, generations)
        if mended:
            message = f"The evaluation batch, {micro} per device x {counted(world, 'process')}, makes {micro * world} "
            message += f"generations, which is no multiple of num_generations {generations}."
            size = mended[EVALUATION]
            fix = Fix(f"per_device_eval_batch_size {size}: {size} x {world} = {size * world}.", mended)
            yield self.found(message, [event.source], [fix])


def _complaint(job: Job) -> Event | None:
    """What the log says of the evaluation's batch."""
    return next((event for event in job.said("generation-batch") if event.values.get("eval")), None)


def _evaluated(job: Job, event: Event) -> tuple[int, int]:
    """Processes and evaluation batch of each."""
    world, micro = (*event.values["factors"], 1, 1)[:2]
    return world, whole(job.value(EVALUATION)) or micro


def _with_evaluation(job: Job, generations: int) -> dict[str, int]:
    """The evaluation batch that fits this many generations, where the log complains of one that does not."""
    event = _complaint(job)
    if event is None:
        return {}
    world, micro = _evaluated(job, event)
    unit = generations // gcd(generations, world)
    return {EVALUATION: -(-micro // unit) * unit} if micro % unit else {}


def _logged(job: Job) -> Event | None:
    """What the log says of the training batch."""
    return next((event for event in job.said("generation-batch") if not event.values.get("eval")), None)


def _factors(job: Job, group: Group) -> str:
    """How the batch comes about, in words."""
    if (job.fact(BATCH) and _counts_steps(job)) or not group.micro:
        return f"generation_batch_size is {group.batch}"
    text = f"{group.micro} per device x {counted(group.world, 'process')}"
    text += f" x {group.steps} accumulation steps" if _counts_steps(job) else ""
    return f"{text} make {group.batch} generations"


def _counts_steps(job: Job) -> bool:
    """Do accumulation steps count? Yes from TRL 0.17; an unknown version is judged by its own log, else as recent."""
    event = _logged(job)
    if event and job.version("trl") is None:
        return len(event.values["factors"]) != 2
    return older(job, "trl", COUNTS_STEPS) is not True


def _group(job: Job) -> Group | None:
    """The factors as the arguments say them; where these are not there, as the log prints them."""
    event = _logged(job)
    factors = event.values["factors"] if event else []
    logged_world, logged_micro, logged_steps = (*factors, None, None, None)[:3] if len(factors) > 1 else (None,) * 3
    default = DEFAULT if _grouped(job) else None
    generations = whole(job.value(GENERATIONS)) or (event and event.values["generations"]) or default
    micro = whole(job.value(PER_DEVICE)) or logged_micro
    micro = micro or (whole(job.value("train_micro_batch_size_per_gpu")) if event else None)
    processes = effective(job).processes
    world = (whole(processes.value) if processes else None) or logged_world
    steps = (_steps(job) or logged_steps) if _counts_steps(job) else 1
    batch = (whole(job.value(BATCH)) or (factors[0] if len(factors) == 1 else None)) if _counts_steps(job) else None
    if not generations or generations < 2:
        return None
    if micro and world and steps:
        given = batch if job.fact(BATCH) else None
        return Group(micro, world, steps, generations, given or micro * world * steps)
    return Group(0, 0, 0, generations, batch) if batch else None


def _grouped(job: Job) -> bool:
    """Is it group-relative policy optimisation, so that num_generations has its default where it is not given?"""
    texts = [f"{launch.script or ''} {launch.text}".lower() for launch in job.launches]
    if any("rloo" in text for text in texts):
        return False
    return any("grpo" in text for text in texts) or any(job.fact(f"trainer.{name}") for name in GROUPED)


def _steps(job: Job) -> int | None:
    """How many micro-batches one generation fills, where generation_batch_size does not say it."""
    steps = whole(job.value("trainer.steps_per_generation"))
    if steps:
        return steps
    fact = job.fact("trainer.gradient_accumulation_steps")
    if fact is None:
        return None if job.said("generation-batch") else 1
    return whole(fact.value)


def _fits(group: Group) -> bool:
    ranks = group.micro * group.world or 1
    return group.batch % group.generations == 0 and (group.batch % ranks == 0 or group.batch == ranks * group.steps)


def _fixes(job: Job, group: Group) -> Iterator[Fix]:
    """More per device, fewer generations, or more processes; each the nearest that fits."""
    micro, world, steps, generations, batch = group
    if not micro:
        size = max(round(batch / generations), 1) * generations
        yield Fix(
            f"generation_batch_size {size}: a multiple of {generations}.",
            {BATCH: size} | _with_evaluation(job, generations),
        )
        return
    accumulation = whole(job.value("trainer.gradient_accumulation_steps")) or (steps if _counts_steps(job) else 1)
    evaluation = _with_evaluation(job, generations)
    cleared: dict[str, Any] = {BATCH: None} if job.fact(BATCH) else {}
    if BATCH in cleared and _counts_steps(job):
        unit = micro * world * generations // gcd(micro * world, generations)
        size = max(round(batch / unit), 1) * unit
        text = f"generation_batch_size {size}: a multiple of {micro} x {world} and of {generations}."
        yield Fix(text, {**complete(job, micro, accumulation, world), **evaluation, BATCH: size})
    unit = generations // gcd(generations, world * steps)
    size = -(-micro // unit) * unit
    product = size * world * steps
    yield Fix(
        f"per_device_train_batch_size {size}: {size} x {world}{f' x {steps}' if steps > 1 else ''} = {product} "
        f"generations, {counted(product // generations, 'group')} of {generations}.",
        {**complete(job, size, accumulation, world), PER_DEVICE: size, **evaluation, **cleared},
    )
    product = micro * world * steps
    fewer = next((n for n in range(min(generations, product, 4096), 1, -1) if product % n == 0), None)
    if fewer and fewer != generations:
        settings = {GENERATIONS: fewer, **_same(job, fewer), **_with_evaluation(job, fewer), **cleared}
        yield Fix(f"num_generations {fewer}: it divides {product}.", settings)
    unit = generations // gcd(generations, micro * steps)
    more = -(-world // unit) * unit
    if world != more <= 8 * world:
        text = f"{more} training processes: {micro} x {more}{f' x {steps}' if steps > 1 else ''} is a multiple of "
        settings = {**complete(job, micro, accumulation, more), "processes": more, **evaluation, **cleared}
        yield Fix(f"{text}{generations}.", settings)


def _same(job: Job, number: int) -> dict[str, int]:
    """The argument under its other name, where it is known under that too."""
    return {"trainer.num_generations": number} if job.fact("trainer.num_generations") else {}
