"""Readers: files in, facts with their sources out. One reader a kind of evidence; none knows a mismatch.

A file is recognised by what is in it, not only by its name. Each reader loads when a file needs it.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from dsaccum_helpers.job import Job


def read(paths: Iterable[Any], job: Job) -> None:
    """Read everything that is given into the job. Raises ``JobError`` for what cannot be read."""
    raise NotImplementedError
