"""How many processes a job has, and how many of them see different samples (pure)."""

from __future__ import annotations

from dsaccum_helpers.job import Fact

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import Any

    from dsaccum_helpers.job import Event, Job

PARALLEL = ("tensor_parallel", "pipeline_parallel", "sequence_parallel")
#: Keys of configs that say the same; the first is DeepSpeed's, the others are GPT-NeoX's.
_PARALLEL_KEYS = {
    "sequence_parallel": ("sequence_parallel_size",),
    "tensor_parallel": ("model_parallel_size", "model-parallel-size"),
    "pipeline_parallel": ("pipe_parallel_size", "pipe-parallel-size"),
}
#: Launchers that set WORLD_SIZE for the processes they start, whatever the shell has exported.
SETS_WORLD_SIZE = ("deepspeed", "torchrun", "accelerate")


def whole(value: Any) -> int | None:
    """The value as a positive integer: 8, "8" (an environment variable), None for all else."""
    if isinstance(value, str) and value.strip().isdecimal() and len(value) < 10:
        value = int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def processes(job: Job) -> Fact | None:
    """How many training processes the job is launched with, by the first source that says a number."""
    for fact in job.all("processes"):
        if whole(fact.value):
            return fact
    for launch in job.launches:
        if launch.processes:
            return Fact(launch.processes, launch.source)
    for event in job.said("started"):
        if whole(event.values.get("processes")) and not by_ranks(event):
            return Fact(event.values["processes"], event.source)
    for event in job.said("engine-world"):
        replicas = event.values.get("replicas")
        return Fact(replicas * shared(parallel(job)) if replicas else event.values["processes"], event.source)
    if not any(launch.launcher in SETS_WORLD_SIZE for launch in job.launches):
        for fact in job.all("environment.WORLD_SIZE"):
            if whole(fact.value):
                return Fact(whole(fact.value), fact.source)
    return None


def by_ranks(event: Event) -> bool:
    """Is the count of this ``started`` event only the highest rank seen, so that there may be more processes?"""
    return "rank" in str(event.values.get("how", "")).lower()


def at_least(job: Job) -> int:
    """A lower bound for the processes that were started, from the ranks that a log shows; 1 where none are seen."""
    return max((whole(event.values.get("processes")) or 1 for event in job.said("started")), default=1)


def shared(sizes: dict[str, Fact]) -> int:
    """How many processes work on the same samples, by the sizes of ``parallel``."""
    product = 1
    for fact in sizes.values():
        product *= fact.value
    return product


def parallel(job: Job) -> dict[str, Fact]:
    """The sizes above 1 that make processes share the same samples."""
    found: dict[str, Fact] = {}
    for name in PARALLEL:
        fact = job.fact(name)
        if fact is None and job.config is not None:
            keys = [key for key in _PARALLEL_KEYS[name] if job.config.has(key)]
            fact = Fact(job.config.get(keys[0]), job.config.source(keys[0])) if keys else None
        if fact is not None and (whole(fact.value) or 1) > 1:
            found[name] = Fact(whole(fact.value), fact.source)
    return found
