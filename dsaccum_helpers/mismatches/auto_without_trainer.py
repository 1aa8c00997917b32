""" "auto" that nobody will fill in."""

from __future__ import annotations

from dsaccum_helpers.batch import KEYS, BatchError, resolve_batch
from dsaccum_helpers.effective import effective
from dsaccum_helpers.effective.owners import TRAINERS, uses_deepspeed
from dsaccum_helpers.effective.world import whole
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.entry import Mismatch
from dsaccum_helpers.mismatches.numbers import listed

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Config, Event, Job
    from dsaccum_helpers.setting import Setting

    Path = tuple[str, ...]

#: Blocks out of which DeepSpeed itself drops every "auto", and takes its default.
_DROPPED = (
    *("zero_optimization", "fp16", "bf16", "tensor_parallel", "activation_checkpointing", "flops_profiler", "aio"),
    *("hybrid_engine", "comms_logger", "tensorboard", "wandb", "csv_monitor", "compile", "checkpoint"),
)
#: Keys for which "auto" is a value of DeepSpeed's own.
_OWN = ("autotuning", "compression_training", "data_efficiency", "keep_in_fp32_modules", "pipeline")
#: What Accelerate fills in (1.15): from the loader, the model, its plugin, and DummyOptim and DummyScheduler.
_ACCELERATE = (*KEYS, "gradient_clipping", "zero_optimization", "fp16", "bf16", "optimizer", "scheduler")


class AutoWithoutTrainer(Mismatch):
    """The word is Transformers' and Accelerate's; DeepSpeed takes it for a value."""

    code = "auto-without-trainer"
    title = 'An "auto" that nobody fills in'
    symptom = "TypeError: '>' not supported between instances of 'str' and 'int', at start-up or at the first update."
    cause = 'The config was written for the Trainer, and raw DeepSpeed (or HfDeepSpeedConfig) reads the word "auto".'
    consequence = "Nothing is trained: start-up fails, or the first optimizer step does."
    remedy = "Write numbers, or let a Trainer read the file."
    learn = "notebooks/01_three_numbers.ipynb"
    refused = True

    def check(self, job: Job) -> Iterable[Finding]:
        """Every "auto" of the config that the job's framework leaves as it is, the one that the log shows first."""
        config = job.config
        if config is None:
            yield from self._from_log(job)
            return
        paths = list(_autos(config.values))
        stopped = _stopped(job, paths)
        left = [path for path in paths if _is_left(job, path)]
        left = stopped + [path for path in left or (paths if stopped else []) if path not in stopped]
        if not left:
            return
        fatal = [path for path in left if path in stopped or job.framework == "accelerate" or path[0] not in _DROPPED]
        where = [config.source(*path) for path in fatal or left]
        where += [event.source for event in job.said("type-error", "kwargs-missing")]
        fix = _fix(job, left)
        if not fatal:
            text = f'DeepSpeed drops the "auto" of {_names(left)} and uses its own default there.'
            yield self.found(text, where, [fix], severity="note", consequence="The default is used.")
            return
        verb, them = ("is", "it") if len(fatal) == 1 else ("are", "them")
        who = f"Accelerate has no value for {them}" if job.framework == "accelerate" else f"nothing fills {them} in"
        text = f'{_names(fatal)} {verb} "auto", and {who}.'
        if not stopped and job.framework == "deepspeed" and not job.programs:
            text += " If the Hugging Face Trainer reads this file, say --framework transformers."
        yield self.found(f"{text} {fix.description}", where, [fix])

    def _from_log(self, job: Job) -> Iterator[Finding]:
        """No config is there: DeepSpeed compared or divided a text, or Accelerate names the key."""
        for event in job.said("kwargs-missing"):
            key = event.values.get("key")
            yield self.found(f'{key} is "auto", and Accelerate has no value for it. Write one.', [event.source])
            return
        for event in job.said("type-error"):
            if "'str'" in str(event.values.get("words")):
                key = event.values.get("key") or "A number"
                text = f'{key} reached DeepSpeed as a text, most often as "auto" ({event.values.get("words")}). '
                yield self.found(f"{text}Write a number, or let a Trainer read the file.", [event.source])
                return

    def config(self, setting: Setting) -> dict[str, Any]:
        """The three numbers as they stand in a file for the Trainer."""
        return setting.ds_config() | dict.fromkeys(KEYS, "auto")


