"""train_batch_size is not micro-batch × accumulation steps × processes."""

from __future__ import annotations

from dsaccum_helpers.mismatches.entry import Mismatch
from dsaccum_helpers.mismatches.numbers import fault_named, fixes, product

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job
    from dsaccum_helpers.mismatches.numbers import Fault
    from dsaccum_helpers.setting import Setting


class BatchProductMismatch(Mismatch):
    """All three numbers are given, and their product is another one."""

    code = "batch-product-mismatch"
    title = "The three numbers do not multiply to the train batch size"
    symptom = "deepspeed.initialize raises an AssertionError that prints the two sides of the equation."
    cause = "One number was changed by hand and the two others were left as they were."
    consequence = "Nothing is trained: the engine refuses the configuration."
    remedy = "Leave one of the three numbers out: DeepSpeed derives it. Or set train_batch_size to the product."
    learn = "notebooks/01_three_numbers.ipynb"
    refused = True

    def check(self, job: Job) -> Iterable[Finding]:
        """The equation does not hold, and for no number of processes would it; or another batch than the wanted one."""
        fault = fault_named(self.code, job)
        if fault is None:
            return
        offers = fixes(job, fault)
        if fault.wanted:
            yield self.found(_not_wanted(fault, offers[0].description), fault.where(), offers, consequence=_OTHER)
        else:
            yield self.found(f"{_equation(fault)} {offers[0].description}", fault.where(), offers)

    def needs(self, setting: Setting) -> str | None:
        """With micro-batch 1 and accumulation 1 every train batch size fits some number of processes."""
        if setting.train_micro_batch_size_per_gpu * setting.gradient_accumulation_steps > 1:
            return None
        return (
            "With micro-batch 1 and accumulation 1 every train batch size is right for some number of processes. "
            "Smallest fix: gradient_accumulation_steps 2."
        )

    def config(self, setting: Setting) -> dict[str, Any]:
        """One sample too many: no number of processes makes that product whole."""
        return setting.ds_config() | {"train_batch_size": setting.train_batch_size + 1}


_OTHER = "Training runs with another batch than the wanted one: learning rate and schedule were not meant for it."


def _equation(fault: Fault) -> str:
    """The two sides, and why no number of processes mends them."""
    one = fault.micro * fault.steps  # type: ignore[operator]
    sides = f"{fault.micro} x {fault.steps}"
    text = f"train_batch_size {fault.train} is not a multiple of {sides} = {one}"
    if fault.replicas:
        text = f"train_batch_size {fault.train} is not {sides} x {fault.replicas} = {one * fault.replicas}"
    seen = " (the log's assertion)" if fault.event else ""
    rest = fault.train % one  # type: ignore[operator]
    return f"{text}{seen}; {fault.train} / ({sides}) leaves {rest}, so no whole number of processes fits."


def _not_wanted(fault: Fault, remedy: str) -> str:
    used = {"train_batch_size": fault.train, "train_micro_batch_size_per_gpu": fault.micro}
    used["gradient_accumulation_steps"] = fault.steps
    return f"Wanted is a batch of {fault.wanted}; the job will use {product(used, fault.replicas)}. {remedy}"
