"""Settings that are no DeepSpeed config: Accelerate, TrainingArguments, axolotl, LLaMA-Factory, TRL, Lightning."""

from __future__ import annotations

import re

from dsaccum_helpers.job import JobError, Source, Unreadable
from dsaccum_helpers.readers import arguments, config
from dsaccum_helpers.readers.yaml_text import YamlError, load

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import Any

    from dsaccum_helpers.job import Job
    from dsaccum_helpers.readers.files import Document

    Places = dict[tuple[str, ...], tuple[int, int]]

_ACCELERATE_NAMES = "distributed_type compute_environment num_machines main_training_function"
_ACCELERATE = frozenset(_ACCELERATE_NAMES.split())
_ARGUMENTS_NAMES = (
    "per_device_train_batch_size per_device_eval_batch_size output_dir num_train_epochs learning_rate "
    "max_grad_norm model_name_or_path micro_batch_size base_model finetuning_type num_generations "
    "lr_scheduler_type warmup_ratio logging_steps save_steps accumulate_grad_batches max_steps "
    "per_gpu_train_batch_size"
)
_ARGUMENTS = frozenset(_ARGUMENTS_NAMES.split())
#: Blocks whose content is taken as if it stood at the top.
_BLOCKS = ("training_arguments", "training_args", "trainer_args", "trainer", "training", "train", "args", "arguments")
_EMBEDDED = ("deepspeed", "ds_config", "deepspeed_config", "deepspeed_config_dict", "deepspeed_plugin", "hf_ds_config")
#: Keys by which files that say nothing of batches are known: model, tokenizer and package descriptions, states.
_OTHERS_NAMES = "architectures tokenizer_class log_history added_tokens weight_map dependencies"
_OTHERS = frozenset(_OTHERS_NAMES.split())
_KEY_LINE = re.compile(r"^\s*(?:- )?[\"']?[\w.-]+[\"']?\s*:(?:\s|$)", re.M)
_KNOWN_LINE = re.compile(
    r"^[ ]*[\"']?(?:distributed_type|compute_environment|deepspeed_config|deepspeed|per_device_train_batch_size"
    r"|micro_batch_size|gradient_accumulation_steps|train_batch_size|train_micro_batch_size_per_gpu|num_processes"
    r"|accumulate_grad_batches|zero_optimization|num_generations|zero_stage)[\"']?\s*:(?:\s|$)",
    re.M,
)


def read_yaml(document: Document, job: Job) -> bool:
    """Read a document that is YAML with names that are known here; False where it is something else."""
    named = document.name.lower().endswith((".yaml", ".yml"))
    start = document.text[:200_000]
    try:
        values, places = load(document.text)
    except YamlError as error:
        if not named:
            return False
        source = Source(document.name, error.line, error.column)
        remedy = f"mend line {error.line}, column {error.column}"
        if not _KNOWN_LINE.search(start):
            raise JobError(f"{document.name}:{error.line}: no YAML ({error}). Smallest fix: {remedy}.") from None
        job.unreadable.append(Unreadable(source, f"{document.name}: {error}", remedy))
        return True
    if not isinstance(values, dict):
        return False
    if not read(values, places, document.name, job) and config.SIGNS & values.keys():
        config.add(job, values, document.name, places)
    return True


def knows(values: dict[str, Any]) -> bool:
    """Is a mapping of one of these kinds, so that it is no DeepSpeed config?"""
    names = values.keys()
    blocks = any(isinstance(values.get(name), dict) for name in (*_BLOCKS, *_EMBEDDED))
    others = names & _OTHERS and not names & config.SIGNS
    return bool(_is_accelerate(values) or names & _ARGUMENTS or (blocks and not names & config.SIGNS) or others)


def _is_accelerate(values: dict[str, Any]) -> bool:
    """Is it what ``accelerate config`` writes?"""
    return bool(_ACCELERATE & values.keys())


