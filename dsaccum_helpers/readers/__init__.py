"""Readers: files in, facts with their sources out. One reader a kind of evidence; none knows a mismatch.

A file is recognised by what is in it, not only by its name. Each reader loads when a file needs it. Whoever is read
first counts where several say something, so the kinds come in this order: configs, launch commands, arguments and
YAML, logs, scripts.
"""

from __future__ import annotations

import os

from dsaccum_helpers.job import Config, JobError
from dsaccum_helpers.readers import config
from dsaccum_helpers.readers.files import Document, is_file, load

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from dsaccum_helpers.job import Job

__all__ = ["read"]


def read(paths: Iterable[Any], job: Job) -> None:
    """Read everything that is given into the job. Raises ``JobError`` for what cannot be read.

    A path is a ``str`` or ``os.PathLike``; ``-`` is standard input; a dict is a DeepSpeed config; a (name, text or
    bytes) pair is an upload.
    """
    documents = []
    for path in paths:
        if isinstance(path, dict):
            job.configs.append(Config(_copied(path), None, kind="given"))
        else:
            documents.append(load(path))
    folders = {document.name: document.folder for document in documents}
    others: list[tuple[Document, config.Parsed | None]] = []
    for document in documents:
        answer = False if document.name.endswith((".py", ".ipynb")) else config.read(document, job)
        if answer is not True:
            others.append((document, answer or None))
    _follow(job, folders)
    if others:
        from dsaccum_helpers.readers import kinds

        for _ in kinds.read(others, job):
            _follow(job, folders)


def _follow(job: Job, folders: dict[str, str | None]) -> None:
    """Read the config files that something names and nobody has given, where they are there."""
    for fact in job.references:
        folder = folders.get(fact.source.file)
        name = str(fact.value)
        if folder is None or _is_given(name, job):
            continue
        for path in dict.fromkeys((os.path.normpath(os.path.join(folder, name)), name)):
            if is_file(path):
                document = load(path)
                folders[document.name] = document.folder
                config.read(document, job)
                break


def _is_given(name: str, job: Job) -> bool:
    """Is there a config of this name already, read or found unreadable?"""
    last = name.replace("\\", "/").split("/")[-1]
    files = [found.file for found in job.configs] + [found.source.file for found in job.unreadable]
    return any(file and file.replace("\\", "/").split("/")[-1] == last for file in files)


def _copied(values: Any, depth: int = 0) -> Any:
    """A copy, so that a change to the job is none to what the caller gave."""
    if depth > 200:
        raise JobError("The dict is nested too deeply. Smallest fix: give a config that a file could hold.")
    if isinstance(values, dict):
        return {str(key): _copied(value, depth + 1) for key, value in values.items()}
    return [_copied(value, depth + 1) for value in values] if isinstance(values, list | tuple) else values
