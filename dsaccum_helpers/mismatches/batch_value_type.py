"""A batch value that is not a positive integer."""

from __future__ import annotations

from dsaccum_helpers.batch import KEYS, BatchError, resolve_batch
from dsaccum_helpers.effective import effective
from dsaccum_helpers.effective.owners import (
    ACCUMULATION,
    COUNTS,
    FILLS_ONE,
    LIGHTNING,
    PER_DEVICE,
    TRAINERS,
    VARIABLE,
    is_open,
)
from dsaccum_helpers.effective.world import whole
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.entry import Mismatch
from dsaccum_helpers.mismatches.near_keys import nearest
from dsaccum_helpers.mismatches.numbers import owned
from dsaccum_helpers.nearest import near_integers

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Config, Job
    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.setting import Setting

#: Numbers that frameworks take from their own arguments.
_ARGUMENTS = {
    **dict.fromkeys(TRAINERS, (PER_DEVICE, ACCUMULATION)),
    "lightning": (LIGHTNING,),
    "accelerate": COUNTS,
}


class BatchValueType(Mismatch):
    """Texts and lists stop DeepSpeed; fractions and true go through without a word."""

    code = "batch-value-type"
    title = "A batch value is not a positive integer"
    symptom = "TypeError, ZeroDivisionError or 'has to be greater than 0' at start-up; nothing for 2.5 and true."
    cause = "A value was quoted, divided by the shell, left empty, or never given."
    consequence = "Training does not start; or, with 2.5, updates come after 5 micro-batches with twice the gradient."
    remedy = "Write a positive integer without quotes."
    learn = "notebooks/01_three_numbers.ipynb"

    def check(self, job: Job) -> Iterable[Finding]:
        """The three keys and the frameworks' own names for them; else what the log says of such a value."""
        wrong = [*self._in_config(job), *self._in_arguments(job)] or [*self._missing(job)] or [*self._from_log(job)]
        yield from wrong[:1]

    def _in_config(self, job: Job) -> Iterator[Finding]:
        config = job.config
        if config is None:
            return
        values = {key: config.get(key) for key in KEYS}
        wrong = [key for key, value in values.items() if _is_wrong(config, value)]
        fixed = values[KEYS[0]] is not None or values[KEYS[1]] is not None
        if not wrong and fixed and job.framework in FILLS_ONE and config.has(KEYS[2]) and values[KEYS[2]] is None:
            kept = {**values, KEYS[2]: 1}
            text = f'{KEYS[2]} is null, and this framework multiplies by it. Write a number or "auto".'
            yield self.found(text, [config.source(KEYS[2])], [Fix(f"Set {KEYS[2]} 1.", {**_mended(job), **kept})])
        if not wrong:
            return
        text, offers = _refused(job, {key: None if value == "auto" else value for key, value in values.items()})
        where = [config.source(key) for key in wrong] + [event.source for event in job.said(*_EVENTS)]
        yield self.found(text, where, offers)

    def _in_arguments(self, job: Job) -> Iterator[Finding]:
        others = _mended(job)
        besides = {name: value for f in self._missing(job) for name, value in f.fixes[0].set.items()} if others else {}
        for name in others:
            fact = job.fact(name)
            assert fact is not None
            offers = [
                Fix(f"Set {name} {number}.", {**others, **besides, **_with_product(job, name, number)})
                for number in near_integers(fact.value)[:2] or [1]
            ]
            text = f"{name} is {fact.value!r:.60}, where a positive integer is needed. {offers[0].description}"
            yield self.found(text, [fact.source] if fact.source.file else [], offers)

    def _missing(self, job: Job) -> Iterator[Finding]:
        """Neither of the two keys that fix the batch is there, where nothing else adds one."""
        config, said = job.config, job.said("batch-missing")
        if config is None or job.framework in ("lightning", "openrlhf", "megatron"):
            return
        if any(config.get(key) is not None for key in KEYS[:2]) or config.kind in ("log", "arguments", "embedded"):
            return
        if (job.programs and not said) or _elsewhere(config.values) or (config.kind == "script" and not said):
            return
        text, offers = _refused(job, dict.fromkeys(KEYS) | {KEYS[2]: whole(config.get(KEYS[2]))})
        yield self.found(text, [config.source(KEYS[0]), *(event.source for event in said)], offers)

    def _from_log(self, job: Job) -> Iterator[Finding]:
        for event in job.said("lightning-type") if job.framework == "lightning" else ():
            fact = job.fact(LIGHTNING)
            if fact is None or not (whole(fact.value) or isinstance(fact.value, dict)):
                given = f" (it was given as {fact.value!r:.60})" if fact else ""
                text = f"accumulate_grad_batches is neither an integer nor a dict{given}: give the Trainer an integer."
                fix = Fix("Set accumulate_grad_batches to an integer, such as 1.", {LIGHTNING: 1})
                yield self.found(text, [event.source, *([fact.source] if fact else [])], [fix])
        known = any(job.fact(name) for name in _ARGUMENTS.get(job.framework, ()))
        if job.config is not None or known:
            return  # the values themselves are there, and none of them is off
        for event in job.said(*_EVENTS):
            words = _words(event.kind, event.values)
            if words:
                yield self.found(f"{words} Write a positive integer for each batch key.", [event.source])

    def config(self, setting: Setting) -> dict[str, Any]:
        """Half an accumulation step too many, and the train batch size left to DeepSpeed."""
        config = setting.ds_config() | {KEYS[2]: setting.gradient_accumulation_steps + 0.5}
        return {key: value for key, value in config.items() if key != KEYS[0]}

    def predict(self, setting: Setting) -> Prediction:
        """A whole number of micro-batches is a multiple of the count only at every second window."""
        window = 2 * setting.gradient_accumulation_steps + 1
        weights, updates = (2 / window,) * window, setting.micro_batches // window
        return self._prediction(setting, weights=weights, optimizer_steps=updates)


