"""What kind of evidence a text is, by what is in it; and the order in which the kinds are read."""

from __future__ import annotations

import re

from dsaccum_helpers.job import JobError
from dsaccum_helpers.readers import following
from dsaccum_helpers.readers.command_line import COMMAND, LAUNCHER, PREFIX, is_command

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsaccum_helpers.job import Job
    from dsaccum_helpers.readers.config import Parsed
    from dsaccum_helpers.readers.files import Document

_SHELL_ENDINGS = (".sh", ".bash", ".zsh", ".slurm", ".sbatch", ".sub", ".pbs", ".cmd", ".bat", ".ps1")
_PROMPTED = re.compile(rf"^[ \t]*(?:\([\w.-]+\)\s*)?(?:[\w.-]+@[\w.-]+:\S*\s*)?[$%#>+][ \t]+{PREFIX}{LAUNCHER}", re.M)
_SHELL = re.compile(r"\A\s*#!.*\b(?:ba|z|da|k)?sh\b|^#(?:SBATCH|PBS|BSUB|\$)\s", re.M)
_LOG = re.compile(
    r"^Traceback \(most recent|Traceback \(most recent call last\)|^\S{0,200}(?:Error|Exception|Warning)\b.{0,500}:"
    r"|\b[A-Za-z]\w{0,40}(?:Error|Exception): "
    r"|\[(?:INFO|WARNING|ERROR|DEBUG)\]|\b(?:INFO|WARNING|ERROR)\b\s*[-:|]|^\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d"
    r"|\d{1,3}%\|",
    re.M,
)
_START = 200_000  # letters in which a kind shows itself
_PYTHON = re.compile(r"^(?:import \w|\w+ = [{\[(]|from [\w.]+ import |def \w+\(|class \w+[(:])", re.M)


def read(documents: list[tuple[Document, Parsed | None]], job: Job, folders: dict[str, str | None]) -> Iterator[str]:
    """Read all that is no DeepSpeed config, in the order in which the kinds count; yields after each kind."""
    kinds: dict[str, list[tuple[Document, Parsed | None]]] = {"launch": [], "settings": [], "log": [], "script": []}
    for document, parsed in documents:
        kinds[kind_of(document, parsed)].append((document, parsed))
    launches = [(document.name, document.text) for document, _ in kinds["launch"]]
    launches += [(document.name, _typed_commands(document)) for document, _ in kinds["log"]]
    for name, text in launches:
        if text:
            from dsaccum_helpers.readers import launch

            launch.read(text, name, job)
    yield "launch"
    for document, parsed in (*kinds["settings"], *following.settings(job, folders)):
        _settings(document, parsed, job)
    yield "settings"
    for document, _ in kinds["log"]:
        from dsaccum_helpers.readers import log

        log.read(document.text, document.name, job)
    yield "log"
    if kinds["script"]:
        from dsaccum_helpers.readers import script

        script.read(_joined([document for document, _ in kinds["script"]]), job)
        _trust_scripts(job, {document.name for document, _ in (*kinds["launch"], *kinds["settings"])})
    if job.launches:
        from dsaccum_helpers.readers import launch

        launch.settle(job)
    yield "script"


def kind_of(document: Document, parsed: Parsed | None = None) -> str:
    """``launch``, ``settings``, ``script`` or ``log``."""
    from dsaccum_helpers.readers import arguments, environment, frameworks, hostfile, installed, vocabulary

    start = document.text[:_START]
    if parsed is not None and "Traceback (most recent call last)" in start and not vocabulary.knows(parsed.values):
        return "log"  # one record of a log that is kept as JSON
    if parsed is not None:
        return "script" if {"cells", "nbformat"} <= parsed.values.keys() else "settings"
    if document.ending in (".py", ".ipynb"):
        # A block of a posted question may be a mere snippet; a file that is no program is for the script reader to say.
        return "script" if document.name.endswith((".py", ".ipynb")) or _parses(document.text) else "log"
    if document.ending in _SHELL_ENDINGS or _SHELL.search(start[:5000]) or hostfile.is_hostfile(start):
        return "launch"
    settings = document.ending in (".yaml", ".yml") or frameworks.looks_like_settings(start)
    if settings or arguments.is_list(start) or environment.is_list(start) or installed.is_list(document):
        return "settings"
    if _PYTHON.search(start) and _parses(document.text):  # a log with Python in it is no program
        return "script"
    if _LOG.search(start):
        return "log"
    return "launch" if is_command(start) else "log"


def _joined(documents: list[Document]) -> list[tuple[str, str]]:
    """Name and text of each script; the blocks of one posted question make one script, on their own lines."""
    texts: dict[str, str] = {}
    for document in documents:
        before = texts.get(document.name, "")
        # A block starts with as many empty lines as there are lines before it.
        texts[document.name] = before + document.text[before.count("\n") :]
    return list(texts.items())


def _trust_scripts(job: Job, files: set[str]) -> None:
    """Arguments named as Transformers names them speak for it no longer where the script has a loop of its own."""
    kinds = {engine.kind for program in job.programs for engine in program.engines if not engine.guessed}
    own_loop = kinds & {"deepspeed", "accelerate"} and not kinds & {"trainer", "lightning"}
    said = {fact.value for fact in job.speakers if fact.source.file not in files}
    if own_loop and not said & {"transformers", "trl", "lightning"}:
        job.speakers = [fact for fact in job.speakers if fact.value != "transformers"]


def _settings(document: Document, parsed: Parsed | None, job: Job) -> None:
    """Read a mapping of settings or a list of packages."""
    from dsaccum_helpers.readers import arguments, environment, frameworks, installed

    if parsed is None and arguments.is_list(document.text):
        arguments.read_list(document.text, document.name, job)
    elif parsed is None and environment.is_list(document.text):
        environment.read(document.text, document.name, job)
    elif parsed is not None:
        frameworks.read(parsed.values, parsed.places, document.name, job)
    elif installed.is_list(document):
        installed.read(document, job)
    elif not frameworks.read_yaml(document, job):
        raise JobError(f"{document.name} holds no settings. Smallest fix: give the file that holds the batch sizes.")


def _typed_commands(document: Document) -> str:
    """The commands in a log or a posted question; all other lines are empty, so that these keep their numbers.

    In a log they stand behind a prompt or in the first line, in a question anywhere.
    """
    text = document.text[:_START]
    posted = document.ending in ("", ".md", ".markdown", ".txt")
    kept, going = [], False
    for number, line in enumerate(text.split("\n") if _PROMPTED.search(text) or COMMAND.search(text) else ()):
        prompted = _PROMPTED.match(line)
        typed = prompted or ((posted or number == 0) and COMMAND.match(line))
        command = re.sub(r"^.*?[$%#>+][ \t]+", "", line, count=1) if prompted else line
        kept.append(command if typed or going else "")
        going = bool(typed or going) and line.rstrip().endswith("\\")
    return "\n".join(kept).rstrip("\n")


def _parses(text: str) -> bool:
    """Is it a Python program?"""
    import ast
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse(text)
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return False
    return True
