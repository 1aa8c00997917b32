"""The train batch is smaller than one micro-batch on every process, so something rounds to 0."""

from __future__ import annotations

from math import prod

from dsaccum_helpers.batch import KEYS
from dsaccum_helpers.mismatches.entry import Mismatch
from dsaccum_helpers.mismatches.layers import counted
from dsaccum_helpers.mismatches.numbers import fault_named, fixes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from dsaccum_helpers.findings import Finding, Fix
    from dsaccum_helpers.job import Job
    from dsaccum_helpers.mismatches.numbers import Fault
    from dsaccum_helpers.setting import Setting


class BatchBelowWorldSize(Mismatch):
    """Fewer samples than replicas, or than micro-batch x replicas."""

    code = "batch-below-world-size"
    title = "The train batch size is too small for this many processes"
    symptom = "AssertionError: Gradient accumulation steps (or Micro batch size per gpu): 0 has to be greater than 0."
    cause = "Every process reads at least one micro-batch per optimizer step; ZeRO splits weights, not samples."
    consequence = "Nothing is trained: DeepSpeed rounds the missing number down to 0 and refuses it."
    remedy = "Use at least micro-batch x processes as train_batch_size, or start fewer processes."
    learn = "notebooks/01_three_numbers.ipynb"
    refused = True

    def check(self, job: Job) -> Iterable[Finding]:
        """train < micro x replicas, with the accumulation or the micro-batch to be derived."""
        fault = fault_named(self.code, job)
        if fault is None:
            return
        offers = fixes(job, fault)
        yield self.found(_message(fault, offers), fault.where(), offers)

    def needs(self, setting: Setting) -> str | None:
        """One sample on one process cannot be undercut."""
        if setting.train_micro_batch_size_per_gpu * setting.processes > 1:
            return None
        return "With micro-batch 1 on 1 process no train batch size is too small. Smallest fix: processes 2."

    def config(self, setting: Setting) -> dict[str, Any]:
        """One sample less than a micro-batch for every process, and the accumulation steps left to DeepSpeed."""
        smallest = setting.train_micro_batch_size_per_gpu * setting.processes
        config = setting.ds_config() | {"train_batch_size": smallest - 1}
        return {key: value for key, value in config.items() if key != KEYS[2]}


def _message(fault: Fault, offers: list[Fix]) -> str:
    """The numbers as far as they are known, and the smallest batch."""
    batch, micro, replicas = fault.wanted or fault.train, fault.micro, fault.replicas
    remedy = f" {offers[0].description}" if offers else ""
    what = "data-parallel replicas" if fault.numbers.shared > 1 else "processes"
    if batch and replicas:
        steps = fault.steps if fault.wanted is None and not micro else None
        factors = [micro or 1, *([steps] if steps else []), replicas]
        smallest, of = prod(factors), f"{counted(steps, 'micro-batch')} of " if steps else ""
        return (
            f"A train batch of {batch} is smaller than {' x '.join(map(str, factors))} = {smallest}: {replicas} {what} "
            f"with {of}{counted(micro or 1, 'sample')} each. The smallest batch that works is {smallest}.{remedy}"
        )
    key = fault.event.values.get("key") if fault.event else "gradient_accumulation_steps"
    known = f" train_batch_size is {batch}." if batch else ""
    return (
        f"DeepSpeed rounds {key} down to 0, so train_batch_size is smaller than micro-batch x processes.{known} "
        f"The smallest batch is micro-batch x processes{f' = {micro} x processes' if micro else ''}: "
        f"raise train_batch_size to it, or start fewer processes.{remedy}"
    )
