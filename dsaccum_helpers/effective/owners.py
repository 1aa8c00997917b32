"""Which three numbers the engine is given: the owner that wins, framework by framework (pure).

Each function gives (train, micro, steps). None stands for a number that nobody gives, so that the engine derives it;
a Fact whose value is None for one that somebody gives, but that is not known here.
The rules were measured with Transformers 5.24, Accelerate 1.15 and Lightning 2.6.
"""

from __future__ import annotations

from dsaccum_helpers.batch import KEYS
from dsaccum_helpers.effective.versions import older
from dsaccum_helpers.effective.world import whole
from dsaccum_helpers.job import Fact, Source

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import Any

    from dsaccum_helpers.job import Job, Launch

    Given = tuple[Fact | None, Fact | None, Fact | None]

TRAINERS = ("transformers", "trl")
FILLS_ONE = (*TRAINERS, "accelerate")  # a config without an accumulation key gets 1 from these
_DEFAULT = Source("default of TrainingArguments")
_UNKNOWN = "\ue000"  # stands in the words of a launch command for what is not known there
PER_DEVICE, ACCUMULATION = "trainer.per_device_train_batch_size", "trainer.gradient_accumulation_steps"
LIGHTNING = "trainer.accumulate_grad_batches"
VARIABLE = "environment.ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
PLUGIN, ARGUMENT = "plugin.gradient_accumulation_steps", "accelerator.gradient_accumulation_steps"
FLAG, FIELD = "accelerate.flag.gradient_accumulation_steps", "accelerate.gradient_accumulation_steps"
#: Who says an accumulation count to Accelerate beside DeepSpeed's file, the one that wins first. The launcher exports
#: its flag, or the field of its YAML, over what the shell has.
COUNTS = (PLUGIN, FLAG, FIELD, VARIABLE, ARGUMENT)
#: Before this version Accelerator's own count replaces that of DeepSpeed's file (Accelerate PR 698 and 1901).
JSON_COUNTS = "0.23.0"


def given(job: Job, replicas: int | None) -> Given:
    """What the engine of this job's framework is given; ``replicas`` is the data-parallel size where it is known."""
    if job.framework in TRAINERS:
        return _trainer(job, replicas)
    if job.framework == "accelerate":
        return _accelerate(job, replicas)
    if job.framework == "lightning":
        return _lightning(job)
    return _from_config(job) if job.config else _from_log(job)


def fills_in(job: Job) -> bool:
    """Does the framework multiply the train batch size out, with the number of processes that it sees itself?"""
    return job.framework in FILLS_ONE and job.config is not None and job.value(KEYS[0]) == "auto"


def is_open(value: Any) -> bool:
    """Is the value a text that something else still fills in: a shell variable or a template?"""
    return isinstance(value, str) and any(mark in value for mark in ("$", "{{", "<"))


def _from_config(job: Job) -> Given:
    """Raw DeepSpeed: the config and nothing else. "auto" is no number, null is a missing key."""
    facts = [job.fact(key) for key in KEYS]
    train, micro, steps = (_plain(fact) for fact in facts)
    return train, micro, steps


def _plain(fact: Fact | None) -> Fact | None:
    """A config's fact, None for a null; unknown for "auto"."""
    if fact is None or fact.value is None:
        return None
    return Fact(None, fact.source) if fact.value == "auto" or is_open(fact.value) else fact


def _from_log(job: Job) -> Given:
    """No config is there: the numbers that the log's assertion prints."""
    for event in job.said("product-assertion"):
        train, micro, steps = (Fact(event.values.get(name), event.source) for name in ("train", "micro", "steps"))
        return train, micro, steps
    return None, None, None


def _trainer(job: Job, replicas: int | None) -> Given:
    """Hugging Face's Trainer fills in every "auto"; a missing accumulation key is written as 1."""
    micro, steps = argument(job, PER_DEVICE, 8), argument(job, ACCUMULATION, 1)
    if job.config is None:
        if not any(name.startswith("trainer.") for name in job.facts):
            return _from_summary(job) or _from_log(job)
        return None, micro, steps
    asked = [job.fact(key) for key in KEYS]
    # Arguments that are not shown are taken to agree with what the file pins.
    micro = _pinned(job, asked[1], PER_DEVICE) or micro
    steps = _pinned(job, asked[2], ACCUMULATION) or steps
    train = asked[0]
    if train is not None and train.value == "auto":
        per_device, count = whole(micro.value), whole(steps.value)
        train = Fact(per_device * count * replicas, train.source) if per_device and count and replicas else None
    return (
        _plain(train),
        micro if asked[1] and asked[1].value == "auto" else _plain(asked[1]),
        steps if asked[2] and asked[2].value == "auto" else _written(job, asked[2]),
    )


def argument(job: Job, name: str, default: int) -> Fact:
    """A trainer's argument or its default; unknown where a shell variable stands for it."""
    fact = job.fact(name)
    if fact is None or fact.value is None:
        return opaque(job, name) or _summed_up(job, name) or Fact(default, _DEFAULT)
    return Fact(None, fact.source) if is_open(fact.value) else fact


def opaque(job: Job, name: str) -> Fact | None:
    """An argument that a launch command gives by a variable whose value is not known."""
    plain = name.rpartition(".")[2]
    for launch in job.launches:
        for word, after in zip(launch.words, [*launch.words[1:], ""], strict=False):
            option, equals, value = word.lstrip("-").replace("-", "_").partition("=")
            if option.rpartition(".")[2] == plain and _UNKNOWN in (value if equals else after):
                return Fact(None, launch.source)
    return None


