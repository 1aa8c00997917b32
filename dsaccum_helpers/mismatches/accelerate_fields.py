"""Fields of an Accelerate config that Accelerate does not know (pure)."""

from __future__ import annotations

from dsaccum_helpers.batch import KEYS
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.near_keys import nearest

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsaccum_helpers.job import Fact, Job, Source

    Found = tuple[str, list[Source], list[Fix]]

#: The fields under ``deepspeed_config``, and those at the top that have to do with batches and processes.
FIELDS = frozenset(
    (
        *("gradient_accumulation_steps", "gradient_clipping", "zero_stage", "zero3_init_flag", "deepspeed_hostfile"),
        *("zero3_save_16bit_model", "offload_optimizer_device", "offload_param_device", "offload_optimizer_nvme_path"),
        *("offload_param_nvme_path", "deepspeed_config_file", "deepspeed_multinode_launcher", "mixed_precision"),
        *("deepspeed_exclusion_filter", "deepspeed_inclusion_filter", "deepspeed_moe_layer_cls_names"),
        *("num_processes", "num_machines", "machine_rank", "use_deepspeed", "enable_msamp", "msamp_opt_level"),
    )
)
VITAL = (*KEYS, "gradient_clipping", "num_processes", "zero_stage")


def unknown_fields(job: Job) -> Iterator[Found]:
    """Message, places and fixes for each unknown field that is near to one that matters."""
    for name in [name for name in job.facts if name.startswith("accelerate.") and name.count(".") == 1]:
        field, fact = name.partition(".")[2], job.all(name)[0]
        near = None if field in FIELDS else nearest(field, (*FIELDS, *KEYS))
        if near is None or near[0] not in VITAL:
            continue
        yield _renamed(name, fact, near[0]) if near[0] in FIELDS else _elsewhere(job, name, fact, near[0])


def _renamed(name: str, fact: Fact, right: str) -> Found:
    field = name.partition(".")[2]
    text = f'"{field}" is no field of an Accelerate config, "{right}" is; it is ignored without a word.'
    return text, [fact.source], [Fix(f'Rename it to "{right}".', {name: None, f"accelerate.{right}": fact.value})]


def _elsewhere(job: Job, name: str, fact: Fact, right: str) -> Found:
    """A key of DeepSpeed's own config."""
    field, loader = name.partition(".")[2], job.value("loader.batch_size")
    text = f'"{field}" is no field of an Accelerate config: its {fact.value!r:.40} is ignored without a word.'
    if right == "train_micro_batch_size_per_gpu":
        text += " Accelerate takes the micro-batch from the loader's batch_size" + (f", {loader}." if loader else ".")
    fixes = [
        Fix(f'Remove "{field}"; the DataLoader says it.', {name: None}),
        Fix(f'Or write "{right}" into a DeepSpeed config that deepspeed_config_file names.'),
    ]
    return text, [fact.source], fixes
