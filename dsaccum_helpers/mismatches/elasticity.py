"""An ``elasticity`` block: refused by new versions, in charge of the batch in old ones."""

from __future__ import annotations

import math

from dsaccum_helpers.batch import KEYS
from dsaccum_helpers.effective import effective
from dsaccum_helpers.effective.versions import older
from dsaccum_helpers.effective.world import whole
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.entry import Mismatch
from dsaccum_helpers.mismatches.numbers import listed, product

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Config, Job
    from dsaccum_helpers.setting import Setting

_REMOVED = "0.19.8"  # DeepSpeed PR 8563; 0.19.7 still has the block (both read in their sources)


class Elasticity(Mismatch):
    """The block chooses train batch, micro-batch and accumulation by itself, or is refused."""

    code = "elasticity"
    title = "An elasticity block decides the batch, or stops the job"
    symptom = "DeepSpeedConfigError: Elastic training has been removed; or batch numbers that nobody wrote."
    cause = "The config holds an elasticity block, of a feature that was removed in DeepSpeed 0.19.8."
    consequence = "New versions refuse the config; old ones replace the three batch numbers by those that they compute."
    remedy = "Remove the block and write the three batch numbers."
    learn = "notebooks/01_three_numbers.ipynb"
    refused = True
    silences = (
        "batch-product-mismatch",
        "batch-not-divisible",
        "batch-below-world-size",
        "written-for-other-world-size",
        "model-parallel-world",
        "batch-value-type",
        "accumulation-key-missing",
    )

    def check(self, job: Job) -> Iterable[Finding]:
        """The block is there, or the log refuses it."""
        config = job.config
        if config is None or not config.has("elasticity"):
            for event in job.said("elasticity"):
                if config is None:
                    words = str(event.values.get("words", ""))[:200]
                    yield self.found(f"The log says: {words} Remove the elasticity block.", [event.source], [_REMOVE])
            return
        block = config.get("elasticity")
        block = block if isinstance(block, dict) else {}
        enabled, version = block.get("enabled", False) is True, job.version("deepspeed")
        where = [config.source("elasticity"), *(event.source for event in job.said("elasticity"))]
        fix = Fix(*_without_block(job, block))
        if older(job, "deepspeed", _REMOVED):
            if enabled:
                severity, text = _overrides(job, config, block)
                yield self.found(f"{text} {fix.description}", where, [fix], severity=severity)
            return
        known = f"DeepSpeed {version}" if version else f"DeepSpeed {_REMOVED} and newer"
        off = "" if enabled else ", although it is switched off"
        text = f"{known} refuses a config with an elasticity block{off}: elastic training was removed."
        severity = "error" if enabled or version else "warning"
        yield self.found(f"{text} {fix.description}", where, [fix], severity=severity)

    def config(self, setting: Setting) -> dict[str, Any]:
        """The right numbers, and a block that would have found others for another number of processes."""
        sizes = {"micro_batch_sizes": [setting.train_micro_batch_size_per_gpu]}
        block = {"enabled": True, "max_train_batch_size": setting.train_batch_size, **sizes}
        return setting.ds_config() | {"elasticity": block}


_REMOVE = Fix("Remove the elasticity block and write the three batch numbers.")


def _without_block(job: Job, block: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Remove the block; the batch that the three keys give then, or the largest that the block allows."""
    numbers = effective(job)
    replicas = numbers.replicas
    train, micro, steps = (fact and fact.value for fact in (numbers.train, numbers.micro, numbers.steps))
    if numbers.error is not None or micro is None:
        sizes = block.get("micro_batch_sizes")
        sizes = [size for size in sizes if whole(size)] if isinstance(sizes, list) else []
        most = whole(block.get("max_train_batch_size")) or 0
        fits = [size for size in sizes if size * (replicas or 1) <= most]
        micro = max(fits, default=min(sizes, default=1))
        steps = max(most // (micro * (replicas or 1)), 1)
        train = None
    steps = steps or 1
    setting = dict(zip(KEYS, (train or (micro * steps * replicas if replicas else None), micro, steps), strict=True))
    equation = f": {product(setting, replicas)}" if setting[KEYS[0]] and replicas else ""
    text = f"Remove the block and write {KEYS[1]} {micro} and {KEYS[2]} {steps}{equation}."
    return text, {"elasticity": None, **setting}


def _overrides(job: Job, config: Config, block: dict[str, Any]) -> tuple[str, str]:
    """What an old version makes of an enabled block."""
    present = [key for key in KEYS if config.has(key)]
    if present and block.get("ignore_non_elastic_batch_info") is not True:
        return "error", f"This DeepSpeed refuses {', '.join(present)} beside an enabled elasticity block."
    sizes, most = block.get("micro_batch_sizes"), whole(block.get("max_train_batch_size"))
    if most and isinstance(sizes, list) and sizes and all(whole(size) for size in sizes):
        common = math.lcm(*sizes)
        if common > most:
            text = f"The least common multiple of micro_batch_sizes {listed(sizes)} is {common}, above "
            return "error", f"{text}max_train_batch_size {most}, and this DeepSpeed takes it all the same."
    numbers = effective(job)
    if numbers.shared > 1:
        launched = numbers.processes.value if numbers.processes else "all"
        text = f"An enabled elasticity block decides the batch and divides it by {launched} processes, although "
        return "error", f"{text}{numbers.shared} of them share the same samples."
    text = "An enabled elasticity block decides the batch"
    return "warning", f"{text} and replaces {', '.join(present)}." if present else f"{text}: no batch key is used."
