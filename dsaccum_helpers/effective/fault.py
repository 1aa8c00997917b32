"""What is wrong with the numbers and the world: one fault at most, under the name that fits the evidence (pure).

An assertion in a log says what DeepSpeed itself multiplied, so it comes before the arithmetic over the files; but only
while it is about the numbers that the job has now.
"""

from __future__ import annotations

from dsaccum_helpers.batch import KEYS, BatchError, resolve_batch
from dsaccum_helpers.effective import Effective, effective
from dsaccum_helpers.effective.owners import fills_in
from dsaccum_helpers.effective.world import at_least, whole

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import Any

    from dsaccum_helpers.job import Event, Job, Source

PRODUCT, DIVISION, BELOW = "batch-product-mismatch", "batch-not-divisible", "batch-below-world-size"
SEEN_AS_ONE, OTHER_WORLD = "world-size-seen-as-one", "written-for-other-world-size"
DISAGREEMENT, MODEL_PARALLEL = "world-size-disagreement", "model-parallel-world"
#: The codes that a Fault can have.
CODES = (PRODUCT, DIVISION, BELOW, SEEN_AS_ONE, OTHER_WORLD, DISAGREEMENT, MODEL_PARALLEL)


class Fault:
    """One fault of the numbers.

    ``code``: its entry. ``train``, ``micro``, ``steps``: the numbers in question, None where a number is not known.
    ``replicas``: by how many DeepSpeed multiplied. ``fits``: for how many replicas the numbers are right, None where
    for no whole number. ``error``: the BatchError with the nearest settings that work. ``event``: the assertion of the
    log, None where the files show it. ``wanted``: the batch that is asked for and cannot be had or is not used.
    """

    def __init__(
        self,
        code: str,
        numbers: Effective,
        values: tuple[int | None, int | None, int | None],
        replicas: int | None = None,
        *,
        fits: int | None = None,
        error: BatchError | None = None,
        event: Event | None = None,
        wanted: int | None = None,
    ) -> None:
        self.code, self.numbers, self.replicas, self.fits = code, numbers, replicas, fits
        self.train, self.micro, self.steps = values
        self.error, self.event, self.wanted = error, event, wanted

    def where(self) -> list[Source]:
        """The places that show it: the numbers, the assertion, and what says the number of processes."""
        sources = [fact.source for fact in self.numbers.given if fact and fact.value is not None]
        sources += [self.event.source] if self.event else []
        sources += [self.numbers.processes.source] if self.numbers.processes else []
        return list(dict.fromkeys(source for source in sources if source and source.file))


def find_fault(job: Job) -> Fault | None:
    """The fault of this job's numbers, None where they are right or too little is known."""
    numbers = effective(job)
    if numbers.processes is not None and numbers.replicas is None:
        return _by_numbers(numbers)
    for event in job.said("product-assertion"):
        if _is_about(job, numbers, event):
            return _by_product(job, numbers, event)
    for event in job.said("positive-assertion"):
        fault = _by_rounding(numbers, event)
        if fault is not None:
            return fault
    if numbers.error is not None:
        return _by_numbers(numbers)
    return _by_wish(job, numbers)


def _is_about(job: Job, numbers: Effective, event: Event) -> bool:
    """Does the assertion multiply the numbers that the job has now?"""
    said = [event.values.get(name) for name in ("train", "micro", "steps")]
    known = [fact and fact.value for fact in numbers.given]
    if fills_in(job) and numbers.replicas in (None, event.values.get("world")):
        known[0] = None  # it was multiplied out with the number of processes that the framework saw
    return all(whole(n) for n in said) and all(k is None or k == n for k, n in zip(known, said, strict=True))


def _by_product(job: Job, numbers: Effective, event: Event) -> Fault | None:
    """The equation of the log does not hold: 64 != 4 * 8 * 1."""
    train, micro, steps = (event.values[name] for name in ("train", "micro", "steps"))
    world = float(event.values.get("world") or 1)
    replicas = int(world) if world >= 1 and world == int(world) else 1
    fits, rest = divmod(train, micro * steps)
    if train == micro * steps * replicas:
        return None
    derived = _derived(job, numbers, (train, micro, steps), replicas, bool(rest))
    asked = [None if key == derived else n for key, n in zip(KEYS, (train, micro, steps), strict=True)]
    code = DIVISION if derived else PRODUCT if rest else _name_of_world(job, numbers, fits, replicas)
    if code is None:
        return None
    without_mpu = code == MODEL_PARALLEL and fits == numbers.replicas
    error = None if without_mpu else _refusal(asked, numbers.replicas or replicas, numbers)
    if error is None and not without_mpu:
        error = _refusal(asked, replicas, numbers)
    values = (train, micro, steps)
    return Fault(code, numbers, values, replicas, fits=None if rest else fits, error=error, event=event)


def _derived(job: Job, numbers: Effective, values: tuple[int, ...], replicas: int, rest: bool) -> str | None:
    """The number that DeepSpeed floored: one that the config leaves out, or that only flooring explains."""
    train, micro, steps = values
    if job.config is not None:
        absent = [key for key, fact in zip(KEYS, numbers.given, strict=True) if fact is None]
        return next((key for key in (KEYS[2], KEYS[1]) if key in absent), None) if numbers.given[0] else None
    if rest and train // micro // replicas == steps:
        return KEYS[2]
    return KEYS[1] if rest and train // replicas // steps == micro else None


