"""What the job will really use: which owner of each batch number wins, framework by framework (pure)."""

from __future__ import annotations

from dsaccum_helpers.batch import KEYS, BatchError, resolve_batch
from dsaccum_helpers.job import Fact

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from dsaccum_helpers.job import Job


class Effective:
    """The numbers that the engine will see.

    ``processes``: Fact, or None where nobody says. ``replicas``: the data-parallel size, None where it is not known.
    ``train``, ``micro``, ``steps``: Facts with what the engine is given after trainers have filled in theirs, or what
    it then derives; None for a number that cannot be known. ``error``: the BatchError that these numbers raise.
    ``missing``: sentences that say which fact is needed to decide and how to get it.
    """

    def __init__(self, job: Job) -> None:
        self.processes: Fact | None = job.fact("processes")
        self.replicas: int | None = None
        self.train, self.micro, self.steps = (job.fact(key) for key in KEYS)
        self.error: BatchError | None = None
        self.missing: list[str] = []
        try:
            batch = resolve_batch(
                *(fact and fact.value for fact in (self.train, self.micro, self.steps)),
                world_size=self.processes.value if self.processes else 1,
            )
            self.replicas = batch.data_parallel_size
            self.train, self.micro, self.steps = (
                Fact(n, f and f.source) for n, f in zip(batch[:3], (self.train, self.micro, self.steps), strict=True)
            )
        except BatchError as error:
            self.error = error

    def batch(self) -> dict[str, int | None]:
        """As in the report."""
        facts = dict(zip(KEYS, (self.train, self.micro, self.steps), strict=True))
        known = {key: fact.value if fact else None for key, fact in facts.items()}
        return {**known, "data_parallel_size": self.replicas}

    def sources(self) -> dict[str, str]:
        """Number to ``file:line``."""
        facts = dict(zip(KEYS, (self.train, self.micro, self.steps), strict=True))
        return {
            key: f"{fact.source.file}:{fact.source.line}" if fact.source.line else str(fact.source.file)
            for key, fact in facts.items()
            if fact and fact.source and fact.source.file
        }


def effective(job: Job) -> Effective:
    """The Effective of a job; worked out anew at each call, so a job may change in between."""
    return Effective(job)
