"""Readers: files in, facts with their sources out. One reader a kind of evidence; none knows a mismatch.

A file is recognised by what is in it, not only by its name. Each reader loads when a file needs it. Whoever is read
first counts where several say something, so the kinds come in this order: configs, launch commands, arguments and
YAML, logs, scripts.
"""

from __future__ import annotations

from dsaccum_helpers.job import Config, JobError
from dsaccum_helpers.readers import config, following
from dsaccum_helpers.readers.files import Document, load

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from dsaccum_helpers.job import Job

__all__ = ["read"]

_NO_JSON = (".py", ".ipynb", ".yaml", ".yml")  # YAML holds all JSON, with readers and rules of its own


def read(paths: Iterable[Any], job: Job) -> None:
    """Read everything that is given into the job. Raises ``JobError`` for what cannot be read.

    A path is a ``str`` or ``os.PathLike``; ``-`` is standard input; a dict is a DeepSpeed config; a (name, text or
    bytes) pair is an upload.
    """
    documents: dict[str, Document] = {}
    for path in paths:
        if isinstance(path, dict):
            _read_dict(_copied(path), job)
        else:
            document = load(path)
            documents.setdefault(document.name, document)  # a file given twice says nothing more
    folders = {name: document.folder for name, document in documents.items()}
    others: list[tuple[Document, config.Parsed | None]] = []
    for document in documents.values():
        for part in _parts(document):
            answer = False if part.ending in _NO_JSON else config.read(part, job)
            if answer is not True:
                others.append((part, answer or None))
    following.configs(job, folders)
    if others:
        from dsaccum_helpers.readers import kinds

        for _ in kinds.read(others, job, folders):
            following.configs(job, folders)


def _read_dict(values: dict[str, Any], job: Job) -> None:
    """A dict in place of a file: a config, or what holds one."""
    if config.is_config(values, ""):
        job.configs.append(Config(values, None, kind="given"))
        return
    from dsaccum_helpers.readers import frameworks

    frameworks.read(values, {}, "the dict", job)


def _parts(document: Document) -> list[Document]:
    """The fenced blocks of a posted question, the cells of a notebook; for all else the document itself."""
    posted = document.ending in ("", ".md", ".markdown", ".txt") and "```" in document.text
    if not posted and document.ending != ".ipynb":
        return [document]
    from dsaccum_helpers.readers import fences

    return fences.blocks(document) if posted else fences.cells(document)


def _copied(values: Any, depth: int = 0) -> Any:
    """A copy, so that a change to the job is none to what the caller gave."""
    if depth > 200:
        raise JobError("The dict is nested too deeply. Smallest fix: give a config that a file could hold.")
    if isinstance(values, dict):
        return {str(key): _copied(value, depth + 1) for key, value in values.items()}
    return [_copied(value, depth + 1) for value in values] if isinstance(values, list | tuple) else values
