"""The numbers are right for the processes launched, but DeepSpeed counted one."""

from __future__ import annotations

from dsaccum_helpers.effective import effective
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.entry import Mismatch
from dsaccum_helpers.mismatches.numbers import fault_named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Event, Job
    from dsaccum_helpers.setting import Setting


class WorldSizeSeenAsOne(Mismatch):
    """Distributed start-up came too late, or the processes do not know of each other."""

    code = "world-size-seen-as-one"
    title = "DeepSpeed counted one process although more were started"
    symptom = "Every process raises the AssertionError, and the equation that it prints ends in * 1."
    cause = "The config was read before the process group existed, or the launcher's variables did not arrive."
    consequence = "Nothing is trained: numbers that are right are refused. Other numbers would train separate copies."
    remedy = "Keep the numbers; call deepspeed.init_distributed() before anything reads the config."
    learn = "notebooks/01_three_numbers.ipynb"
    refused = True
    silences = (
        "batch-product-mismatch",
        "batch-not-divisible",
        "batch-below-world-size",
        "written-for-other-world-size",
        "model-parallel-world",
    )

    def check(self, job: Job) -> Iterable[Finding]:
        """The log multiplies by 1, and train / (micro x accumulation) is the number of processes started."""
        fault = fault_named(self.code, job)
        if fault is None:
            yield from self._init_alone(job)
            return
        started = fault.numbers.processes.value if fault.numbers.processes else fault.fits
        offers = _fixes(job, fault.event)
        message = (
            f"The log's assertion {fault.train} != {fault.micro} x {fault.steps} x 1 multiplies by 1, but {started} "
            f"processes were started, and {fault.micro} x {fault.steps} x {fault.fits} = {fault.train} is right. "
            f"The numbers are not at fault: DeepSpeed read them before it knew of the other processes. "
            f"{offers[0].description}"
        )
        yield self.found(message, fault.where(), offers)

    def _init_alone(self, job: Job) -> Iterator[Finding]:
        """zero.Init's own words: its group has one process, the launcher's variable counts more."""
        started = effective(job).processes
        for event in job.said("init-alone")[:1]:
            launched = event.values["launched"]
            if event.values["world"] != 1 or launched < 2 or (started and started.value == 1):
                continue
            offers = _fixes(job, event)
            message = (
                f"zero.Init found a process group of 1 process, and the launcher's WORLD_SIZE is {launched}: something "
                f"made a group of its own before. Every process would hold the whole model. {offers[0].description}"
            )
            yield self.found(message, [event.source], offers)

    def needs(self, setting: Setting) -> str | None:
        """One process is one."""
        if setting.processes > 1:
            return None
        return "Where one process was started, one is the right count. Smallest fix: processes 2."

    @staticmethod
    def start(config: dict[str, Any]) -> None:
        """Look at the numbers, then let the processes find each other: the wrong way round."""
        import deepspeed

        print(deepspeed.DeepSpeedConfig(config).train_batch_size)
        deepspeed.init_distributed()


def _fixes(job: Job, event: Event | None) -> list[Fix]:
    """The order of start-up, the most likely first; never other numbers."""
    through = " ".join(map(str, (event.values.get("through") or ()) if event else ())).lower()
    order = Fix(
        "Call deepspeed.init_distributed() before zero.Init, from_pretrained, HfDeepSpeedConfig or DeepSpeedConfig "
        "(with a Trainer: make TrainingArguments before the model), so that the group exists when the config is read."
    )
    variables = Fix(
        "Give every process RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT (under mpirun or srun export "
        "them from the scheduler's own), and then call deepspeed.init_distributed()."
    )
    launcher = Fix("Start the script with a launcher that forms the group: deepspeed, torchrun or accelerate launch.")
    offers = [order, launcher, variables]
    if any(launch.launcher in ("mpirun", "srun") for launch in job.launches):
        offers = [variables, order, launcher]
    elif "init" not in through and "from_pretrained" not in through and job.launches and "prepare" not in through:
        offers = [order, variables, launcher]
    if job.version("deepspeed") == "0.9.0":
        offers.insert(0, Fix("Upgrade DeepSpeed: 0.9.0 builds its config before communication is up; 0.9.1 does not."))
    return offers
