"""The keys of a config that DeepSpeed does not read, and which ones are meant (pure)."""

from __future__ import annotations

from collections import namedtuple

from dsaccum_helpers.batch import KEYS
from dsaccum_helpers.known_keys import CHECKED, SECTIONS, TOP_LEVEL

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from dsaccum_helpers.job import Config

    Path = tuple[str, ...]

#: Keys without which the gradients, updates or schedule are others, and those that change how training is done.
VITAL = (*KEYS, "gradient_clipping", "managed_gradient_accumulation", "sequence_parallel_size")
WEIGHTY = (
    *("optimizer", "scheduler", "fp16", "bf16", "bfloat16", "zero_optimization", "data_types", "torch_autocast"),
    *("gradient_allreduce_op", "gradient_predivide_factor", "prescale_gradients", "dataloader_drop_last"),
)
#: Blocks whose insides belong to somebody else: argument maps of a launcher, schedules with keys of their own.
FOREIGN_BLOCKS = ("autotuning", "compression_training", "curriculum_learning", "data_efficiency", "elasticity")
#: Keys of GPT-NeoX and Megatron files, which hold DeepSpeed's keys among their own, with dashes or without.
NEOX = frozenset(
    (
        *("pipe_parallel_size", "model_parallel_size", "num_layers", "hidden_size", "num_attention_heads"),
        *("seq_length", "train_iters", "lr_decay_iters", "lr_decay_style", "max_position_embeddings"),
        *("log_interval", "eval_interval"),
    )
)
MANY = 3  # so many keys that nobody but another tool reads make a file that is not DeepSpeed's alone

Key = namedtuple("Key", "path meant value severity words")
Key.__doc__ = "An unknown key: its path, the path that is meant, its value, how bad that is, and the words for it."


def is_other_tools(config: Config) -> bool:
    """Is it a GPT-NeoX or Megatron file?"""
    return len(NEOX.intersection(str(key).replace("-", "_") for key in config.values)) > 1


def unknown(config: Config, installed: frozenset[str] = frozenset()) -> tuple[list[Key], list[str]]:
    """The unknown keys for which another is meant, and those at the top for which none is.

    ``installed``: keys that the installed DeepSpeed knows besides those of the table.
    """
    if is_other_tools(config):
        return [], []
    known = TOP_LEVEL | installed
    strange = [key for key in filter(_is_text, config.values) if key not in known and not _is_remark(key)]
    top, far = _top(config, strange) if strange else ([], [])
    return [*top, *_sections(config)], far


def _top(config: Config, strange: list[str]) -> tuple[list[Key], list[str]]:
    """Unknown keys at the top of the config."""
    from dsaccum_helpers.mismatches.near_keys import nearest

    known = [*VITAL, *sorted(TOP_LEVEL.difference(VITAL))]
    found, far = [], []
    for key in strange:
        near = nearest(key, known)
        if key in SECTIONS["data_types"]:
            found.append(_misplaced(config, (key,), ("data_types", key)))
        elif near:
            found.append(_misnamed(config, key, *near))
        else:
            far.append(key)
    if len(far) >= MANY:  # such a file says "batch_size" and means its own
        found = [key for key in found if "not DeepSpeed's name" not in key.words]
    return found, far


def _misnamed(config: Config, wrong: str, right: str, how: str) -> Key:
    """A key at the top whose name is near a known one."""
    words = {
        "spelling": f'"{wrong}" is written otherwise than "{right}"',
        "other name": f'"{wrong}" is not DeepSpeed\'s name, which is "{right}"',
        "misspelt": f'"{wrong}" is a misspelling of "{right}"',
    }[how]
    if wrong.strip() == right:
        words = f'"{wrong}" has a space {"after" if wrong.startswith(right) else "before"} the name "{right}"'
    severity = "error" if right in VITAL else "warning" if right in WEIGHTY else "note"
    if config.get(right) is not None:
        if config.get(right) == config.get(wrong) or how == "other name":
            severity = "note"
        words += f", which is there too with {config.get(right)!r:.40}"
    words += ": DeepSpeed ignores it without a word"
    return Key((wrong,), (right,), config.get(wrong), severity, words)


def _misplaced(config: Config, wrong: Path, right: Path) -> Key:
    """A key that stands in the wrong section."""
    place = f'in "{right[0]}"' if len(right) > 1 else "at the top of the config"
    does = (
        'refuses it here ("Extra inputs are not permitted")' if ".".join(wrong[:-1]) in CHECKED else "ignores it here"
    )
    words = f'"{".".join(wrong)}" stands in the wrong section: DeepSpeed reads it only {place} and {does}'
    severity = "error" if right[0] in VITAL else "warning"
    if config.get(*right) is not None:
        severity = "note" if config.get(*right) == config.get(*wrong) else severity
        words += f"; there it is {config.get(*right)!r:.40}"
    return Key(wrong, right, config.get(*wrong), severity, words)


def _sections(config: Config) -> Iterator[Key]:
    """Keys inside blocks: vital ones that belong to the top, and misspelt ones."""
    for path, block in _blocks(config.values):
        if path[0] not in TOP_LEVEL or path[0] in FOREIGN_BLOCKS:
            continue
        name = ".".join(path)
        known = CHECKED.get(name) or SECTIONS.get(name)
        for key in filter(_is_text, block):
            here = (*path, key)
            if key in VITAL and (known is None or key not in known):
                yield _misplaced(config, here, (key,))
            elif name == "optimizer.params" and key == "max_grad_norm":
                words = (
                    f'DeepSpeed refuses "{name}.max_grad_norm" for an optimizer that it builds itself; the norm to '
                    'clip at is "gradient_clipping" at the top of the config'
                )
                yield Key(here, ("gradient_clipping",), block[key], "note", words)
            elif known is not None and key not in known and not _is_remark(key):
                yield from _inner(config, here, known)


def _inner(config: Config, path: Path, known: frozenset[str]) -> Iterator[Key]:
    """A misspelt key of a block whose keys are known."""
    from dsaccum_helpers.mismatches.near_keys import nearest

    near, block = nearest(path[-1], sorted(known)), ".".join(path[:-1])
    if near is None or near[1] == "other name":
        return
    does = 'refuses it: "Extra inputs are not permitted"' if block in CHECKED else "ignores it without a word"
    vital = block in ("zero_optimization", "fp16", "bf16")
    severity = "error" if vital else "warning" if near[0] == "grad_accum_dtype" else "note"
    words = f'"{path[-1]}" in "{block}" is no key of that block, "{near[0]}" is; DeepSpeed {does}'
    yield Key(path, (*path[:-1], near[0]), config.get(*path), severity, words)


def _is_text(key: Any) -> bool:
    return isinstance(key, str)


def _is_remark(key: Any) -> bool:
    """Is the key a remark to the reader, as ``_comment`` and ``//`` are?"""
    text = str(key)
    return not text or text[0] in "_/#$@;*" or text.lower().startswith(("comment", "note", "description", "doc"))


def _blocks(values: dict[str, Any], path: Path = ()) -> Iterator[tuple[Path, dict[str, Any]]]:
    """Every dict inside the config, four levels deep, with its key path."""
    for key, value in values.items():
        if isinstance(value, dict) and len(path) < 4:
            yield (*path, str(key)), value
            yield from _blocks(value, (*path, str(key)))
