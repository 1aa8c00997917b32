"""A config without an accumulation key, in a framework that then writes 1."""

from __future__ import annotations

from dsaccum_helpers.batch import KEYS
from dsaccum_helpers.effective import effective
from dsaccum_helpers.effective.owners import (
    ACCUMULATION,
    COUNTS,
    FILLS_ONE,
    JSON_COUNTS,
    PER_DEVICE,
    TRAINERS,
    uses_deepspeed,
)
from dsaccum_helpers.effective.versions import older
from dsaccum_helpers.effective.world import whole
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.entry import Mismatch
from dsaccum_helpers.mismatches.framework_runs import AUTO, Shown, accelerate, trainer
from dsaccum_helpers.mismatches.near_keys import nearest
from dsaccum_helpers.mismatches.numbers import owned, product

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from dsaccum_helpers.effective import Effective
    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Fact, Job

TRAIN, MICRO, STEPS = KEYS


class AccumulationKeyMissing(Mismatch):
    """The key that is not there is taken for 1, whatever the arguments say."""

    code = "accumulation-key-missing"
    title = "The config has no gradient_accumulation_steps, and the framework writes 1"
    symptom = "An AssertionError with a 1 in the middle (256 != 8 * 1 * 8), or no message and too many optimizer steps."
    cause = 'Transformers and Accelerate write 1 for the missing key; only an "auto" is filled in.'
    consequence = (
        "With train_batch_size the config is refused. Without it the engine updates after every micro-batch; from "
        "Transformers 5 on the Trainer counts the window itself, and only the engine's sample counts are too small."
    )
    remedy = 'Write "gradient_accumulation_steps": "auto" into the DeepSpeed config.'
    learn = "notebooks/05_frameworks.ipynb"
    silences = (
        "batch-product-mismatch",
        "batch-not-divisible",
        "batch-below-world-size",
        "written-for-other-world-size",
        "world-size-seen-as-one",
        "accumulation-owner-conflict",
    )
    programs = (
        Shown(
            "no train batch size either: an update after each of 24 micro-batches",
            accelerate({TRAIN: "auto", MICRO: "auto"}),
            accelerate(AUTO),
            "GradientAccumulationPlugin has 4, DeepSpeed config has 1. Using DeepSpeed's value.",
            24,
        ),
        Shown(
            "with a train batch size",
            accelerate({TRAIN: 16, MICRO: 4}),
            accelerate({TRAIN: 16, MICRO: 4, STEPS: "auto"}),
            "train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 16 != 4 * 1 * 1",
        ),
        Shown(
            "with a train batch size",
            trainer({TRAIN: "auto", MICRO: "auto"}),
            trainer(AUTO),
            "train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 16 != 4 * 1 * 1",
        ),
        Shown(
            "no train batch size either: it trains right, and the engine counts a quarter of the samples",
            trainer({MICRO: "auto"}),
            trainer(AUTO),
            optimizer_steps=6,
            norm_ratio=1.0,
        ),
    )

    def check(self, job: Job) -> Iterable[Finding]:
        """The key is missing, and somebody asks for more than one micro-batch per optimizer step."""
        config = job.config
        if config is None or config.kind == "arguments" or job.framework not in FILLS_ONE or config.has(STEPS):
            return
        if job.framework == "accelerate" and (not uses_deepspeed(job) or older(job, "accelerate", JSON_COUNTS)):
            return
        if any(isinstance(key, str) and nearest(key, KEYS) == (STEPS, "spelling") for key in config.values):
            return  # the key is there, written otherwise: that is another finding
        numbers = effective(job)
        asked, source = _asked(job, numbers)
        if asked is None or asked < 2:
            return
        text = f"{config.file or 'The config'} has no {STEPS}, so the framework writes 1; {source} asks for {asked}."
        micro, replicas = _micro(job, numbers), numbers.replicas
        if config.get(TRAIN) is not None and micro and replicas:
            right = {TRAIN: micro * asked * replicas, MICRO: micro, STEPS: asked}
            text += f" {product(right, replicas)} is right, and DeepSpeed multiplies {micro} x 1 x {replicas}."
        where = [config.source(STEPS), *(event.source for event in job.said("product-assertion"))]
        fact = _asking(job)
        where += [fact.source] if fact and fact.source.file else []
        offers = _fixes(job, numbers, asked)
        severity = "warning" if _counts_itself(job) and config.get(TRAIN) is None else "error"
        yield self.found(f"{text} {offers[0].description}", where, offers, severity=severity)


def _counts_itself(job: Job) -> bool:
    """Does this Trainer (measured: 5.24) count the window by itself, so that only the engine's numbers are off?"""
    return job.framework in TRAINERS and older(job, "transformers", "5") is False


def _asking(job: Job) -> Fact | None:
    names = (ACCUMULATION,) if job.framework in TRAINERS else COUNTS
    facts = (job.fact(name) for name in names)
    return next((fact for fact in facts if fact is not None and whole(fact.value)), None)


def _asked(job: Job, numbers: Effective) -> tuple[int | None, str]:
    """The accumulation that is meant, and who says so; else what the train batch size leaves for it."""
    fact = _asking(job)
    if fact is not None:
        return whole(fact.value), f"{fact.source.key or STEPS}"
    for event in job.said("product-assertion"):
        train, micro, steps, world = (whole(event.values.get(name)) for name in ("train", "micro", "steps", "world"))
        replicas = numbers.replicas if world == 1 and numbers.processes else world
        # Where the framework has multiplied the batch out itself, the missing factor is its own accumulation.
        sure = replicas and (replicas > 1 or (job.config and job.config.get(TRAIN) == "auto"))
        if train and micro and steps == 1 and replicas and sure and train % (micro * replicas) == 0:
            return train // (micro * replicas), f"{TRAIN} {train}"
    train, micro = (whole(fact.value) if fact else None for fact in numbers.given[:2])
    if train and micro and numbers.replicas and train % (micro * numbers.replicas) == 0:
        return train // (micro * numbers.replicas), f"{TRAIN} {train}"
    return None, ""


def _micro(job: Job, numbers: Effective) -> Any:
    """The micro-batch; what the log multiplied comes before a trainer's default."""
    if job.config is not None and job.config.get(MICRO) == "auto" and job.fact(PER_DEVICE) is None:
        for event in job.said("product-assertion"):
            if whole(event.values.get("micro")):
                return whole(event.values["micro"])
    return numbers.micro.value if numbers.micro else None


def _fixes(job: Job, numbers: Effective, asked: int) -> list[Fix]:
    """ "auto" for what the framework fills in; else the number, with the product that it makes."""
    assert job.config is not None
    kept = {key: job.config.get(key) for key in (TRAIN, MICRO)}
    argument = {ACCUMULATION: asked} if job.framework in TRAINERS and job.fact(ACCUMULATION) is None else {}
    auto = Fix(f'Add "{STEPS}": "auto" to the config.', {**kept, STEPS: "auto", **argument})
    micro, replicas = _micro(job, numbers), numbers.replicas
    if micro is None:
        return [auto, Fix(f'Add "{STEPS}": {asked} to the config.', {**kept, STEPS: asked})]
    setting = {TRAIN: micro * asked * replicas if replicas else None, MICRO: micro, STEPS: asked}
    equation = f": {product(setting, replicas)}" if replicas else ""
    return [auto, Fix(f'Add "{STEPS}": {asked} to the config{equation}.', owned(job, setting))]
