"""What the job will really use: which owner of each batch number wins, framework by framework (pure).

::

    world.py     how many processes there are, and how many of them share the same samples
    owners.py    the three numbers that the engine is given
    fault.py     what is wrong with them: one name, by the evidence that is there
    versions.py  is the installed package older than one in which something changed
"""

from __future__ import annotations

from dsaccum_helpers.batch import KEYS, BatchError, resolve_batch
from dsaccum_helpers.effective.owners import ACCUMULATION, PER_DEVICE, TRAINERS, fills_in, given
from dsaccum_helpers.effective.world import parallel, processes, shared, whole
from dsaccum_helpers.job import Fact, Source

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import Any

    from dsaccum_helpers.job import Job

__all__ = ["Effective", "effective"]

_ASK_PROCESSES = "How many processes? Give --processes N or the launch command."


class Effective:
    """The numbers that the engine will see.

    ``processes``: Fact, or None where nobody says. ``parallel``: the sizes above 1 that divide them, name to Fact.
    ``replicas``: the data-parallel size, None where it is not known.
    ``given``: (train, micro, steps) as the engine is given them after trainers have filled in theirs: None for a
    number that it derives, a Fact with the value None for one that is not known.
    ``train``, ``micro``, ``steps``: Facts with what the engine then uses; None for a number that cannot be known.
    ``error``: the BatchError that these numbers raise. ``missing``: sentences that say which fact is needed to decide
    and how to get it.
    """

    def __init__(self, job: Job) -> None:
        self.processes: Fact | None = processes(job)
        self.parallel: dict[str, Fact] = parallel(job)
        self.error: BatchError | None = None
        self.missing: list[str] = []
        self.replicas = self._replicas(job)
        self.given = given(job, self.replicas if self.processes else None)
        self.train, self.micro, self.steps = (self._whole(fact) for fact in self.given)
        if self._known():
            self._resolve()
        self._ask(job)

    @property
    def shared(self) -> int:
        """How many processes work on the same samples."""
        return shared(self.parallel)

    def _replicas(self, job: Job) -> int | None:
        """The processes divided by those that share samples; where nobody says, what an assertion of the log counts."""
        if self.processes is not None:
            replicas, rest = divmod(self.processes.value, self.shared)
            return None if rest else replicas
        for event in job.said("product-assertion"):
            # A trainer that multiplied the batch out saw other processes than the assertion counts.
            world = event.values.get("world")
            return None if fills_in(job) else whole(int(world) if isinstance(world, float) and world >= 1 else world)
        return None

    @staticmethod
    def _whole(fact: Fact | None) -> Fact | None:
        return Fact(whole(fact.value), fact.source) if fact and whole(fact.value) else None

    def _known(self) -> bool:
        """Is every number that is given known, and at least one that fixes the batch?"""
        return bool(self.given[0] or self.given[1]) and all(f is None or f.value is not None for f in self.given)

    def _resolve(self) -> None:
        """Derive what is not given, or keep the error that the numbers raise."""
        world = self.processes.value if self.processes else self.replicas or 1
        sizes: dict[str, Any] = {name: fact.value for name, fact in self.parallel.items()} if self.processes else {}
        values: dict[str, Any] = {key: fact and fact.value for key, fact in zip(KEYS, self.given, strict=True)}
        try:
            batch = resolve_batch(**values, world_size=world, **sizes)
        except BatchError as error:
            self.error = None if self._fits_somewhere(error) else error
            return
        if self.replicas is None:
            # Without a number of processes only what does not depend on it is known.
            if self.given[2] is None and self.given[0] is None:
                self.steps = Fact(1, None)
            return
        found = (Fact(number, fact and fact.source) for number, fact in zip(batch[:3], self.given, strict=True))
        self.train, self.micro, self.steps = found

    def _fits_somewhere(self, error: BatchError) -> bool:
        """Are the numbers refused only for the one process that stands in for an unknown number of them?"""
        return self.replicas is None and self.processes is None and error.code == "written-for-other-world-size"

    def _ask(self, job: Job) -> None:
        """Say what is missing."""
        for program in job.programs:
            if program.cut:
                place = f"{program.cut.file} line {program.cut.line}"
                text = f"What comes after {place}? That is too much to follow: give only the part that trains."
                self.missing.append(text)
        if self.replicas is None and self.processes is None and (job.config or any(self.given)):
            self.missing.append(_ASK_PROCESSES)
        unknown = [key for key, fact in zip(KEYS, self.given, strict=True) if fact and fact.value is None]
        if KEYS[1] in unknown and job.framework in ("accelerate", "lightning"):
            self.missing.append(
                "How many samples does the loader give at once? Give --set loader.batch_size=N or the training script."
            )
        elif job.framework in TRAINERS:
            names = [dict(zip(KEYS[1:], (PER_DEVICE, ACCUMULATION), strict=True)).get(key, key) for key in unknown]
            self.missing += [f"What is {name}? It is filled in elsewhere: give --set {name}=N." for name in names]
        else:
            self.missing += [f"What is {key}? Only the running job knows it: give --set {key}=N." for key in unknown]
        if not any(self.given) and job.framework not in ("accelerate", "lightning"):
            what = "training arguments" if job.framework in TRAINERS else "DeepSpeed config"
            if job.config is None and not job.unreadable:
                self.missing.append(f"Which batch numbers? Give the {what}, or --set train_micro_batch_size_per_gpu=N.")

    def batch(self) -> dict[str, int | None]:
        """As in the report."""
        facts = dict(zip(KEYS, (self.train, self.micro, self.steps), strict=True))
        known = {key: fact.value if fact else None for key, fact in facts.items()}
        return {**known, "data_parallel_size": self.replicas}

    def sources(self) -> dict[str, str]:
        """Number to ``file:line``; ``given`` for what was handed over in Python."""
        facts = dict(zip(KEYS, (self.train, self.micro, self.steps), strict=True))
        facts["data_parallel_size"] = self.processes if self.replicas else None
        return {key: place(fact.source) for key, fact in facts.items() if fact and fact.source}


def place(source: Source) -> str:
    """``file:line``, the file alone, or ``given`` where there is none."""
    if not source.file:
        return "given"
    return f"{source.file}:{source.line}" if source.line else str(source.file)


def effective(job: Job) -> Effective:
    """The Effective of a job; worked out anew at each call, so a job may change in between."""
    return Effective(job)