def read(values: dict[str, Any], places: Places, file: str, job: Job) -> bool:
    """Read a mapping of one of these kinds; False where it is none of them, and so may be a DeepSpeed config."""
    if _is_accelerate(values):
        _accelerate(values, places, file, job)
        return True
    found = _embedded(values, places, file, job)
    if _ARGUMENTS & values.keys():
        _arguments(values, places, file, job)
        return True
    for name in _BLOCKS:
        block = values.get(name)
        if isinstance(block, dict) and (_ARGUMENTS | {"devices", "strategy", "num_nodes"}) & block.keys():
            _embedded(block, places, file, job, (name,))
            _arguments(block, places, file, job, (name,))
            found = True
    if "dependencies" in values and isinstance(values["dependencies"], list):
        from dsaccum_helpers.readers.installed import read_lines

        read_lines([str(item) for item in values["dependencies"]], file, job)
        return True
    return found or bool(_OTHERS & values.keys() and not config.SIGNS & values.keys())


def looks_like_settings(text: str) -> bool:
    """Most lines are ``key: value`` and one of the keys is known."""
    if not _KNOWN_LINE.search(text):
        return False
    lines = [line for line in text.split("\n") if line.strip() and not line.lstrip().startswith(("#", "---"))]
    fit = sum(bool(_KEY_LINE.match(line)) or line.lstrip().startswith("- ") for line in lines)
    return fit >= 0.8 * len(lines)


def _accelerate(values: dict[str, Any], places: Places, file: str, job: Job) -> None:
    """An Accelerate config: facts ``accelerate.*``; the number of processes counts after that of a command."""

    def source(*path: str) -> Source:
        line, column = places.get(path, (None, None))
        return Source(file, line, column, ".".join(path))

    top = next((name for name in ("distributed_type", "compute_environment", "num_processes") if name in values), "")
    job.speak("accelerate", source(top))
    for name, value in values.items():
        if not isinstance(value, dict):
            job.add(f"accelerate.{name}", value, source(name))
    kind = str(values.get("distributed_type", "")).upper()
    count = values.get("num_processes")
    if isinstance(count, int) and not isinstance(count, bool) and count >= 1 and kind != "NO":
        job.add("processes", count, source("num_processes"))
    block = values.get("deepspeed_config")
    if not isinstance(block, dict):
        return
    for name, value in block.items():
        job.add(f"accelerate.{name}", value, source("deepspeed_config", name))
        if name == "deepspeed_config_file" and isinstance(value, str) and value.lower() not in ("", "none"):
            job.refer(value, source("deepspeed_config", name))


def _embedded(values: dict[str, Any], places: Places, file: str, job: Job, below: tuple[str, ...] = ()) -> bool:
    """Take a DeepSpeed config that stands under one of the usual keys; a path there is handled as an argument."""
    found = False
    for name in _EMBEDDED:
        block = values.get(name)
        if isinstance(block, dict) and block:
            inner = next((key for key in ("config", "hf_ds_config") if isinstance(block.get(key), dict)), None)
            path = (*below, name, *([inner] if inner else []))
            config.add(job, block[inner] if inner else block, file, places, "embedded", path)
            found = True
    return found


def _arguments(values: dict[str, Any], places: Places, file: str, job: Job, below: tuple[str, ...] = ()) -> None:
    """Arguments of a trainer: facts ``trainer.*``, and whose trainer it is."""

    def source(name: str) -> Source:
        line, column = places.get((*below, name), (None, None))
        return Source(file, line, column, ".".join((*below, name)))

    arguments.put(values, job, source)
    first = next((name for name in values if name in arguments.ALIASES or name.endswith("batch_size")), "")
    where = source(first) if first else Source(file)
    arguments.speak(values, job, where)
    names = values.keys()
    if below == ("trainer",) and {"devices", "accelerator", "strategy", "num_nodes", "max_epochs"} & names:
        job.speak("lightning", where)
    elif {"per_device_train_batch_size", "base_model", "finetuning_type", "output_dir"} & names:
        job.speak("transformers", where)