def _name_of_world(job: Job, numbers: Effective, fits: int, replicas: int) -> str | None:
    """The numbers are right for ``fits`` replicas and DeepSpeed counted others; None: the log is of another run."""
    launched = numbers.processes.value if numbers.processes else None
    meant = (launched, numbers.replicas) if launched else ()
    if replicas == 1 and launched != 1:
        if launched and fits in meant:
            return SEEN_AS_ONE
        if launched is None and (fills_in(job) or 1 < at_least(job) <= fits):
            return SEEN_AS_ONE
    if launched and fits == numbers.replicas:
        if numbers.shared > 1:
            return MODEL_PARALLEL if replicas == launched else None
        return DISAGREEMENT
    if launched and fits == launched and numbers.shared > 1:
        return MODEL_PARALLEL
    # A missing accumulation key makes the product wrong for every number of processes.
    return DISAGREEMENT if fills_in(job) and job.fact(KEYS[2]) else OTHER_WORLD


def _refusal(asked: list[Any], replicas: int, numbers: Effective) -> BatchError | None:
    """What ``resolve_batch`` says to these numbers on so many replicas."""
    sizes: dict[str, Any] = {name: fact.value for name, fact in numbers.parallel.items()}
    try:
        resolve_batch(**dict(zip(KEYS, asked, strict=True)), world_size=replicas * numbers.shared, **sizes)
    except BatchError as error:
        return error
    return None


def _by_rounding(numbers: Effective, event: Event) -> Fault | None:
    """A number was rounded down to 0: "Gradient accumulation steps: 0 has to be greater than 0"."""
    key, value = event.values.get("key"), event.values.get("value")
    own = dict(zip(KEYS, numbers.given, strict=True)).get(str(key))
    if value != 0 or isinstance(value, bool) or key == KEYS[0] or (own is not None and own.value is not None):
        return None  # the value stands in the config so: no rounding
    train, micro, steps = (fact and fact.value for fact in (numbers.train, numbers.micro, numbers.steps))
    values = (train, micro, None if key == KEYS[2] else steps)
    launched = numbers.processes.value if numbers.processes else None
    through = " ".join(map(str, event.values.get("through") or ()))
    second = "checkpointing.configure" in through or "activation_checkpointing" in through
    settled = numbers.error is None and None not in (train, micro, steps, numbers.replicas)
    if settled or (second and numbers.shared > 1):
        rounded = train and launched and train < (micro or 1) * launched
        if numbers.shared > 1 and rounded:
            return Fault(MODEL_PARALLEL, numbers, values, launched, fits=numbers.replicas, event=event)
        return None
    if numbers.error is not None and numbers.error.code != BELOW:
        return None
    if second:
        return Fault(MODEL_PARALLEL, numbers, values, numbers.replicas, event=event)
    return Fault(BELOW, numbers, values, numbers.replicas, error=numbers.error, event=event)


def _by_numbers(numbers: Effective) -> Fault | None:
    """What the files alone show."""
    error = numbers.error
    if error is None or error.code not in CODES:
        return None
    train, micro, steps = (fact.value if fact else None for fact in numbers.given)
    fits = None
    # Numbers only: a text or "auto" takes no part.
    if isinstance(train, int) and isinstance(micro, int) and isinstance(steps, int) and min(train, micro, steps) > 0:
        fits = None if train % (micro * steps) else train // (micro * steps)
    return Fault(error.code, numbers, (train, micro, steps), numbers.replicas, fits=fits, error=error)


def _by_wish(job: Job, numbers: Effective) -> Fault | None:
    """A batch that is asked for: can it be had, and is it the one that will be used?"""
    wanted, replicas = whole(job.value("wanted.train_batch_size")), numbers.replicas
    train, micro = (fact and fact.value for fact in (numbers.train, numbers.micro))
    if wanted is None or replicas is None or wanted == train:
        return None
    values = (train, micro, numbers.steps.value if numbers.steps else None)
    error = _refusal([wanted, micro, None], replicas, numbers)
    if error is not None:
        return Fault(error.code, numbers, values, replicas, error=error, wanted=wanted)
    if train is None or micro is None or numbers.steps is None:
        return None
    code = MODEL_PARALLEL if wanted == train * numbers.shared else PRODUCT
    error = BatchError("", code, nearest=_met(wanted, values, replicas))
    return Fault(code, numbers, values, replicas, error=error, wanted=wanted)


def _met(wanted: int, values: tuple[Any, Any, Any], replicas: int) -> list[dict[str, int]]:
    """The wanted batch with this micro-batch, and with this accumulation where that divides it."""
    _, micro, steps = values
    choices = [(micro, wanted // (micro * replicas))]
    if steps and wanted % (steps * replicas) == 0:
        choices.append((wanted // (steps * replicas), steps))
    return [dict(zip(KEYS, (wanted, *choice), strict=True)) for choice in choices]
