"""Job in, report out: asks every mismatch of the catalogue, and says what one cause explains only once."""

from __future__ import annotations

import os

from dsaccum_helpers.batch import SIZES
from dsaccum_helpers.effective import effective
from dsaccum_helpers.findings import SEVERITIES, Report
from dsaccum_helpers.job import Fact, Job, JobError, Source
from dsaccum_helpers.mismatches import GROUPS, find, load

#: Log events that belong to the number of processes with which that job ran.
OF_THE_WORLD = (
    *("product-assertion", "positive-assertion", "zero-division", "world-sizes", "started", "engine-world"),
    *("init-alone", "checkpoint-world", "trainer-disagrees", "training-summary"),
)

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.mend.repair import Repair

__all__ = ["at_worlds", "check", "diagnose", "mend_files", "read_job"]


def check(*paths: Any, select: Sequence[str] = (), ignore: Sequence[str] = (), **options: Any) -> Report:
    """Read what there is of one training job and say whether its batch and accumulation settings agree.

    ``paths``: files as for ``dsaccum check``; or a dict, which is taken as a DeepSpeed config. ``options``: those of
    ``read_job``. ``select``, ``ignore``: codes of the catalogue. Raises ``JobError`` for an unreadable file or an
    option that is off, ``UnknownMismatchError`` for a code that is none.

    >>> check({"train_batch_size": 64, "gradient_accumulation_steps": 4}, processes=2).verdict
    'ok'
    """
    return diagnose(read_job(*paths, **options), select, ignore)


def mend_files(
    *paths: Any, prefer: Sequence[str] = (), select: Sequence[str] = (), ignore: Sequence[str] = (), **options: Any
) -> Repair:
    """The files of a job as ``dsaccum check --fix`` would mend them, and the report of the mended job.

    Nothing is written; ``texts`` of what is returned holds the new texts. Takes and raises what ``check`` does.
    ``prefer``: descriptions of fixes that are tried before the first one of their finding.
    """
    from dsaccum_helpers.mend.repair import repair_files

    def judged(job: Job) -> Report:
        report = diagnose(job, select, ignore)
        for finding in report.findings:
            finding.fixes.sort(key=lambda fix: fix.description not in prefer)
        return report

    return repair_files(read_job(*paths, **options), paths, lambda again: read_job(*again, **options), judged)


def read_job(
    *paths: Any,
    framework: str | None = None,
    processes: int | None = None,
    tensor_parallel: int | None = None,
    pipeline_parallel: int | None = None,
    sequence_parallel: int | None = None,
    have: dict[str, str] | None = None,
    set: dict[str, Any] | None = None,
) -> Job:
    """The Job that the files and options describe; the options are those of ``dsaccum check``."""
    from dsaccum_helpers.readers import read

    job = Job(framework=framework)
    for name, version in (have or {}).items():
        job.have(name, version)
    sizes = {
        "processes": processes,
        "tensor_parallel": tensor_parallel,
        "pipeline_parallel": pipeline_parallel,
        "sequence_parallel": sequence_parallel,
    }
    # Said before anything is read, because a script may count with them; and after it, because an option counts alone.
    _say_sizes(job, sizes)
    read(paths, job)
    _say_sizes(job, sizes)
    _look_up_keys(job)
    for name, value in (set or {}).items():
        job.set(name, value)
    return job


def _look_up_keys(job: Job) -> None:
    """A key that the table does not have may be one of the DeepSpeed that is installed here."""
    from dsaccum_helpers.known_keys import TOP_LEVEL, VERSION

    if any(key not in TOP_LEVEL for config in job.configs for key in config.values):
        from dsaccum_helpers.installed_keys import newer_keys

        job.installed_keys = newer_keys(VERSION)


def _say_sizes(job: Job, sizes: dict[str, int | None]) -> None:
    for name, size in sizes.items():
        if size is not None:
            job.set(name, size)
            job.facts[name] = [Fact(size, Source(f"--{name.replace('_', '-')}", key=name))]


