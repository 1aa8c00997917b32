"""The words by which mappings are told apart: DeepSpeed's config, a trainer's arguments, and others."""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import Any

    Path = tuple[str, ...]

#: Keys that stand at the top of a DeepSpeed config and of nothing else; ``gradient_accumulation_steps`` is everyone's.
_KEYS = (
    "train_batch_size train_micro_batch_size_per_gpu zero_optimization gradient_clipping steps_per_print "
    "wall_clock_breakdown zero_allow_untested_optimizer zero_force_ds_cpu_optimizer data_types prescale_gradients "
    "gradient_predivide_factor activation_checkpointing flops_profiler elasticity autotuning comms_logger "
    "managed_gradient_accumulation communication_data_type sparse_gradients bfloat16 gradient_accumulation_dtype"
)
KEYS = frozenset(_KEYS.split())
#: Arguments of trainers, and the other names under which a config may stand.
_OTHER_NAMES = (
    "output_dir per_device_train_batch_size num_train_epochs model_name_or_path base_model finetuning_type "
    "learning_rate max_grad_norm lr_scheduler_type warmup_ratio save_steps logging_steps max_steps num_generations "
    "micro_batch_size accumulate_grad_batches per_device_eval_batch_size per_gpu_train_batch_size distributed_type "
    "compute_environment cells nbformat training_args"
)
OTHERS = frozenset(_OTHER_NAMES.split())
ACCELERATE = {"distributed_type", "compute_environment", "num_machines", "main_training_function"}
#: Blocks whose content is taken as if it stood at the top.
BLOCKS = ("training_arguments", "training_args", "trainer_args", "trainer", "training", "train", "args", "trl", "grpo")
_EMBEDDED = ("deepspeed", "ds_config", "deepspeed_config", "deepspeed_config_dict", "hf_ds_config", "ds_cfg")
#: What shows a block to be a DeepSpeed config whatever key it stands under.
_OWN = {"zero_optimization", "train_micro_batch_size_per_gpu"}
#: Keys by which files that say nothing of batches are known: descriptions of models, tokenizers, packages; states.
_SILENT = {
    *("architectures", "tokenizer_class", "log_history", "added_tokens", "weight_map", "dependencies"),
    *("configurations", "scripts", "packages"),
}
_DEEPEST = 5


def knows(values: dict[str, Any]) -> bool:
    """Is a mapping of one of these kinds, so that it is no DeepSpeed config?"""
    blocks = any(isinstance(values.get(name), dict) for name in (*BLOCKS, *_EMBEDDED))
    return blocks or bool(values.keys() & (ACCELERATE | _SILENT | OTHERS)) or bool(embedded(values, ()))


def embedded(values: Any, path: Path) -> list[tuple[Path, dict[str, Any]]]:
    """DeepSpeed configs that stand in a mapping, with their key paths; a config has none in itself."""
    found: list[tuple[Path, dict[str, Any]]] = []
    if len(path) >= _DEEPEST or not isinstance(values, dict):
        return found
    for name, block in values.items():
        if not isinstance(block, dict):
            continue
        below = (*path, str(name))
        deeper = embedded(block, below)
        if block.keys() & _OWN or (name in _EMBEDDED and block.keys() & KEYS | _batch_key(block)):
            found.append((below, block))
        elif deeper:
            found += deeper
    return found


def _batch_key(block: dict[str, Any]) -> set[str]:
    """The accumulation key, which is enough where the block is named after DeepSpeed."""
    return {"gradient_accumulation_steps"} & block.keys()
