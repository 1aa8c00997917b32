"""Scripts and notebooks, read with ``ast``: never imported, never run.

``interpreter`` follows the program once through, with values of which it knows no more than their part in training:
this is an engine, that a loss divided by the accumulation steps. What it meets becomes events (``trace.Program``);
what it learns besides becomes facts of the job. What cannot be known statically stays unknown.
"""

from __future__ import annotations

import ast
import re
import warnings
from collections import deque

from dsaccum_helpers.job import JobError, Source
from dsaccum_helpers.readers.arguments import typed
from dsaccum_helpers.readers.script.interpreter import Interpreter
from dsaccum_helpers.readers.script.notebook import notebook_source

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from dsaccum_helpers.job import Job
    from dsaccum_helpers.trace import Number

_IGNORE = re.compile(r"#\s*dsaccum:\s*ignore(?:\[([\w\-,\s]*)\])?")


def read(files: Iterable[tuple[str, str]], job: Job) -> None:
    """Read scripts and notebooks, given as (name, text), together. Raises ``JobError`` where one does not parse."""
    files = list(files)
    trees: dict[str, ast.Module] = {}
    reader = Interpreter(_words(job))
    for name, text in files:
        source, places = text, None
        if name.endswith(".ipynb") or text.lstrip().startswith("{"):
            source, places = notebook_source(text, name)
            reader.lines[name] = places
        trees[name] = _parsed(source, name, places)
        _note_ignored(source, name, places, job)
    reader.read(trees)
    if not _concerns_deepspeed(files, job):
        guessed = {engine for engine in reader.program.engines if engine.guessed}
        reader.program.events = [event for event in reader.program.events if event.actor not in guessed]
    job.programs.append(reader.program)
    _hand_over(reader, job)


def _concerns_deepspeed(files: Iterable[tuple[str, str]], job: Job) -> bool:
    """Does anything speak of DeepSpeed? Other libraries' engines have a backward(loss) as well."""
    if job.configs or job.references or any(launch.launcher == "deepspeed" for launch in job.launches):
        return True
    return job.asked_framework is not None or any("deepspeed" in text.lower() for _, text in files)


def _parsed(source: str, name: str, places: Any) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what a person's string literals look like is not our subject
            return ast.parse(source)
    except SyntaxError as error:
        line = error.lineno or 1
        where = (
            f"line {line}"
            if places is None or line > len(places)
            else f"{places[line - 1][1]}, line {places[line - 1][0]}"
        )
        reason = f"{name}, {where}: {error.msg}"
    except (ValueError, RecursionError, MemoryError, OverflowError) as error:
        reason = f"{name}: {str(error) or type(error).__name__}"
    raise JobError(f"{reason}. This is not Python that can be read. Smallest fix: mend that line.")


def _words(job: Job) -> dict[str, Any]:
    """What the command line says to the script: option to value."""
    words: dict[str, Any] = {}
    for launch in job.launches[:1]:
        pending = deque(launch.words)
        while pending:
            word = pending.popleft()
            name, equals, value = word.partition("=")
            if not name.startswith("-") and not equals:
                continue
            if not equals and pending and not pending[0].startswith("--"):
                value = pending.popleft()
            elif not equals:
                continue
            words[name.lstrip("-").replace("-", "_")] = typed(value)
    if (processes := job.value("processes")) is not None:
        words["world size"] = processes
    words |= {name: facts[0].value for name, facts in job.facts.items() if name.startswith("environment.")}
    return words


def _note_ignored(source: str, name: str, places: Any, job: Job) -> None:
    for line, text in enumerate(source.split("\n"), 1):  # a form feed ends no line for Python
        if "dsaccum" in text and (match := _IGNORE.search(text)):
            codes = {code.strip() for code in (match[1] or "").split(",") if code.strip()}
            job.ignored[name, places[line - 1][0] if places else line] = codes


def _hand_over(reader: Interpreter, job: Job) -> None:
    """What was learnt besides events becomes facts."""
    for name, value, source in reader.learnt:
        job.add(name, value, source)
    for framework, source in reader.speakers:
        job.speak(framework, source)
    known = {str(fact.value) for fact in job.references}
    for path, source in reader.references:
        if path not in known:
            job.refer(path, source)
    engines = [engine.config for engine in reader.program.engines if engine.config is not None]
    for config in [*engines, *reader.made_configs]:
        if not isinstance(config, str) and config.values:
            job.configs.append(config)
    _loader_facts(reader, job)
    _nothing_prepared(reader, job)


def _resolved(number: Number, job: Job) -> float | None:
    """A number in which the engine's own may stand."""
    if not number.symbols:
        return number.known()
    from dsaccum_helpers.effective import effective

    numbers = effective(job)
    own = {"train": numbers.train, "micro": numbers.micro, "gas": numbers.steps}
    return number.known(world=numbers.replicas, **{name: fact and fact.value for name, fact in own.items()})


def _nothing_prepared(reader: Interpreter, job: Job) -> None:
    """Accelerate takes "auto" from a loader that it prepares; here it is never given one."""
    if reader.prepared_models and not reader.prepared_loaders and not reader.loaders:
        job.add("loader.has_batch_size", False, reader.prepared_models[0])


def _loader_facts(reader: Interpreter, job: Job) -> None:
    """The batch size of the loader that is trained on; with a Trainer, of the first one that is made."""
    loaders = [role for role in reader.trained_on if not role.facts.get("own")]
    if not reader.trained_on:
        loaders = reader.loaders[:1]
    for loader in loaders:
        number = loader.facts.get("batch_size")
        size = _resolved(number, job) if number is not None else None
        source: Source = loader.source
        if loader.facts.get("hidden"):
            job.add("loader.has_batch_size", False, source)
        if size is not None and size >= 1 and size == int(size):
            job.add("loader.batch_size", int(size), source)
        if loader.facts.get("drop_last") in (True, False):
            job.add("dataset.drop_last", loader.facts["drop_last"], source)
