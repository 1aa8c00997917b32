"""Training arguments, whoever holds them: the words of a command line, or a mapping of names and values."""

from __future__ import annotations

import re
from itertools import takewhile

from dsaccum_helpers.job import Config, Source

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from typing import Any

    from dsaccum_helpers.job import Job

#: Other projects' names for what Transformers calls so.
ALIASES = {
    "micro_batch_size": "per_device_train_batch_size",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_device_batch_size": "per_device_train_batch_size",
    "batch_size_per_replica": "per_device_train_batch_size",
    "batch_size_per_device": "per_device_train_batch_size",
    "batch_size_per_gpu": "per_device_train_batch_size",
    "grad_acc_steps": "gradient_accumulation_steps",
    "grad_acc": "gradient_accumulation_steps",
    "grad_accum": "gradient_accumulation_steps",
    "grad_accum_steps": "gradient_accumulation_steps",
    "grad_accumulation_steps": "gradient_accumulation_steps",
    "accumulation_steps": "gradient_accumulation_steps",
    "gradient_accumulation": "gradient_accumulation_steps",
    "gradient_accumulate_steps": "gradient_accumulation_steps",
}
#: Arguments that give the sizes which divide the world into replicas.
PARALLEL = {
    "tensor_model_parallel_size": "tensor_parallel",
    "model_parallel_size": "tensor_parallel",
    "ds_tensor_parallel_size": "tensor_parallel",
    "pipeline_model_parallel_size": "pipeline_parallel",
    "pipe_parallel_size": "pipeline_parallel",
    "context_parallel_size": "sequence_parallel",
    "context_parallel_degree": "sequence_parallel",
    "sequence_parallel_size": "sequence_parallel",
    "sequence_parallel_degree": "sequence_parallel",
    "ds_sequence_parallel_size": "sequence_parallel",
    "ulysses_sequence_parallel_size": "sequence_parallel",
    "ring_attn_size": "sequence_parallel",
    "sp_size": "sequence_parallel",
}
#: Arguments that only Transformers' Trainer and what builds on it have, and those that older scripts have as well.
_TRAINER_NAMES = (
    "evaluation_strategy eval_strategy save_strategy logging_strategy fsdp auto_find_batch_size ddp_timeout "
    "ddp_find_unused_parameters bf16_full_eval remove_unused_columns load_best_model_at_end group_by_length "
    "average_tokens_across_devices batch_size_per_replica"
)
_TRAINER = frozenset(_TRAINER_NAMES.split())
_WEAK = {"do_train", "do_eval", "overwrite_output_dir", "output_dir"}
_TRL_NAMES = (
    "num_generations max_completion_length max_prompt_length use_vllm vllm_mode vllm_device reward_funcs "
    "reward_weights steps_per_generation generation_batch_size"
)
_TRL = frozenset(_TRL_NAMES.split())
_LIGHTNING_NAMES = "accumulate_grad_batches gradient_clip_val limit_train_batches"
_LIGHTNING = frozenset(_LIGHTNING_NAMES.split())
_LIGHTNING_ALL = _LIGHTNING | {"devices", "num_nodes", "strategy", "max_epochs", "max_steps", "precision"}
_PER_DEVICE = {"per_device_train_batch_size", "per_device_eval_batch_size"}
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d+)?$")
_SETTING = re.compile(r"[+~]{0,2}([A-Za-z_][\w./@-]*)=(.*)$", re.S)
_CONFIG_FILE = re.compile(r"\.(?:json[5c]?|hjson|ya?ml)$", re.I)
_CONFIG_NAME = re.compile(r"(?:^|_)(?:deepspeed|ds|zero)(?:_?conf(?:ig)?)?(?:_?(?:file|path))?$")


def typed(text: str) -> Any:
    """A word as the number, truth or nothing it spells; else the text itself."""
    if _NUMBER.match(text) and len(text) < 400:
        return int(text) if re.fullmatch(r"[-+]?\d+", text) else float(text)
    return {"true": True, "false": False, "none": None, "null": None}.get(text.lower(), text)


def pairs(words: Sequence[str]) -> list[tuple[str, Any]]:
    """Names and values of a command line: ``--x=1``, ``--x 1``, ``--x-y``, bare flags (True), ``a.b=1``."""
    found: list[tuple[str, Any]] = []
    at = 0
    while at < len(words):
        word = str(words[at])
        at += 1
        setting = _SETTING.match(word)
        if word.startswith("--") and len(word) > 2:
            name, equals, text = word[2:].partition("=")
            if equals:
                found.append((name, typed(text)))
            elif at < len(words) and _is_value(str(words[at])):
                found.append((name, typed(str(words[at]))))
                at += 1
            else:
                found.append((name, True))
        elif setting:
            found.append((setting[1], typed(setting[2])))
    return [(name.replace("-", "_"), value) for name, value in found]


def from_words(words: Sequence[str], job: Job, source: Source, script: str | None = None) -> None:
    """Put the arguments of a command line into the job; ``script`` is the program or module they go to."""
    given: dict[str, Any] = {}
    for name, value in pairs(words):
        *blocks, last = name.split(".")
        if not blocks or _counts(blocks, last):
            given[last] = value
    # Only the program and its own words: "openrlhf" and "grpo" also stand in names of models and folders.
    named = f"{script or ''} {' '.join(takewhile(lambda word: not word.startswith('-'), words))}".lower()
    if "micro_train_batch_size" in given or "openrlhf" in named or job.asked_framework == "openrlhf":
        _openrlhf(given, job, source)
        return

    def place(name: str) -> Source:
        return source._replace(key=name)

    put(given, job, place)
    speak(given, job, source, named)
    if job.asked_framework == "lightning" or given.keys() & _LIGHTNING:
        put_devices(given, job, place)


