"""Keys of a person's config beside the batch, the optimizer and the scheduler: kept, left out, or refused (pure).

Three kinds, and the rule for them: a key that decides numbers of an update is kept or refused, never dropped; one that
only decides how fast, how often or what is logged is left out with a word.
"""

from __future__ import annotations

from typing import Any

from dsaccum_helpers.known_keys import TOP_LEVEL
from dsaccum_helpers.setting import SettingError

#: Keys with blocks or numbers of their own in ``person.py`` and ``blocks.py``.
ELSEWHERE = (
    *("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "gradient_clipping"),
    *("optimizer", "scheduler", "zero_optimization", "bf16", "bfloat16", "zero_allow_untested_optimizer"),
)
KEPT = (
    *("prescale_gradients", "communication_data_type", "data_types", "fp32_allreduce", "allreduce_always_fp32"),
    "disable_allgather",
)
#: What stands in the way, by key: why it cannot be made small, and the smallest remedy.
REFUSED = {
    "fp16": (
        "fp16 has a loss scale that skips updates, and needs a GPU",
        "verify a copy with bf16 or fp32 instead of fp16",
    ),
    "torch_autocast": ("torch_autocast decides a type for each operator of the model", "verify a copy without it"),
    "amp": ("amp belongs to NVIDIA Apex, which runs on its GPUs only", "verify a copy with bf16"),
    "pipeline": ("pipeline stages need the layers of the real model", "verify a copy without the pipeline block"),
    "moe": ("experts need the layers of the real model", "verify a copy without the moe block"),
    "expert_parallel": ("experts need the layers of the real model", "verify a copy without expert_parallel"),
    "tensor_parallel": ("tensor parallelism needs the layers of the real model", "verify a copy without it"),
    "sequence_parallel_size": (
        "sequence parallelism needs the attention of the real model",
        "verify a copy with sequence_parallel_size 1 and the data-parallel size as --processes",
    ),
    "elasticity": (
        "elasticity lets the number of processes decide the batch",
        "verify a copy with the three batch numbers in place of the block",
    ),
    "gradient_predivide_factor": (
        "gradient_predivide_factor is chosen for the real number of processes",
        "verify a copy without it, or with 1.0",
    ),
    "managed_gradient_accumulation": (
        "without managed_gradient_accumulation the script decides where a window ends, and no script is read here",
        "verify a copy without it",
    ),
    "disable_gradient_allreduce": ("the script averages the gradients itself", "verify a copy without it"),
    "gradient_allreduce_op": ("the processes do not average their gradients", "verify a copy without it"),
    "sparse_gradients": ("sparse gradients need embeddings of the real model", "verify a copy without it"),
    "compile": ("DeepCompile rewrites the real model, for minutes", "verify a copy without the compile block"),
    **dict.fromkeys(
        ("curriculum_learning", "data_efficiency"),
        ("the samples of a step depend on the person's own data", "verify a copy without the block"),
    ),
    **dict.fromkeys(
        (
            *("compression_training", "quantize_training", "weight_quantization", "sparse_attention"),
            *("progressive_layer_drop", "pld", "eigenvalue", "hybrid_engine", "graph_harvesting", "inference"),
        ),
        ("it changes the model while it trains, so no full batch gives the same weights", "verify a copy without it"),
    ),
    "autotuning": ("autotuning chooses the batch numbers itself", "verify the config that it writes"),
}
#: In the block ``zero_optimization``.
ZERO_REFUSED = {
    **dict.fromkeys(
        ("offload_optimizer", "cpu_offload", "zenflow"),
        (
            "an offloaded optimizer runs only with an Adam that is compiled for minutes, and adds up gradients by "
            "another path",
            "verify a copy without it, and mind that this proves nothing about the offloaded path",
        ),
    ),
    **dict.fromkeys(
        ("offload_param", "cpu_offload_param", "cpu_offload_params"),
        ("parameters on the CPU or a disk take another path", "verify a copy without it"),
    ),
    **dict.fromkeys(
        ("zero_quantized_weights", "zero_quantized_gradients", "zero_quantized_nontrainable_weights"),
        ("quantised communication rounds on purpose and needs a GPU", "verify a copy without it"),
    ),
    "zeropp_loco_param": ("quantised communication rounds on purpose and needs a GPU", "verify a copy without it"),
    "zero_hpz_partition_size": ("a second partition needs several machines", "verify a copy without it"),
    "mics_shard_size": ("shards within a group need more processes than here", "verify a copy without it"),
}
#: Sizes of buffers and other keys that decide how fast ZeRO is, not what it computes.
_SIZES = ("bucket_size", "max_live", "max_reuse", "threshold", "prefetch", "sub_group_size")
#: Values at which a key does nothing.
_OFF: dict[str, tuple[Any, ...]] = {
    "managed_gradient_accumulation": (True, None),
    "gradient_predivide_factor": (1, None),
    "gradient_allreduce_op": ("mean", "avg", None),
    **dict.fromkeys(("sequence_parallel_size", "zero_hpz_partition_size"), (1, None, False)),
    "mics_shard_size": (-1, None),
}
_BF16 = ("bf16_master_weights_and_grads", "bf16_optimizer_states")


def is_on(name: str, value: Any) -> bool:
    """Does a key with this value do anything? A block that is not enabled, or without a device, does nothing."""
    if name in _OFF:
        return value not in _OFF[name]
    if isinstance(value, dict):
        if name in ("offload_optimizer", "offload_param"):
            return value.get("device", "none") not in ("none", None)
        if name == "tensor_parallel":
            return value.get("autotp_size", 0) not in (0, 1)
        if name == "compile":
            return value.get("deepcompile") is True
        return value.get("enabled", name in ("elasticity", "pipeline", "zenflow")) is True
    return bool(value)


def refuse(name: str, reason: str, remedy: str) -> SettingError:
    """What is in the way, why, and what to do, in one sentence each."""
    return SettingError(f"{name} cannot be verified here: {reason}. Smallest fix: {remedy}.")


def top_level(values: dict[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """What is kept of the keys that stand alone, and which are left out. Raises ``SettingError`` for those in the way.

    Every REFUSED key is looked at first, so that the answer does not depend on the order in the file.
    """
    for name, (reason, remedy) in REFUSED.items():
        if name in values and is_on(name, values[name]):
            raise refuse(name, reason, remedy)
    kept = {name: values[name] for name in KEPT if name in values}
    for name, value in kept.items():
        no_auto(name, value)
    left = [name for name in values if name not in kept and name not in ELSEWHERE and name not in REFUSED]
    known = [name for name in left if name in TOP_LEVEL]
    unknown = [name for name in left if name not in TOP_LEVEL]
    notes = []
    if known:
        notes.append(f"{', '.join(known)}: changes no number of an update.")
    if unknown:
        notes.append(f"{', '.join(map(repr, unknown))}: DeepSpeed knows no such key and passes over it.")
    return kept, notes


def zero(values: Any) -> tuple[dict[str, Any], list[str]]:
    """The block ``zero_optimization`` as it is kept, and what is left out of it. Raises ``SettingError``."""
    if values is None or isinstance(values, bool):
        return {"stage": int(values or 0)}, []
    block = _block("zero_optimization", values)
    for name, (reason, remedy) in ZERO_REFUSED.items():
        if name in block and is_on(name, block[name]):
            raise refuse(f"zero_optimization.{name}", reason, remedy)
    sizes = [name for name in block if any(part in name for part in _SIZES)]
    kept = {name: value for name, value in block.items() if name not in ZERO_REFUSED and name not in sizes}
    stage = kept.setdefault("stage", 0)
    for name, value in kept.items():
        no_auto(f"zero_optimization.{name}", value)
    if isinstance(stage, bool) or stage not in (0, 1, 2, 3):
        raise SettingError(f"zero_optimization.stage is {stage!r:.60}. Smallest fix: 0, 1, 2 or 3.")
    notes = [f"zero_optimization.{', '.join(sizes)}: sizes for a large model."] if sizes else []
    return kept, notes


def bf16(values: dict[str, Any]) -> tuple[dict[str, Any], str]:
    """The block ``bf16`` as it is kept, and the type: ``bf16`` or ``fp32``. Raises ``SettingError``."""
    for name in ("bf16", "bfloat16"):
        block = _block(name, values.get(name) or {})
        no_auto(f"{name}.enabled", block.get("enabled"))
        if block.get("enabled") is not True:
            continue
        for key in _BF16:
            if block.get(key):
                remedy = "verify a copy without it"
                raise refuse(f"{name}.{key}", "without fp32 weights and states the oracle rounds elsewhere", remedy)
        return {name: block}, "bf16"
    return {}, "fp32"


def no_auto(name: str, value: Any) -> None:
    """Raise ``SettingError`` where a value that is needed is ``"auto"``, alone or anywhere in a block."""
    if isinstance(value, dict):
        for key, inner in value.items():
            no_auto(f"{name}.{key}", inner)
    elif value == "auto":
        raise SettingError(
            f'{name} is "auto", which only a trainer fills in. '
            "Smallest fix: verify a copy of the config with the number that the trainer uses."
        )


def _block(name: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise SettingError(
            f"{name} is {value!r:.60}, and DeepSpeed reads a block there. Smallest fix: write it in {{}}."
        )
    return dict(value)
