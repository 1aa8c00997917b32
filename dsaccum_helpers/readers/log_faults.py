"""Errors whose words alone say little: what their traceback runs through says the rest (pure)."""

from __future__ import annotations

import re

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from dsaccum_helpers.readers.log import Events
    from dsaccum_helpers.readers.log_lines import Frame

_OURS = re.compile(r"deepspeed|accelerate|transformers|lightning|<")
_CONFIG_FRAME = re.compile(
    r"deepspeed[/\\](?:runtime[/\\]config|__init__|runtime[/\\]engine)|(?:utils|integrations|transformers)[/\\]deepspeed|"
    r"partition_parameters|dataclasses\.py"
)
_TYPES = (
    ("not supported between", r"TypeError:\s*'[<>=!]+'\s*not supported between\s+instances\s+of\s+'\w+'\s+and\s+'\w+'"),
    ("unsupported operand type", r"TypeError:\s*unsupported operand type\(s\)\s+for\s+\S+\s+'\w+'\s+and\s+'\w+'"),
    ("multiply sequence by", r"TypeError:\s*can't multiply sequence by\s+non-int\s+of\s+type\s+'\w+'"),
    ("invalid literal for int", r"ValueError:\s*invalid literal for int\(\) with base\s+10:\s*\S.{0,80}"),
    ("convert string to float", r"ValueError:\s*could not convert string to float:\s*\S.{0,80}"),
    ("must be real number, not", r"TypeError:\s*must be real number, not \w+"),
    ("cannot be interpreted as an", r"TypeError:\s*'\w+' object cannot be interpreted as an integer"),
)
_VALIDATION = re.compile(r"validation errors? for (DeepSpeed\w*|HfTrainer\w*)\s*\n\s*([\w.]+)\s*\n\s*(\S.*)")
_BLOCKS = {
    "DeepSpeedZeroConfig": "zero_optimization",
    "DeepSpeedZeroOffloadParamConfig": "zero_optimization.offload_param",
    "DeepSpeedZeroOffloadOptimizerConfig": "zero_optimization.offload_optimizer",
    "DeepSpeedFP16Config": "fp16",
    "DeepSpeedBF16Config": "bf16",
}
#: What a code line of DeepSpeed says of the key that it reads.
_LINES = (
    (re.compile(r"train_batch\s*>|train_batch\s*//|train_batch_size\s*[>%]|assert train_batch\b"), "train_batch_size"),
    (re.compile(r"micro_batch\s*>|micro_batch_size\s*>"), "train_micro_batch_size_per_gpu"),
    (re.compile(r"grad_acc\w*\s*>|micro_batch\s*//=\s*grad_acc"), "gradient_accumulation_steps"),
    (re.compile(r"warmup_num_steps"), "scheduler.params.warmup_num_steps"),
    (re.compile(r"warmup_(?:max|min)_lr|min_lr|max_lr"), "scheduler.params.warmup_max_lr"),
    (re.compile(r"total_num_steps"), "scheduler.params.total_num_steps"),
    (re.compile(r"clip_grad|gradient_clipping|clip_value|max_norm"), "gradient_clipping"),
    (re.compile(r"bucket_size|bucket_num"), "zero_optimization.reduce_bucket_size"),
    (re.compile(r"persistence_threshold"), "zero_optimization.stage3_param_persistence_threshold"),
    (re.compile(r"steps_per_print"), "steps_per_print"),
    (re.compile(r"weight_decay"), "optimizer.params.weight_decay"),
    (re.compile(r"\blr\b|learning_rate"), "optimizer.params.lr"),
)


def read(events: Events) -> None:
    """type-error, zero-division, config-parse and config-path events."""
    for word, pattern in _TYPES:
        _type_errors(events, word, pattern)
    _validation(events)
    for at in events.log.hits("ZeroDivisionError", 40):
        frames = events.log.frames(at)
        if (not frames or _OURS.search(frames[-1].path)) and events.add("zero-division", {}, at):
            _through(events, "zero-division", at, frames)
    _parse_errors(events)
    _missing_files(events)


def _type_errors(events: Events, word: str, pattern: str) -> None:
    for at in events.log.hits(word, 60):
        window = events.log.window(at, 1, 2)
        match = re.search(pattern, window.text)
        if not match:
            continue
        frames = events.log.frames(at)
        last = frames[-1] if frames else None
        if last and not _OURS.search(last.path):
            continue
        words = " ".join(match[0].split())
        code = last.code if last else ""
        values = {
            "words": words,
            "line_text": code,
            "key": _key(words, code, last.function if last else ""),
        }
        if events.add("type-error", values, at):
            events.through(frames, at)  # the frameworks in the traceback speak


def _key(words: str, code: str, function: str) -> str | None:
    """The config key whose value is of the wrong type, as far as the line and the operands tell."""
    if "int' and 'str" in words and re.search(r"train_batch\s*//=?\s*micro_batch", code):
        return "train_micro_batch_size_per_gpu"
    if "int' and 'str" in words and re.search(r"//=\s*grad_acc", code):
        return "gradient_accumulation_steps"
    for pattern, key in _LINES:
        if pattern.search(code):
            return key
    if function in ("_batch_assertion", "_set_batch_related_parameters"):
        return "train_batch_size"
    return None


def _validation(events: Events) -> None:
    """Pydantic's words about a block of the config."""
    for word in ("validation error for", "validation errors for"):
        for at in events.log.hits(word, 40):
            match = _VALIDATION.search(events.log.window(at, 0, 4).text)
            if match:
                block = _BLOCKS.get(match[1])
                key = f"{block}.{match[2]}" if block else match[2]
                words = f"{match[2]}: {match[3].strip()}"[:300]
                values = {"words": words, "line_text": "", "key": key}
                events.add("type-error", values, at)


def _parse_errors(events: Events) -> None:
    """A config that its reader could not read."""
    for word in ("JSONDecodeError:", "HjsonDecodeError:"):
        for at in events.log.hits(word, 40):
            match = re.search(rf"\w*{word}\s*(\S.*)", events.log.window(at, 0, 2).text)
            frames = events.log.frames(at)
            of_config = word.startswith("Hjson") or any(_CONFIG_FRAME.search(frame.path) for frame in frames)
            if match and of_config:
                events.add("config-parse", {"words": " ".join(match[0].split())[:300]}, at)


def _missing_files(events: Events) -> None:
    """A config file that is not there."""
    for at in events.log.hits("No such file or directory", 60):
        match = re.search(r"No such file or directory:\s*['\"]([^'\"\n]{1,400})['\"]", events.log.window(at, 0, 2).text)
        if not match:
            continue
        frames = events.log.frames(at)
        read_by = any(_CONFIG_FRAME.search(frame.path) for frame in frames)
        named = re.search(r"(?:deepspeed|ds|zero)[\w.-]*\.(?:json|hjson)$", match[1], re.IGNORECASE)
        if named or (read_by and re.search(r"\.(?:json|hjson|jsonc)$", match[1])):
            events.add("config-path", {"received": match[1]}, at)
    for word in ("Incorrect padding", "Invalid base64-encoded string"):
        for at in events.log.hits(word, 20):
            if any(_CONFIG_FRAME.search(frame.path) for frame in events.log.frames(at)):
                events.add("config-path", {"received": None}, at)


def _through(events: Events, kind: str, at: int, frames: list[Frame]) -> None:
    """Add what the traceback runs through to the event that has just been found."""
    for (known, _), (place, event) in events.found.items():
        if known == kind and place == at:
            event.values["through"] = events.through(frames, at)