def diagnose(job: Job, select: Sequence[str] = (), ignore: Sequence[str] = ()) -> Report:
    """What the catalogue says of a job; several configs of which none is named by anything are a job each."""
    for code in (*select, *ignore):
        find(code)
    report = _one_job(job, select, ignore)
    for config in job.rivals():
        other = _one_job(job.with_config(config), select, ignore)
        report.findings = sorted(report.findings + other.findings, key=lambda f: SEVERITIES.index(f.severity))
        report.faults += other.faults
    return report


def _one_job(job: Job, select: Sequence[str], ignore: Sequence[str]) -> Report:
    faults: list[str] = []
    found = [finding for code in _codes(job) for finding in _asked(code, job, faults)]
    # What is left out by hand neither stands for others nor leaves its consequences behind.
    found = [finding for finding in found if finding.code not in ignore and not _ignored(job, finding)]
    wanted = [finding for finding in _without_repetition(found) if not select or finding.code in select]
    numbers = effective(job)
    report = Report(wanted, numbers.batch(), numbers.sources(), numbers.missing, framework=job.framework)
    report.faults = faults
    if job.programs and report.verdict != "mismatch":
        from dsaccum_helpers.mismatches.reasons import reasons

        report.reasons = reasons(job)
    return report


def _asked(code: str, job: Job, faults: list[str]) -> list[Finding]:
    """The findings of one entry. A fault of the entry itself is noted and costs the report nothing else."""
    try:
        return list(load(code).check(job))
    except Exception as error:  # whatever a rule overlooks: the other 43 have something to say
        if os.environ.get("DSACCUM_DEBUG"):
            raise
        faults.append(f"{code} could not be asked ({type(error).__name__}: {error!s:.200})")
        return []


def _codes(job: Job) -> Iterable[str]:
    """The codes for which the job has evidence, in the order of the catalogue."""
    there = {
        "config": bool(job.configs or job.unreadable),
        "log": bool(job.events),
        "script": bool(job.programs),
        "versions": bool(job.versions),
        "processes": bool(job.launches),
        # How many processes there are is asked of every job: it alone is no reason to load two dozen rules.
        "facts": bool(job.facts.keys() - {*SIZES} or job.speakers),
    }
    for group in GROUPS.values():
        for code, evidence in group.items():
            if any(there[kind] for kind in evidence.split()):
                yield code


def _ignored(job: Job, finding: Finding) -> bool:
    """Does a line of the finding carry ``# dsaccum: ignore`` for its code?"""
    for source in finding.where:
        codes = job.ignored.get((source.file, source.line))
        if codes is not None and (not codes or finding.code in codes):
            return True
    return False


def _silenced(finding: Finding) -> tuple[str, ...]:
    """The codes that this finding makes superfluous: its own list where it has one, else that of its entry."""
    return load(finding.code).silences if finding.silences is None else finding.silences


def _without_repetition(found: list[Finding]) -> list[Finding]:
    """Most important first; what another finding says better is left out, what it causes stands under it."""
    silent = {code for finding in found for code in _silenced(finding) if code != finding.code}
    kept = [f for f in found if f.code not in silent]
    faults = {finding.code for finding in kept if finding.severity != "note"}
    kept = [f for f in kept if not load(f.code).beside or faults & {*load(f.code).beside}]
    order = {code: place for place, code in enumerate(code for group in GROUPS.values() for code in group)}
    kept.sort(key=lambda f: (SEVERITIES.index(f.severity), load(f.code).rank, order[f.code]))
    causes: dict[str, str] = {}
    for cause in dict.fromkeys(finding.code for finding in kept):
        for code in load(cause).explains:
            causes.setdefault(code, cause)
    for finding in kept:
        finding.because_of = causes.get(finding.code)
    return kept


def at_worlds(job: Job, sizes: Iterable[int], **options: Any) -> dict[int, Report]:
    """The same job on several numbers of processes."""
    reports: dict[int, Report] = {}
    launched = job.facts.get("processes")
    for size in sizes:
        if size < 1:
            raise JobError(f"--for {size}: a number of processes is a positive integer. Smallest fix: --for 4,8.")
        other = job.with_config(job.config)
        other.facts = {**job.facts, "processes": [Fact(size, Source("--for", key="processes"))]}
        if not launched or launched[0].value != size:
            # What a log says of the world that ran is no evidence about another one.
            other.events = [event for event in job.events if event.kind not in OF_THE_WORLD]
        reports[size] = diagnose(other, **options)
    return reports
