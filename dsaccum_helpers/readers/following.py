"""Files that nobody has given but that a given one names: configs, and the settings of the command that counts."""

from __future__ import annotations

import os
import re

from dsaccum_helpers.job import JobError
from dsaccum_helpers.readers import config
from dsaccum_helpers.readers.files import is_file, load
from dsaccum_helpers.readers.vocabulary import OTHERS

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dsaccum_helpers.job import Job
    from dsaccum_helpers.readers.config import Parsed
    from dsaccum_helpers.readers.files import Document

_SETTINGS = r"[^=]*\.(?:json|ya?ml)$"
_LARGEST = 1_000_000  # bytes; what is larger is data


def configs(job: Job, folders: dict[str, str | None]) -> None:
    """Read the configs that something refers to, where they are there; ``folders``: given file to its folder."""
    logs = {event.source.file for event in job.events} if job.configs else set()
    for fact in job.references:
        name = str(fact.value)
        if fact.source.file in logs:
            continue  # a config is given, and the log may be that of another machine
        if not _is_given(name, _read_files(job)):
            path = _found(name, folders.get(fact.source.file))
            if path:
                document = load(path)
                folders[document.name] = document.folder
                config.read(document, job)


def settings(job: Job, folders: dict[str, str | None]) -> Iterator[tuple[Document, Parsed | None]]:
    """Arguments and Accelerate files that the command which counts names and nobody has given."""
    for launch in job.launches[:1]:
        words = [word.rpartition("=")[2] for word in (*launch.words, str(launch.options.get("config_file", "")))]
        for name in words:
            if not re.match(_SETTINGS, name) or _is_given(name, (*folders, *_read_files(job))):
                continue
            path = _found(name, folders.get(launch.source.file))
            if not path or os.path.getsize(path) > _LARGEST:
                continue
            try:
                document = load(path)
            except JobError:  # it is not known to be part of the job, so it is none of our errors
                continue
            if name.endswith(".json"):
                parsed = config.parse(document.text)
                if isinstance(parsed.values, dict) and parsed.values.keys() & OTHERS:
                    yield document, parsed
            else:
                yield document, None


def _found(name: str, folder: str | None) -> str | None:
    """The file of this name beside the one that names it, or in the current folder; uploads have neither."""
    if folder is None:
        return None
    paths = (os.path.normpath(os.path.join(folder, name)), name)
    return next((path for path in paths if is_file(path)), None)


def _read_files(job: Job) -> list[str]:
    """The files of configs that are read, or found unreadable."""
    files = [found.file for found in job.configs] + [found.source.file for found in job.unreadable]
    return [file for file in files if file]


def _is_given(name: str, files: Iterable[str]) -> bool:
    """Is there a file of this name among them?"""
    last = name.replace("\\", "/").split("/")[-1]
    return any(file.replace("\\", "/").split("/")[-1] == last for file in files)
