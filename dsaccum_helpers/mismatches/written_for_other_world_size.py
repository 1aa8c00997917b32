"""The three numbers are right, for another number of processes."""

from __future__ import annotations

from dsaccum_helpers.mismatches.entry import Mismatch
from dsaccum_helpers.mismatches.numbers import fault_named, fixes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job
    from dsaccum_helpers.setting import Setting


class WrittenForOtherWorldSize(Mismatch):
    """A config that was right on the machine it was written for."""

    code = "written-for-other-world-size"
    title = "The numbers are right for another number of processes"
    symptom = "deepspeed.initialize raises an AssertionError; the same file works on another machine."
    cause = "The config was written for another number of processes than now runs it."
    consequence = "Nothing is trained: the engine refuses the configuration."
    remedy = "Start as many processes as the file was written for, or change accumulation steps or train batch to fit."
    learn = "notebooks/01_three_numbers.ipynb"
    refused = True

    def check(self, job: Job) -> Iterable[Finding]:
        """train / (micro x accumulation) is a whole number of processes, but not the one that runs."""
        fault = fault_named(self.code, job)
        if fault is None or fault.train is None or fault.micro is None or fault.steps is None:
            return
        one = fault.micro * fault.steps
        what = "data-parallel replicas" if fault.numbers.shared > 1 else "processes"
        counted = f"DeepSpeed counted {fault.replicas}" if fault.event else f"the job has {fault.replicas}"
        offers = fixes(job, fault)
        remedy = f" {offers[0].description}" if offers else ""
        message = (
            f"train_batch_size {fault.train} is not {fault.micro} x {fault.steps} x {fault.replicas} = "
            f"{one * (fault.replicas or 1)}; {fault.train} / ({fault.micro} x {fault.steps}) = {fault.fits}, so these "
            f"numbers were written for {fault.fits} {what}, and {counted}.{remedy}"
        )
        yield self.found(message, fault.where(), offers)

    def config(self, setting: Setting) -> dict[str, Any]:
        """The same micro-batch and accumulation, multiplied out for twice the processes."""
        return setting.ds_config() | {"train_batch_size": 2 * setting.train_batch_size}
