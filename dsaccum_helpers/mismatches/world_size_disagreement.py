"""Environment, launcher, scheduler, MPI and process group name different world sizes."""

from __future__ import annotations

from dsaccum_helpers.effective import effective
from dsaccum_helpers.effective.owners import fills_in
from dsaccum_helpers.effective.world import SETS_WORLD_SIZE, by_ranks, whole
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.entry import Mismatch
from dsaccum_helpers.mismatches.numbers import fault_named, listed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job, Source

    Said = tuple[str, int, Source]

#: Variables that count processes. SLURM counts tasks, which are processes only where no launcher starts more in each.
_OF_PROCESSES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_SIZE", "MV2_COMM_WORLD_SIZE")
_OF_TASKS = ("SLURM_NTASKS", "SLURM_NPROCS")
_ON_CPU = (
    "Let the framework see all processes: on a CPU give TrainingArguments(use_cpu=True), or Accelerator an "
    'InitProcessGroupKwargs(backend="gloo"); elsewhere make either before anything else starts a process group.'
)


class WorldSizeDisagreement(Mismatch):
    """Two sources count the processes differently, so that the real batch is one of two."""

    code = "world-size-disagreement"
    title = "The sources of the world size disagree"
    symptom = "MPI world size 16 does not match torch world size 8, a hang at start-up, or a batch of another size."
    cause = "One part of the start (scheduler, MPI, exported variables, launcher, script) counts nodes or old numbers."
    consequence = "The batch is multiplied by one number and gradients are averaged over another, or the start hangs."
    remedy = "Let one launcher set the world size, and remove the other sources."
    learn = "notebooks/01_three_numbers.ipynb"
    not_reproduced = (
        "Nothing is trained that could be measured. Told of 3, two processes wait for the third until the time-out "
        "(DistStoreError: 2/3 clients joined; 30 minutes, unless DEEPSPEED_TIMEOUT says otherwise); told of 1 each, "
        "the second finds the port taken (EADDRINUSE), or trains a copy of its own."
    )
    silences = (
        "batch-product-mismatch",
        "batch-not-divisible",
        "batch-below-world-size",
        "written-for-other-world-size",
        "world-size-seen-as-one",
        "model-parallel-world",
    )

    def check(self, job: Job) -> Iterable[Finding]:
        """All sources that count the same processes, where they do not give one number."""
        yield from self._started_again(job)
        said = list(_said(job))
        if len({number for _, number, _ in said}) < 2 or job.value("generation.processes"):
            return
        sizes = sorted({number for _, number, _ in said})
        numbers = effective(job)
        text = f"The sources of the world size disagree: {listed(f'{name} says {size}' for name, size, _ in said)}."
        if numbers.micro and numbers.steps and numbers.given[0] is None:
            one = numbers.micro.value * numbers.steps.value
            batches = listed((str(one * size // numbers.shared) for size in sizes), "or")
            text += f" With {numbers.micro.value} x {numbers.steps.value} samples from each the batch is {batches}."
        offers = [
            Fix("Let one launcher count: remove variables that are exported by hand, and start as many as it says."),
            *(Fix(f"If {size} processes are meant, make every source say {size}.") for size in sizes),
        ]
        if sizes[0] == 1 and fills_in(job):
            offers.insert(0, Fix(_ON_CPU))
        yield self.found(f"{text} {offers[0].description}", (source for *_, source in said if source.file), offers)

    def _started_again(self, job: Job) -> Iterator[Finding]:
        """A launcher that starts all processes of a node is itself started several times on it."""
        for launch in job.launches[:1]:
            if launch.started > 1 and launch.processes:
                total = launch.started * launch.processes
                text = f"{launch.started} tasks on each node start {launch.launcher}, and each of them starts its "
                text += f"processes again: {total} processes where {launch.processes} are counted."
                fix = Fix(f"Start {launch.launcher} once on each node (--ntasks-per-node=1).")
                yield self.found(text, [launch.source], [fix])


def _said(job: Job) -> Iterator[Said]:
    """Every source that counts the processes of this job."""
    for event in job.said("world-sizes"):
        for name, size in event.values.items():
            if whole(size):
                yield f"{name} in the log", size, event.source
    fault = fault_named("world-size-disagreement", job)
    if fault is not None and fault.event and fault.replicas and fills_in(job):
        name = f"the framework, which makes {fault.train} of {fault.micro} x {fault.steps},"
        yield name, fault.fits or 1, job.config.source("train_batch_size") if job.config else fault.event.source
        yield "the process group in the log's assertion", fault.replicas, fault.event.source
        return
    if fault is not None and fault.event and fault.replicas and fault.numbers.processes:
        yield "the launch", fault.numbers.processes.value, fault.numbers.processes.source
        yield "the process group in the log's assertion", fault.replicas, fault.event.source
        return
    yield from _of_start(job)


def _of_start(job: Job) -> Iterator[Said]:
    """The launch, or the option, and the variables that nothing overwrites."""
    launchers = {launch.launcher for launch in job.launches}
    fact = next((fact for fact in job.all("processes") if whole(fact.value)), None)
    if fact is not None:
        yield "the launch" if job.launches else "the number of processes given", fact.value, fact.source
    if not launchers & {*SETS_WORLD_SIZE}:
        for name in _OF_PROCESSES + _OF_TASKS:
            for variable in job.all(f"environment.{name}")[:1]:
                size = whole(variable.value)
                if size:
                    yield name, size, variable.source
    if fact is not None:
        for event in job.said("started"):
            size = whole(event.values.get("processes"))
            if size and not by_ranks(event):
                yield f"the log ({event.values.get('how', 'start')})", size, event.source
