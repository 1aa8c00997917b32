"""The number that DeepSpeed derives by floor division leaves a remainder."""

from __future__ import annotations

from dsaccum_helpers.batch import KEYS
from dsaccum_helpers.mismatches.entry import Mismatch
from dsaccum_helpers.mismatches.numbers import fault_named, fixes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job
    from dsaccum_helpers.setting import Setting


class BatchNotDivisible(Mismatch):
    """One number is left out, and the division that fills it in does not come out even."""

    code = "batch-not-divisible"
    title = "The train batch size cannot be divided into whole micro-batches for every process"
    symptom = "An AssertionError with numbers of which one was never written: 256 != 2 * 18 * 7."
    cause = (
        "train_batch_size is no multiple of micro-batch (or accumulation steps) x processes; often one was set aside."
    )
    consequence = "Nothing is trained: DeepSpeed rounds the missing number down and then refuses the product."
    remedy = "Take the nearest train_batch_size that divides, or a number of processes that does."
    learn = "notebooks/01_three_numbers.ipynb"
    refused = True

    def check(self, job: Job) -> Iterable[Finding]:
        """train % (micro x processes), or train % (accumulation x processes), is not 0."""
        fault = fault_named(self.code, job)
        if fault is None or fault.error is None:
            return
        offers = fixes(job, fault)
        if fault.numbers.replicas is None and not fault.event:
            key, value = _divisor(fault.micro, fault.steps)
            rest = (fault.train or 0) % value
            text = f"train_batch_size {fault.train} / {key} {value} leaves {rest}, on any number of processes."
        elif fault.wanted:
            unit = (fault.micro or 1) * (fault.replicas or 1)
            text = f"A batch of {fault.wanted} cannot be had: {fault.wanted} / ({fault.micro or 1} x {fault.replicas}) "
            text += f"leaves {fault.wanted % unit}."
        else:
            text = str(fault.error).split(" Smallest fix:")[0]
        yield self.found(f"{text} {offers[0].description}", fault.where(), offers)

    def needs(self, setting: Setting) -> str | None:
        """Every number can be divided by one."""
        if setting.train_micro_batch_size_per_gpu * setting.processes > 1:
            return None
        return (
            "With micro-batch 1 on 1 process every train batch size can be divided. "
            "Smallest fix: train_micro_batch_size_per_gpu 2."
        )

    def config(self, setting: Setting) -> dict[str, Any]:
        """One sample more than the processes can share, and the accumulation steps left to DeepSpeed."""
        config = setting.ds_config() | {"train_batch_size": setting.train_batch_size + 1}
        return {key: value for key, value in config.items() if key != KEYS[2]}


def _divisor(micro: int | None, steps: int | None) -> tuple[str, int]:
    return ("micro-batch", micro) if micro else ("accumulation steps", steps or 1)
