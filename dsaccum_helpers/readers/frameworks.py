"""Settings that are no DeepSpeed config: Accelerate, TrainingArguments, axolotl, LLaMA-Factory, TRL, Lightning."""

from __future__ import annotations

import re

from dsaccum_helpers.job import JobError, Source, Unreadable
from dsaccum_helpers.readers import arguments, config
from dsaccum_helpers.readers.vocabulary import ACCELERATE, BLOCKS, OTHERS, embedded
from dsaccum_helpers.readers.yaml_text import YamlError, load

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import Any

    from dsaccum_helpers.job import Job
    from dsaccum_helpers.readers.files import Document

    Places = dict[tuple[str, ...], tuple[int, int]]
    Path = tuple[str, ...]

_OF_LIGHTNING = {"devices", "strategy", "num_nodes", "accelerator", "accumulate_grad_batches", "max_epochs"}
_PARALLEL = {
    "parallelism_config_tp_size": "tensor_parallel",
    "parallelism_config_cp_size": "sequence_parallel",
    "parallelism_config_sp_size": "sequence_parallel",
    "megatron_lm_tp_degree": "tensor_parallel",
    "megatron_lm_pp_degree": "pipeline_parallel",
}
_DEEPEST = 8  # blocks of a job description in which commands are looked for
_KEY_LINE = re.compile(r"^\s*(?:- )?[\"']?[\w.-]+[\"']?\s*:(?:\s|$)", re.M)
#: A word that begins a line of a log: a host, or a rank.
_BEGINS = re.compile(r"^[\w.-]+:(?=\s)", re.M)
_KNOWN_LINE = re.compile(
    r"^[ ]*[\"']?(?:distributed_type|compute_environment|deepspeed_config|deepspeed|per_device_train_batch_size"
    r"|micro_batch_size|gradient_accumulation_steps|train_batch_size|train_micro_batch_size_per_gpu|num_processes"
    r"|accumulate_grad_batches|zero_optimization|num_generations|zero_stage)[\"']?\s*:(?:\s|$)",
    re.M,
)


def looks_like_settings(text: str) -> bool:
    """Are most lines ``key: value``, and is one of the keys known?"""
    if not _KNOWN_LINE.search(text):
        return False
    lines = [line for line in text.split("\n") if line.strip() and not line.lstrip().startswith(("#", "---"))]
    fit = sum(bool(_KEY_LINE.match(line)) or line.lstrip().startswith("- ") for line in lines)
    keys = _BEGINS.findall(text)
    repeated = len(keys) - len(set(keys))  # no mapping says a key again and again
    return fit >= 0.8 * len(lines) and repeated <= max(2, 0.2 * len(keys))


def read_yaml(document: Document, job: Job) -> bool:
    """Read a document that is YAML; False where it is no mapping."""
    try:
        values, places = load(document.text)
    except YamlError as error:
        remedy, place = "leave it out, or give the settings alone", document.name
        if error.line:
            remedy, place = f"mend line {error.line}, column {error.column}", f"{document.name}:{error.line}"
        if not _KNOWN_LINE.search(document.text[:200_000]):
            raise JobError(f"{place}: no YAML ({error}). Smallest fix: {remedy}.") from None
        source = Source(document.name, error.line, error.column)
        job.unreadable.append(Unreadable(source, f"{document.name}: {error}", remedy))
        return True
    if not isinstance(values, dict):
        return False
    own = config.KEYS - {"train_batch_size", "gradient_clipping"}  # trainers have arguments of these names
    if values.keys() & own and config.is_config(values, document.name):
        config.add(job, values, document.name, places)
    else:
        _launches(values, places, document.name, job)
        read(values, places, document.name, job)
    return True


def _launches(values: dict[str, Any], places: Places, file: str, job: Job) -> None:
    """Read the launch commands of a job description (Kubernetes, SkyPilot, a pipeline of a build server)."""
    from dsaccum_helpers.readers import launch
    from dsaccum_helpers.readers.command_line import is_command

    for text, line in commands(values, places):
        if is_command(text):
            launch.read(text, file, job, line)


def read(values: dict[str, Any], places: Places, file: str, job: Job) -> None:
    """Read a mapping of one of these kinds."""
    if values.keys() & ACCELERATE:
        _accelerate(values, places, file, job)
        return
    if "log_history" in values:
        _state(values, places, file, job)
        return
    for path, inner in embedded(values, ()):
        config.add(job, inner, file, places, "embedded", path)
    if values.keys() & (OTHERS | {"gradient_accumulation_steps"}):
        _arguments(values, places, file, job)
    for name in BLOCKS:
        block = values.get(name)
        if isinstance(block, dict) and block.keys() & (OTHERS | _OF_LIGHTNING | {"gradient_accumulation_steps"}):
            _arguments(block, places, file, job, (name,))
    if isinstance(values.get("dependencies"), list):
        from dsaccum_helpers.readers.installed import read_lines

        read_lines([str(line) for item in values["dependencies"] for line in _lines(item)], file, job)