def _autos(node: Any, path: Path = ()) -> Iterator[Path]:
    """The key paths of every "auto" that is none of DeepSpeed's own."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key not in _OWN:
                yield from _autos(value, (*path, str(key)))
    elif node == "auto":
        yield path


def _is_left(job: Job, path: Path) -> bool:
    """Does the framework leave this "auto" as it is?"""
    if job.framework in (*TRAINERS, "openrlhf"):
        return False
    if job.framework == "accelerate" and uses_deepspeed(job):
        assert job.config is not None
        if path == KEYS[:1]:  # filled in only together with the micro-batch
            return not job.config.has(KEYS[1])
        return path[0] not in _ACCELERATE
    return True


def _stopped(job: Job, paths: list[Path]) -> list[Path]:
    """The "auto" at which the job of the log stopped."""
    for event in job.said("kwargs-missing"):
        named = tuple(str(event.values.get("key")).split("."))
        if named in paths:
            return [named]
    for event in job.said("type-error"):
        if "'str'" in str(event.values.get("words")):
            return _at_fault(event, paths)
    return []


def _at_fault(event: Event, paths: list[Path]) -> list[Path]:
    """By the key that the reader guessed, else by the words of the last line of code."""
    key, line = str(event.values.get("key") or ""), str(event.values.get("line_text") or "")
    place = f"{event.values.get('file') or ''} {event.values.get('function') or ''}"
    exact = [path for path in paths if key in (".".join(path), path[-1])]
    if exact:
        return exact[:1]
    named = [path for path in paths if path[-1] in line]
    section = {"lr_sched": "scheduler", "optim": "optimizer"}
    near = [path for path in paths if any(part in place and path[0] == name for part, name in section.items())]
    batch = [path for path in paths if ".".join(path) in KEYS]
    return (named or near or batch)[:1]


def _names(paths: list[Path]) -> str:
    names = [".".join(path) for path in paths]
    return listed(names) if len(names) <= 5 else f"{', '.join(names[:4])} and {len(names) - 4} more"


def _fix(job: Job, paths: list[Path]) -> Fix:
    """Numbers for the batch keys; the other keys go, and with them DeepSpeed's default comes."""
    changes: dict[str, Any] = {".".join(path): None for path in paths}
    if "gradient_clipping" in changes:
        changes["gradient_clipping"] = 1.0
    text = "Write a value for each"
    if any(key in changes for key in KEYS):
        assert job.config is not None
        changes |= _numbers(job, job.config)
        text = "Write numbers: " + ", ".join(f"{key} {changes[key]}" for key in KEYS if changes[key] is not None)
        text += ", and a value for every other one" if len(paths) > 3 else ""
    elif len(paths) == 1:
        text = f"Write a value for {_names(paths)}, or remove the key"
    if any(name.endswith("total_num_steps") for name in changes):
        return Fix(f"{text}; scheduler.params.total_num_steps is the number of optimizer steps.")
    return Fix(f"{text}.", changes)


def _numbers(job: Job, config: Config) -> dict[str, Any]:
    """The batch keys that are numbers, and for the others the smallest that work with them."""
    replicas = effective(job).replicas
    values = [whole(config.get(key)) for key in KEYS]
    values[1] = values[1] or whole(job.value("loader.batch_size"))
    if values[0] is None and values[1] is None:
        values[1] = 1
    try:
        named: dict[str, Any] = dict(zip(KEYS, values, strict=True))
        batch = resolve_batch(**named, world_size=replicas or 1).as_config()
    except BatchError as error:
        batch = error.nearest[0]
        replicas = None if "processes" in batch else replicas
        batch = {key: batch[key] for key in KEYS}
    return batch if replicas else {**batch, KEYS[0]: None}
