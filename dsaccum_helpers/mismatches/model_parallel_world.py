"""The multiplier is processes / (tensor x pipeline x sequence), not processes."""

from __future__ import annotations

from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.entry import Mismatch
from dsaccum_helpers.mismatches.numbers import fault_named, fixes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job
    from dsaccum_helpers.mismatches.numbers import Fault
    from dsaccum_helpers.setting import Setting


class ModelParallelWorld(Mismatch):
    """Processes that share the same samples are counted as if each had its own."""

    code = "model-parallel-world"
    title = "Processes that share the same samples are counted as replicas"
    symptom = "The AssertionError's last factor is not the number of processes, or something is rounded down to 0."
    cause = "With tensor, pipeline or sequence parallelism several processes work on one sample; only replicas count."
    consequence = "The batch is refused, or smaller than meant by the number of processes that share a sample."
    remedy = "Multiply by processes / (tensor x pipeline x sequence), and hand mpu to everything that reads the config."
    learn = "notebooks/01_three_numbers.ipynb"
    refused = True
    silences = ("batch-product-mismatch", "batch-below-world-size", "written-for-other-world-size")

    def check(self, job: Job) -> Iterable[Finding]:
        """The batch counts all processes, or a config was built without mpu and divided by all of them."""
        fault = fault_named(self.code, job)
        if fault is None:
            return
        if fault.event is not None and fault.error is None:
            yield self.found(_without_mpu(fault), fault.where(), [_PASS_MPU, _AS_ARGUMENTS])
            return
        offers = fixes(job, fault) or [_PASS_MPU]
        where = fault.where() + [fact.source for fact in fault.numbers.parallel.values() if fact.source.file]
        yield self.found(f"{_message(fault)} {offers[0].description}", dict.fromkeys(where), offers)

    def needs(self, setting: Setting) -> str | None:
        """Two processes for each sample."""
        if setting.processes % 2 == 0:
            return None
        return (
            f"{setting.processes} process{'es' * (setting.processes > 1)} cannot share every sample in pairs. "
            f"Smallest fix: processes {setting.processes + 1}."
        )

    def config(self, setting: Setting) -> dict[str, Any]:
        """Two processes share each sequence, and the train batch still counts every process."""
        return setting.ds_config() | {"sequence_parallel_size": 2}


_PASS_MPU = Fix(
    "Hand the mpu object to everything that reads the config: deepspeed.initialize(mpu=...), zero.Init(mpu=...) and "
    "deepspeed.checkpointing.configure."
)
_AS_ARGUMENTS = Fix(
    "Call deepspeed.checkpointing.configure(mpu, partition_activations=..., num_checkpoints=...) without "
    "deepspeed_config: then no second config is built."
)


def _sizes(fault: Fault) -> str:
    return " x ".join(f"{name} {fact.value}" for name, fact in fault.numbers.parallel.items())


def _message(fault: Fault) -> str:
    """What is shared, how many replicas remain, and the product."""
    numbers = fault.numbers
    launched = numbers.processes.value if numbers.processes else None
    if launched is None or numbers.replicas is None or not numbers.parallel:
        return str(fault.error).split(" Smallest fix:")[0]
    share = f"{launched} processes / {numbers.shared} ({_sizes(fault)}) = {numbers.replicas} data-parallel replicas"
    if fault.wanted:
        text = f"Wanted is a batch of {fault.wanted}, which counts all {launched} processes; but {share}, and the job "
        return f"{text}will use {fault.micro} x {fault.steps} x {numbers.replicas} = {fault.train}."
    right = (fault.micro or 1) * (fault.steps or 1) * numbers.replicas
    return (
        f"train_batch_size {fault.train} = {fault.micro} x {fault.steps} x {launched} counts all processes; but "
        f"{share}, and {fault.micro} x {fault.steps} x {numbers.replicas} = {right}."
    )


def _without_mpu(fault: Fault) -> str:
    """The numbers are right, and the assertion of the log comes from a config that counted every process."""
    numbers = fault.numbers
    if numbers.processes is None or numbers.replicas is None or fault.train is None or not numbers.parallel:
        return (
            "A second config was built without mpu (deepspeed.checkpointing.configure reads the file again), and "
            f"divided by all processes instead of by the data-parallel replicas. {_PASS_MPU.description}"
        )
    launched, micro = numbers.processes.value, fault.micro or 1
    steps = numbers.steps.value if numbers.steps else 1
    what = f"divided by all {launched} processes: {fault.train} // {micro} // {launched} = 0"
    if fault.event is not None and fault.event.kind == "product-assertion":
        what = f"multiplied by all {launched} processes"
    return (
        f"{launched} processes / {numbers.shared} ({_sizes(fault)}) = {numbers.replicas} data-parallel replicas, and "
        f"{micro} x {steps} x {numbers.replicas} = {fault.train} is right; but a config that was built without mpu "
        f"{what}. {_PASS_MPU.description}"
    )
