"""The DeepSpeed config holds numbers that Lightning's Trainer owns."""

from __future__ import annotations

from dsaccum_helpers.batch import KEYS
from dsaccum_helpers.effective import effective
from dsaccum_helpers.effective.owners import LIGHTNING
from dsaccum_helpers.effective.world import whole
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.entry import Mismatch
from dsaccum_helpers.mismatches.framework_runs import Shown, lightning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job, Source

TRAIN, MICRO, STEPS = KEYS


class LightningOwnsAccumulation(Mismatch):
    """Lightning writes accumulate_grad_batches into the config itself, and refuses a count that is already there."""

    code = "lightning-owns-accumulation"
    title = "The config holds what Lightning's Trainer owns"
    symptom = "MisconfigurationException: Do not set `gradient_accumulation_steps` in the DeepSpeed config."
    cause = (
        "Lightning writes Trainer(accumulate_grad_batches=...) into the DeepSpeed config, which already has numbers."
    )
    consequence = (
        "Nothing is trained: Lightning or DeepSpeed refuses the config at fit(), also where the numbers agree."
    )
    remedy = "Take gradient_accumulation_steps and train_batch_size out of the config; set accumulate_grad_batches."
    learn = "notebooks/05_frameworks.ipynb"
    not_watched = "Lightning refuses before there is an engine to watch: `dsaccum check` says it."
    silences = (
        "batch-product-mismatch",
        "batch-not-divisible",
        "batch-below-world-size",
        "world-size-seen-as-one",
        "written-for-other-world-size",
        "model-parallel-world",
        "accumulation-key-missing",
        "auto-without-trainer",
    )
    rank = 4
    #: Lightning refuses the CPU before it looks at the config: its check for a GPU is set aside in these runs.
    programs = (
        Shown(
            "4 accumulation steps in the config, and the same in Trainer(...)",
            lightning({STEPS: 4}, cuda_check=False),
            lightning({}, cuda_check=False, loss="multiplied"),
            "Do not set `gradient_accumulation_steps` in the DeepSpeed config",
        ),
        Shown(
            "4 accumulation steps in the config alone",
            lightning({STEPS: 4}, cuda_check=False)._replace(arguments={}),
            lightning({}, cuda_check=False, loss="multiplied"),
            "Do not set `gradient_accumulation_steps` in the DeepSpeed config",
        ),
        Shown(
            "train batch 64 in the config, 4 x 4 x 1 by loader and Trainer",
            lightning({TRAIN: 64}, cuda_check=False),
            lightning({}, cuda_check=False, loss="multiplied"),
            "train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step * world_size 64 != 4 * 4 * 1",
        ),
    )

    def check(self, job: Job) -> Iterable[Finding]:
        """The accumulation key in any form; a train batch size that is not the product."""
        if job.framework != "lightning":
            return
        config = job.config if job.config and job.config.kind != "log" else None
        if config and config.has(STEPS) and config.get(STEPS) is not None:
            yield self._steps(job, config.source(STEPS), config.get(STEPS))
            return
        if config and config.has(TRAIN) and config.get(TRAIN) is not None:
            yield from self._train(job, config.source(TRAIN))
            return
        owner = job.fact(LIGHTNING)
        mended = config is not None or (owner is not None and owner.source.file == "--set")
        for event in job.said("lightning-owns")[: 0 if mended else 1]:
            yield self._steps(job, event.source, None)

    def _steps(self, job: Job, source: Source, value: object) -> Finding:
        given = f"{STEPS} {value!r:.60}" if value is not None else STEPS
        message = f"The DeepSpeed config has {given}; Lightning fills that in from Trainer(accumulate_grad_batches=...)"
        message += " and refuses a config that already has it, even with the same number."
        owner = job.fact(LIGHTNING)
        wanted = whole(value) if owner is None or whole(value) not in (None, 1) else None
        steps = wanted or whole(owner and owner.value) or 1
        where = [source, *([owner.source] if owner else []), *(e.source for e in job.said("lightning-owns"))]
        return self.found(message, where, [_fix(job, steps)])

    def _train(self, job: Job, source: Source) -> Iterator[Finding]:
        """Lightning keeps a train batch size; DeepSpeed accepts it where it is the product by chance."""
        numbers, train, owner = effective(job), whole(job.value(TRAIN)), job.fact(LIGHTNING)
        micro, replicas = whole(numbers.micro and numbers.micro.value), numbers.replicas
        steps = whole(owner.value) if owner else (None if job.programs else 1)
        refused = [event for event in job.said("product-assertion") if event.values.get("train") == train]
        message, severity = f"The DeepSpeed config pins train_batch_size {train}", None
        product = micro * steps * replicas if micro and steps and replicas else None
        if train is None:
            return
        if refused:
            values = refused[0].values
            factors = " x ".join(str(values.get(name)) for name in ("micro", "steps", "world"))
            message += f", and DeepSpeed made {factors} of Lightning's numbers."
        elif product is None:
            severity = "warning"
            message += ", which depends on accumulate_grad_batches: DeepSpeed stops as soon as the two do not fit."
        elif product != train:
            message += f", and Lightning's Trainer makes {micro} x {steps} x {replicas} = {product}."
        else:
            severity = "note"
            message += f". It is {micro} x {steps} x {replicas} now, and stops the run when one of these changes."
        where = [source, *([owner.source] if owner else []), *(event.source for event in refused)]
        fit = whole(owner and owner.value) or _quotient(train, micro, replicas) or 1
        text = f"{message} The batch size has to leave the file: the Trainer owns it."
        yield self.found(text, where, [_fix(job, fit)], severity=severity)


def _quotient(train: int, micro: int | None, replicas: int | None) -> int | None:
    """The accumulation that makes the train batch size true."""
    if not micro or not replicas or train % (micro * replicas):
        return None
    return train // (micro * replicas)


def _fix(job: Job, steps: int) -> Fix:
    """Both keys leave the config, and the Trainer says the count."""
    micro = effective(job).micro
    size = whole(micro and micro.value)
    settings = {TRAIN: None, STEPS: None, MICRO: size, LIGHTNING: steps}
    text = f"Remove {TRAIN} and {STEPS} from the DeepSpeed config, and give Trainer(accumulate_grad_batches={steps})."
    return Fix(text, settings)
