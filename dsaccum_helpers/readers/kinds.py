"""What kind of evidence a text is, by what is in it; and the order in which the kinds are read."""

from __future__ import annotations

import re

from dsaccum_helpers.job import JobError

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsaccum_helpers.job import Job
    from dsaccum_helpers.readers.config import Parsed
    from dsaccum_helpers.readers.files import Document

_SHELL_NAME = (".sh", ".bash", ".zsh", ".slurm", ".sbatch", ".sub", ".pbs", ".cmd", ".bat", ".ps1")
_LAUNCHER = (
    r"(?:(?:\S*/)?(?:deepspeed|torchrun|srun|mpirun|mpiexec|sbatch|pdsh|llamafactory-cli)(?=\s)|(?:\S*/)?accelerate\s+launch"
    r"|(?:\S*/)?python[\d.]*\s+(?:-\S+\s+)*(?:\S+\.py|-m\s+\S+|\S*torch\.distributed)|trl\s+\w+\s+-|axolotl\s+train"
    r"|swift\s+(?:sft|rlhf|pt)\b|ray\s+job\s+submit)"
)
_PREFIX = r"(?:(?:export|env|nohup|time|sudo|exec|cd\s+\S+\s*&&)\s+|[A-Za-z_]\w*=(?:\"[^\"\n]*\"|'[^'\n]*'|\S*)\s+)*"
_COMMAND = re.compile(rf"^[ \t]*{_PREFIX}{_LAUNCHER}", re.M)
_PROMPTED = re.compile(rf"^[ \t]*(?:\([\w.-]+\)\s*)?(?:[\w.-]+@[\w.-]+:\S*\s*)?[$%#>+][ \t]+{_PREFIX}{_LAUNCHER}", re.M)
_SHELL = re.compile(r"\A\s*#!.*\b(?:ba|z|da|k)?sh\b|^#(?:SBATCH|PBS|BSUB|\$)\s", re.M)
_SET = re.compile(r"^\s*(?:export\s+)?[A-Za-z_]\w*=\S*\s*$", re.M)
_LOG = re.compile(
    r"^Traceback \(most recent|Traceback \(most recent call last\)|^\S*(?:Error|Exception|Warning)\b.*:"
    r"|\[(?:INFO|WARNING|ERROR|DEBUG)\]|\b(?:INFO|WARNING|ERROR)\b\s*[-:|]|^\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d"
    r"|\d+%\|",
    re.M,
)
_HOSTS = re.compile(r"(?:\s*(?:#.*|[\w.-]+[ \t]+slots=\d+[ \t\w=.-]*)?(?:\n|\Z))+\Z")
_PYTHON = re.compile(r"^(?:import \w|from [\w.]+ import |def \w+\(|class \w+[(:])", re.M)
_NOTEBOOK = re.compile(r'"(?:cells|nbformat)"\s*:')


def read(documents: list[tuple[Document, Parsed | None]], job: Job) -> Iterator[str]:
    """Read all that is no DeepSpeed config, in the order in which the kinds count; yields after each kind."""
    sorted_in: dict[str, list[tuple[Document, Parsed | None]]] = {}
    for document, parsed in documents:
        sorted_in.setdefault(kind_of(document, parsed), []).append((document, parsed))
    launches = [document for document, _ in sorted_in.get("launch", [])]
    logs = [document for document, _ in sorted_in.get("log", [])]
    for document in (*launches, *logs):
        text = document.text if document in launches else _typed_commands(document.text)
        if text:
            try:
                from dsaccum_helpers.readers import launch
            except ImportError:
                break
            launch.read(text, document.name, job)
    yield "launch"
    for document, parsed in sorted_in.get("settings", []):
        _settings(document, parsed, job)
    yield "settings"
    for document in logs:
        try:
            from dsaccum_helpers.readers import log
        except ImportError:
            break
        log.read(document.text, document.name, job)
    yield "log"
    scripts = [(document.name, document.text) for document, _ in sorted_in.get("script", [])]
    if scripts:
        from dsaccum_helpers.readers import script

        if not hasattr(script, "read"):
            return
        script.read(scripts, job)
        yield "script"


def kind_of(document: Document, parsed: Parsed | None = None) -> str:
    """``launch``, ``settings``, ``script`` or ``log``."""
    text, name = document.text, document.name.lower()
    start = text[:200_000]
    if name.endswith((".py", ".ipynb")) or (parsed is not None and {"cells", "nbformat"} <= parsed.values.keys()):
        return "script"
    if parsed is not None:
        return "settings"
    if name.endswith(_SHELL_NAME) or _SHELL.search(start[:5000]) or _HOSTS.match(start):
        return "launch"
    from dsaccum_helpers.readers import frameworks, installed

    if name.endswith((".yaml", ".yml")) or frameworks.looks_like_settings(start) or installed.is_list(document):
        return "settings"
    logged = _LOG.search(start)
    if _PYTHON.search(start) and not logged and _parses(text):
        return "script"
    if _COMMAND.search(start) and not logged:
        return "launch"
    return "log"


def _settings(document: Document, parsed: Parsed | None, job: Job) -> None:
    """Read a mapping of settings or a list of packages."""
    from dsaccum_helpers.readers import frameworks, installed

    if parsed is not None:
        frameworks.read(parsed.values, parsed.places, document.name, job)
    elif installed.is_list(document):
        installed.read(document, job)
    elif not frameworks.read_yaml(document, job):
        raise JobError(f"{document.name} holds no settings. Smallest fix: give the file that holds the batch sizes.")


def _typed_commands(text: str) -> str:
    """The commands that a person typed at a prompt before a log, all other lines empty, so that lines keep numbers."""
    if not _PROMPTED.search(text):
        first = text.lstrip()
        if not _COMMAND.match(first) or "\n" not in first:
            return ""
    kept, going = [], False
    for number, line in enumerate(text.split("\n")):
        typed = bool(_PROMPTED.match(line)) or (number == 0 and bool(_COMMAND.match(line)))
        kept.append(re.sub(r"^.*?[$%#>+][ \t]+", "", line, count=1) if _PROMPTED.match(line) else line)
        if not (typed or going):
            kept[-1] = ""
        going = (typed or going) and line.rstrip().endswith("\\")
    return "\n".join(kept).rstrip("\n") if any(kept) else ""


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