def commands(values: Any, places: Places, path: Path = ()) -> list[tuple[str, int]]:
    """Launch commands that a job description holds as texts or lists of words, each with its line."""
    found: list[tuple[str, int]] = []
    for name, value in values.items() if isinstance(values, dict) else enumerate(values):
        inner = (*path, str(name))
        line = next((places[inner[:size]][0] for size in range(len(inner), 0, -1) if inner[:size] in places), 1)
        if isinstance(value, list) and value and all(isinstance(word, str | int | float) for word in value):
            import shlex

            words = [str(word) for word in value]
            value = words[-1] if len(words) > 1 and words[-2] in ("-c", "-lc", "-ec") else shlex.join(words)
        if isinstance(value, str):
            found.append((value, line + ("\n" in value)))  # a block of lines begins below its key
        elif isinstance(value, dict | list) and len(path) < _DEEPEST:
            found += commands(value, places, inner)
    return found


def _state(values: dict[str, Any], places: Places, file: str, job: Job) -> None:
    """A ``trainer_state.json`` says how the checkpoint was made that a run goes on from."""
    names = {"global_step": "global_step", "train_batch_size": "train_micro_batch_size_per_gpu"}
    for key, name in names.items():
        if arguments.is_count(values.get(key)):
            line, column = places.get((key,), (None, None))
            job.add(f"checkpoint.{name}", values[key], Source(file, line, column, key))


def _lines(item: Any) -> list[Any]:
    """A dependency of a conda file, or those that its ``pip:`` lists."""
    pip = item.get("pip") if isinstance(item, dict) else None
    return pip if isinstance(pip, list) else [item]


def _accelerate(values: dict[str, Any], places: Places, file: str, job: Job) -> None:
    """An Accelerate config: facts ``accelerate.*``; the number of processes counts after that of a command."""

    def source(*path: str) -> Source:
        line, column = places.get(path, (None, None))
        return Source(file, line, column, ".".join(path))

    job.speak("accelerate", source(next(name for name in values if name in ACCELERATE)))
    for name, value in values.items():
        if not isinstance(value, dict):
            job.add(f"accelerate.{name}", value, source(name))
            continue
        for inner, size in value.items():
            if inner in _PARALLEL and arguments.is_count(size):
                job.add(_PARALLEL[inner], size, source(name, inner))
    count = arguments.typed(str(values.get("num_processes")))
    if arguments.is_count(count) and str(values.get("distributed_type", "")).upper() != "NO":
        job.add("processes", count, source("num_processes"))
    plugin = values.get("deepspeed_config")
    for name, value in plugin.items() if isinstance(plugin, dict) else ():
        job.add(f"accelerate.{name}", value, source("deepspeed_config", name))
        if name == "deepspeed_config_file" and isinstance(value, str) and value.lower() not in ("", "none"):
            job.refer(value, source("deepspeed_config", name))


def _arguments(values: dict[str, Any], places: Places, file: str, job: Job, below: Path = ()) -> None:
    """Arguments of a trainer: facts ``trainer.*``, and whose trainer it is."""

    def source(name: str) -> Source:
        line, column = places.get((*below, name), (None, None))
        return Source(file, line, column, ".".join((*below, name)))

    arguments.put(values, job, source)
    first = next((name for name in values if name in arguments.ALIASES or name.endswith("batch_size")), "")
    where = source(first) if first else Source(file)
    if below == ("trainer",) and values.keys() & _OF_LIGHTNING:
        job.speak("lightning", where)
        arguments.put_devices(values, job, source)
    elif not arguments.speak(values, job, where) and _is_trainers(values, below):
        job.speak("transformers", where)


def _is_trainers(values: dict[str, Any], below: Path) -> bool:
    """Are these arguments of Transformers' Trainer, not of a project's own loop?"""
    names = values.keys()
    if names & {"per_device_train_batch_size", "per_device_eval_batch_size", "base_model", "finetuning_type"}:
        return True
    own_block = below in ((), ("training_arguments",), ("training_args",), ("trainer_args",))
    return own_block and "output_dir" in names and "train_batch_size" not in names and len(names & OTHERS) > 1