def opaque_words(launch: Launch) -> bool:
    """Does a command end in words that are not known: a variable that holds further options, ``"$@"``?"""
    before = ""
    for word in launch.words:
        if _UNKNOWN in word and not word.startswith("-") and (not before.startswith("--") or "=" in before):
            return True
        before = word
    return False


def _pinned(job: Job, asked: Fact | None, name: str) -> Fact | None:
    return asked if asked and whole(asked.value) and job.fact(name) is None else None


def _written(job: Job, asked: Fact | None) -> Fact | None:
    """The accumulation of a config that Accelerate reads: a missing key becomes 1."""
    if asked is None and job.config is not None:
        return Fact(1, job.config.source(KEYS[2]))
    return _plain(asked)


def _summed_up(job: Job, name: str) -> Fact | None:
    """What the Trainer's block in the log says of an argument that nothing else shows."""
    part = {PER_DEVICE: "micro", ACCUMULATION: "steps"}.get(name, "")
    found = (Fact(event.values.get(part), event.source) for event in job.said("training-summary"))
    return next((fact for fact in found if whole(fact.value)), None)


def _from_summary(job: Job) -> Given | None:
    """What the Trainer prints as it starts: batch size per device, total batch size, accumulation."""
    for event in job.said("training-summary"):
        found = [Fact(event.values.get(name), event.source) for name in ("train", "micro", "steps")]
        if all(whole(fact.value) for fact in found):
            return found[0], found[1], found[2]
    return None


def uses_deepspeed(job: Job) -> bool | None:
    """Does an Accelerate job run under DeepSpeed? None where nothing says."""
    if job.value("accelerate.use_deepspeed") in (True, "true", "True"):
        return True
    kind = job.value("accelerate.distributed_type")
    if kind is not None:
        return str(kind).strip().upper().endswith("DEEPSPEED")
    if job.config is not None or any(
        name.startswith("plugin.") or name == "accelerate.zero_stage" for name in job.facts
    ):
        return True
    return None


def _accelerate(job: Job, replicas: int | None) -> Given:
    """Accelerate 1.15: DeepSpeed's file, then DeepSpeedPlugin, then environment or YAML, then Accelerator(...)."""
    loader = job.fact("loader.batch_size") or Fact(None, None)
    steps = accelerate_steps(job)
    if job.config is None or not uses_deepspeed(job):
        return None, loader, steps
    train, micro = job.fact(KEYS[0]), job.fact(KEYS[1])
    if micro is not None and micro.value == "auto":
        micro = loader
    if train is not None and train.value == "auto":
        size, number = whole(micro.value) if micro else None, whole(steps.value) if steps else None
        train = Fact(size * number * replicas, train.source) if replicas and size and number else None
    return _plain(train), _plain(micro) if micro and micro.value is not None else micro, steps


def accelerate_steps(job: Job) -> Fact | None:
    """The accumulation count that an Accelerate job ends with."""
    engine = uses_deepspeed(job)
    asked = job.fact(KEYS[2]) if engine else None
    for event in job.said("accumulation-updated"):
        if still_said(job, event.values.get("before"), event.values.get("to")):
            return Fact(event.values.get("to"), event.source)
    if engine and job.config is not None and (asked is None or asked.value != "auto"):
        return _replaced(job) or _written(job, asked)
    for name in COUNTS if engine else (VARIABLE, ARGUMENT):
        fact = job.fact(name)
        if fact is not None and fact.value not in (None, "auto"):
            return Fact(None if is_open(fact.value) else whole(fact.value) or fact.value, fact.source)
    return Fact(1, Source("default of Accelerator"))


def _replaced(job: Job) -> Fact | None:
    """The count by which an old Accelerate replaces that of DeepSpeed's file, None where it keeps the file's."""
    if not older(job, "accelerate", JSON_COUNTS):
        return None
    own = _accelerators_own(job) or job.fact(ACCUMULATION)  # a word of the command reaches it through the script
    if own is None and job.value("accelerator.present"):
        own = Fact(1, Source("default of Accelerator"))
    return Fact(whole(own.value), own.source) if own and whole(own.value) else None


def _accelerators_own(job: Job) -> Fact | None:
    """The count that Accelerator itself holds, where somebody says one."""
    return next((fact for name in COUNTS if name != PLUGIN and (fact := job.fact(name))), None)


def still_said(job: Job, config: int | None, argument: int | None) -> bool:
    """Do config and argument still say the two counts that a line of the log names?"""
    asked, own = job.fact(KEYS[2]), _accelerators_own(job)
    if job.config is not None and job.config.kind != "log" and asked and whole(asked.value) != config:
        return False
    return own is None or whole(own.value) == argument


def _lightning(job: Job) -> Given:
    """Lightning's Trainer owns the accumulation; the micro-batch is the config's, else the loader's."""
    steps = job.fact(LIGHTNING) or opaque(job, LIGHTNING) or Fact(1, Source("default of Trainer"))
    if is_open(steps.value) or isinstance(steps.value, dict):
        steps = Fact(None, steps.source)
    train, micro = job.fact(KEYS[0]), job.fact(KEYS[1])
    return _plain(train), _plain(micro) or job.fact("loader.batch_size") or Fact(None, None), steps
