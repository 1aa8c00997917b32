"""The names of facts, and what a fact, an event of a log and their sources are (pure)."""

from __future__ import annotations

from collections import namedtuple

from dsaccum_helpers.batch import KEYS as BATCH_KEYS
from dsaccum_helpers.errors import DsaccumError

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

FRAMEWORKS = ("deepspeed", "transformers", "accelerate", "lightning", "trl", "openrlhf", "megatron")
#: Facts that stand for a key of the DeepSpeed config: setting them changes the config.
CONFIG_FACTS = {**{key: (key,) for key in BATCH_KEYS}, "zero_stage": ("zero_optimization", "stage")}
#: The other names that ``--set`` takes, with what each must be. ``environment.*`` and ``trainer.*`` take any name.
FACTS = {
    "processes": "count",
    "tensor_parallel": "count",
    "pipeline_parallel": "count",
    "sequence_parallel": "count",
    "trainer.per_device_train_batch_size": "any",
    "trainer.gradient_accumulation_steps": "any",
    "trainer.accumulate_grad_batches": "any",
    "trainer.max_grad_norm": "number",
    "accelerator.gradient_accumulation_steps": "any",
    "loader.batch_size": "count",
    "loader.length": "size",
    "loader.has_batch_size": "flag",
    "dataset.length": "size",
    "dataset.drop_last": "flag",
    "dataset.equal_token_counts": "flag",
    "scheduler.steps_per_optimizer_step": "number",
    "scheduler.total_steps": "count",
    "epochs": "number",
    "checkpoint.processes": "count",
    "checkpoint.gradient_accumulation_steps": "count",
    "checkpoint.train_micro_batch_size_per_gpu": "count",
    "checkpoint.global_step": "size",
    "generation.num_generations": "count",
    "generation.processes": "size",
    "model.has_batch_norm": "flag",
    "model.has_auxiliary_loss": "flag",
    "optimizer": "text",
    "dtype": "text",
    "wanted.train_batch_size": "count",
}

#: Beginnings of facts that may go on with any name.
OPEN_FACTS = ("environment", "trainer", "generation", "accelerator", "accelerate", "plugin")

Source = namedtuple("Source", "file line column key", defaults=(None, None, None, None))
Source.__doc__ = "Where something was read: a file (or the option that said it), line and column from 1, and the key."

Fact = namedtuple("Fact", "value source")
Fact.__doc__ = "One value of a named fact, and the Source that says so."

GIVEN = Source("--have")

Event = namedtuple("Event", "kind values source count")
Event.__doc__ = "What a log says: its kind (see readers/log.py), a dict of values, the first Source, how often it came."

Unreadable = namedtuple("Unreadable", "source message remedy")
Unreadable.__doc__ = "A file that is recognisable as a config but cannot be read; ``remedy`` is the smallest one."


class JobError(DsaccumError):
    """An option that is off, or a file that cannot be read: one line that says which and why."""


def config_path(name: str) -> tuple[str, ...] | None:
    """The key path in the DeepSpeed config for a name that is none of the facts: ``bf16.enabled``."""
    if name in FACTS or name.split(".")[0] in (*OPEN_FACTS, "loader"):
        return None
    return tuple(name.split("."))


def checked(name: str, value: Any) -> Any:
    """The value of a fact, or JobError where it is not what the fact must be."""
    kind = FACTS.get(name, "any")
    whole = isinstance(value, int) and not isinstance(value, bool)
    right = {
        "count": whole and value >= 1,
        "size": whole and value >= 0,
        "number": (whole or isinstance(value, float)) and value >= 0,
        "flag": isinstance(value, bool),
        "text": isinstance(value, str),
        "any": True,
    }[kind]
    if right:
        return value
    needed = {"count": "a positive integer", "size": "an integer of at least 0", "flag": "true or false"}
    raise JobError(f"{name} is {value!r:.60}. Smallest fix: give {needed.get(kind, f'a {kind}')}.")


def by_place(sources: Iterable[Source]) -> list[Source]:
    """Each source once, in the order given."""
    return list(dict.fromkeys(sources))
