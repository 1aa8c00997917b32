"""Which version of a package the job has, against those in which something changed (pure)."""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from dsaccum_helpers.job import Job


def older(job: Job, package: str, version: str) -> bool | None:
    """Is the installed package older than this version? None where nobody says which one is installed."""
    known = job.version(package)
    if known is None:
        return None
    from packaging.version import InvalidVersion, Version

    try:
        return Version(known).release < Version(version).release
    except InvalidVersion:
        return None