def is_list(text: str) -> bool:
    """Is a text nothing but arguments, as people paste them without the command?"""
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    return bool(lines and re.match(r"--[A-Za-z]", lines[0])) and all(
        re.match(r"[-#\\\"'$]|\S+$", line) for line in lines
    )


def read_list(text: str, file: str, job: Job) -> None:
    """Put such a text into the job."""
    import shlex

    text = text.replace("\\\n", " ")
    try:
        words = shlex.split(text, comments=True)
    except ValueError:  # a quote that is not closed
        words = text.split()
    from_words(words, job, Source(file, 1))


def put(given: dict[str, Any], job: Job, source: Callable[[str], Source]) -> None:
    """Put arguments into the job as ``trainer.*``; ``source(name)`` says where a name stands."""
    for key, value in given.items():
        name = key.replace("-", "_")
        if _CONFIG_NAME.search(name) and isinstance(value, str):
            _refer(value, job, source(key))
        if name in PARALLEL and is_count(value):
            job.add(PARALLEL[name], value, source(key))
        if name == "strategy" and isinstance(value, dict):
            inner = value.get("init_args")
            if isinstance(inner, dict) and isinstance(inner.get("config"), str):
                job.refer(inner["config"], source(key))
            value = value.get("class_path", "")
        if isinstance(value, dict):
            continue
        job.add(f"trainer.{ALIASES.get(name, name)}", value, source(key))
        if name == "num_generations":
            job.add("generation.num_generations", value, source(key))


def put_devices(given: dict[str, Any], job: Job, source: Callable[[str], Source]) -> None:
    """Lightning starts devices x num_nodes processes itself, where both are numbers."""
    key = next((name for name in ("devices", "gpus") if name in given), "")
    value, nodes = given.get(key), given.get("num_nodes", 1)
    if isinstance(value, str) and re.fullmatch(r"\d+(?:,\d*)+", value):
        value = [number for number in value.split(",") if number]
    count = len(value) if isinstance(value, list) else value
    if is_count(count) and is_count(nodes):
        job.add("processes", count * nodes, source(key))


def speak(given: dict[str, Any], job: Job, source: Source, script: str = "") -> bool:
    """Say which framework the arguments belong to, where they can belong to no other; False where that is open."""
    names = {name.replace("-", "_") for name in given}
    config_named = isinstance(given.get("deepspeed"), str) and given["deepspeed"].lower() not in ("none", "")
    own_loop = "no_trainer" in script or "zero_stage" in names or given.get("deepspeed") is True
    framework = ""
    if names & _TRL or re.search(r"\btrl\b|grpo", script):
        framework = "trl"
    elif names & _LIGHTNING:
        framework = "lightning"
    elif names & {"tensor_model_parallel_size", "model_parallel_size", "pipeline_model_parallel_size"}:
        framework = "megatron"
    elif config_named or (not own_loop and (names & _TRAINER or (names & _WEAK and names & _PER_DEVICE))):
        framework = "transformers"
    if framework:
        job.speak(framework, source)
    return bool(framework)


def _refer(value: str, job: Job, source: Source) -> None:
    """A DeepSpeed config that an argument names, or holds as JSON or as base64 of it."""
    text = value
    if value.startswith("eyJ"):
        import base64

        try:
            text = base64.b64decode(value + "==").decode()
        except ValueError:
            return
    if text.lstrip().startswith("{"):
        from dsaccum_helpers.readers import config

        values = config.parse(text).values
        if isinstance(values, dict):
            config.add(job, values, source.file)
    elif _CONFIG_FILE.search(value):
        job.refer(value, source)


def is_count(value: Any) -> bool:
    """Is it a positive integer?"""
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _counts(blocks: Iterable[str], last: str) -> bool:
    """Does ``a.b.last=...`` set an argument of a trainer?"""
    return (
        (last in _LIGHTNING_ALL and "trainer" in blocks)
        or last in _LIGHTNING
        or last
        in (
            "per_device_train_batch_size",
            "gradient_accumulation_steps",
            "deepspeed",
            "deepspeed_config",
            "max_grad_norm",
        )
    )


def _is_value(word: str) -> bool:
    """Is a word after ``--x`` its value, not the next flag?"""
    return not word.startswith("-") or bool(_NUMBER.match(word))


def _openrlhf(given: dict[str, Any], job: Job, source: Source) -> None:
    """OpenRLHF builds its DeepSpeed config from these arguments."""
    job.speak("openrlhf", source)
    keys = {"train_batch_size": "train_batch_size", "micro_train_batch_size": "train_micro_batch_size_per_gpu"}
    values: dict[str, Any] = {key: given[name] for name, key in keys.items() if name in given}
    places: dict[tuple[str, ...], tuple[int, int]] = {}
    if source.line:
        places = {(key,): (source.line, source.column) for key in values}
    if "zero_stage" in given:
        values["zero_optimization"] = {"stage": given["zero_stage"]}
    if "max_norm" in given:
        values["gradient_clipping"] = given["max_norm"]
    if is_count(given.get("actor_num_nodes")) and is_count(given.get("actor_num_gpus_per_node")):
        job.add("processes", given["actor_num_nodes"] * given["actor_num_gpus_per_node"], source)
    if values:
        job.configs.append(Config(values, source.file, places, "arguments"))
    rest = {name: value for name, value in given.items() if name not in keys and name != "zero_stage"}
    put(rest, job, lambda name: source._replace(key=name))
