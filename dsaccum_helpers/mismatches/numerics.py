"""What several entries need to know of a job's numerics: ZeRO stage, 16-bit type, offload, count of steps (pure)."""

from __future__ import annotations

from dsaccum_helpers.effective import effective
from dsaccum_helpers.effective.owners import ACCUMULATION, COUNTS, LIGHTNING
from dsaccum_helpers.effective.world import whole
from dsaccum_helpers.job import Fact

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from dsaccum_helpers.job import Job, Source

#: Everybody who may say how many micro-batches make an optimizer step, where the effective number is not known.
OWNERS = (ACCUMULATION, LIGHTNING, *COUNTS)
#: Spellings of the two 16-bit types, by frameworks and DeepSpeed.
DTYPES = {
    **dict.fromkeys(("bf16", "bfloat16", "torch.bfloat16", "bf16-mixed", "bf16-true"), "bf16"),
    **dict.fromkeys(("fp16", "float16", "half", "torch.float16", "16", "16-mixed", "16-true"), "fp16"),
    **dict.fromkeys(("fp32", "float32", "float", "torch.float32", "32", "32-true", "no"), "fp32"),
}


def steps(job: Job) -> int | None:
    """Micro-batches per optimizer step, None where that cannot be known."""
    known = effective(job).steps
    count = whole(known.value) if known else None
    return count or next((whole(fact.value) for name in OWNERS if (fact := job.fact(name))), None)


def steps_source(job: Job) -> list[Source]:
    """Where the count was read: one Source, or none."""
    facts = [effective(job).steps, *(job.fact(name) for name in OWNERS)]
    return [fact.source for fact in facts if fact and fact.source and fact.source.file][:1]


def trains_with_deepspeed(job: Job) -> bool:
    """Does anything say that DeepSpeed trains this job?"""
    if job.framework in ("deepspeed", "openrlhf", "megatron") or job.configs or job.unreadable or job.references:
        return True
    if any(launch.launcher == "deepspeed" for launch in job.launches):
        return True
    flags = ("trainer.deepspeed", "accelerate.use_deepspeed", "accelerate.zero_stage", "plugin.zero_stage")
    kind = str(job.value("accelerate.distributed_type", ""))
    named = kind.upper() + str(job.value("trainer.strategy", "")).upper()
    return "DEEPSPEED" in named or any(job.value(name) for name in flags)


def zero_stage(job: Job) -> int | None:
    """The ZeRO stage; 0 for a config without the block, None where nobody says."""
    config = job.config
    if config is not None and isinstance(config.get("zero_optimization"), bool):
        return int(config.get("zero_optimization"))
    for name in ("zero_stage", "accelerate.zero_stage", "plugin.zero_stage"):
        value = job.value(name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    strategy = str(job.value("trainer.strategy", ""))
    if strategy.startswith("deepspeed_stage_"):
        return int(strategy[16:17]) if strategy[16:17].isdigit() else None
    return 0 if config is not None and config.kind != "arguments" and not config.has("zero_optimization") else None


def offloads(job: Job) -> bool:
    """Is the optimizer state kept on the CPU?"""
    config = job.config
    said = [job.value("accelerate.offload_optimizer_device"), job.value("plugin.offload_optimizer_device")]
    if config is not None:
        said.append(config.get("zero_optimization", "offload_optimizer", "device"))
        said.append("cpu" if config.get("zero_optimization", "cpu_offload") is True else None)
    return "cpu" in said or "_offload" in str(job.value("trainer.strategy", ""))


def dtype(job: Job) -> tuple[str, Fact | None]:
    """``bf16``, ``fp16`` or ``fp32``, with the Fact that says so; an empty text where nobody says."""
    config = job.config
    if config is not None:
        for block, name in (("bf16", "bf16"), ("bfloat16", "bf16"), ("fp16", "fp16")):
            if config.get(block, "enabled") is True:
                return name, Fact(True, config.source(block, "enabled"))
    for name in ("bf16", "fp16"):
        if job.value(f"trainer.{name}") is True:
            return name, job.fact(f"trainer.{name}")
    for name in ("accelerate.mixed_precision", "environment.ACCELERATE_MIXED_PRECISION", "trainer.precision", "dtype"):
        found = DTYPES.get(str(job.value(name, "")).lower())
        if found:
            return found, job.fact(name)
    return ("fp32" if config is not None and config.kind == "file" else ""), None


def sum_dtype(job: Job) -> str:
    """What ``data_types.grad_accum_dtype`` says, an empty text where the key is missing or not a type."""
    config = job.config
    return "" if config is None else DTYPES.get(str(config.get("data_types", "grad_accum_dtype", default="")), "")