_EVENTS = ("type-error", "zero-division", "positive-assertion", "batch-missing")


def _words(kind: str, values: dict[str, Any]) -> str | None:
    """What an event says of a value, None where it is about another fault."""
    if kind == "type-error":
        words = str(values.get("words"))
        return None if "'str'" in words else f"{values.get('key') or 'A batch value'} has the wrong type: {words}."
    if kind == "zero-division":
        return "A micro-batch or accumulation of 0 was divided by."
    if kind == "positive-assertion":
        value, key = values.get("value"), values.get("key")
        rounded = value == 0 and key != KEYS[0]
        return None if rounded else f"{key} is {value}, which has to be greater than 0."
    return f"Neither {KEYS[0]} nor {KEYS[1]} was given, so nothing fixes the batch."


def _is_wrong(config: Config, value: Any) -> bool:
    """Is this value of a batch key neither a positive integer nor something that is filled in?"""
    if value is None or value == "auto":
        return False
    if is_open(value) and config.kind not in ("file", "given"):
        return False
    return isinstance(value, str) or whole(value) is None


def _is_off(name: str, value: Any) -> bool:
    """The same for a framework's argument; shell variables and digits in a text may still become numbers."""
    if value is None or (value == "auto" and name != VARIABLE) or is_open(value) or isinstance(value, list):
        return False
    if isinstance(value, dict):
        return name != LIGHTNING
    return whole(value) is None


def _mended(job: Job) -> dict[str, Any]:
    """The arguments of the job's framework that are off, each with the nearest integer."""
    facts = {name: job.fact(name) for name in _ARGUMENTS.get(job.framework, ())}
    off = {name: fact.value for name, fact in facts.items() if fact is not None and _is_off(name, fact.value)}
    return {name: next(iter(near_integers(value)), 1) for name, value in off.items()}


def _elsewhere(values: dict[str, Any]) -> bool:
    """Is a batch key there under another spelling, or in a wrong section? That is another finding."""
    for key, value in values.items():
        near = nearest(key, KEYS) if isinstance(key, str) and key not in KEYS else None
        if near or (isinstance(value, dict) and (any(name in value for name in KEYS) or _elsewhere(value))):
            return True
    return False


def _refused(job: Job, values: dict[str, Any]) -> tuple[str, list[Fix]]:
    """Why the values are refused, or go through unseen, and the nearest integers."""
    numbers = effective(job)
    try:
        resolve_batch(**values, world_size=numbers.replicas or 1)
        return "", []
    except BatchError as error:
        text = str(error)
        settings: list[dict[str, Any]] = [dict(setting) for setting in error.nearest]
    if not numbers.replicas:
        kept = {key for key in KEYS if values[key] is not None} or {KEYS[1]}
        kept |= {KEYS[1]} if values[KEYS[0]] is None else set()
        settings = [{key: setting[key] if key in kept else None for key in KEYS} for setting in settings]
    if job.framework == "lightning":  # which owns the accumulation, and with it the product
        settings = [{**dict.fromkeys(KEYS), KEYS[1]: setting[KEYS[1]]} for setting in settings]
    offers = []
    for setting in settings:
        # repr: 64.0 and true are equal to 64 and 1, and are to be replaced.
        changed = {key: value for key, value in setting.items() if repr(values.get(key)) != repr(value)}
        shown = [f"{key} {value}" for key, value in changed.items() if value is not None]
        offers.append(Fix(f"Set {' and '.join(shown)}.", {**_mended(job), **owned(job, setting)}))
    return text, offers


def _with_product(job: Job, name: str, number: int) -> dict[str, Any]:
    """The argument, with the batch that it makes where a config's numbers would disagree with it."""
    numbers = effective(job)
    micro, steps = (fact and fact.value for fact in (numbers.micro, numbers.steps))
    micro, steps = (number, steps) if name == PER_DEVICE else (micro, number)
    pinned = job.config is not None and any(whole(job.config.get(key)) for key in KEYS)
    if not pinned or not micro or not steps or not numbers.replicas:
        return {name: number}
    more = {PER_DEVICE: micro, ACCUMULATION: steps} if job.framework in TRAINERS else {}
    return {**dict(zip(KEYS, (micro * steps * numbers.replicas, micro, steps), strict=True)), **more, name: number}
