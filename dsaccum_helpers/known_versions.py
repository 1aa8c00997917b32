"""Library versions with a known fault of gradient accumulation: the table, as data.

Each Row says in which versions of a package the fault is, and under which conditions of the job it bites.
``mismatches/known_bad_version.py`` checks them; all conditions that a row has must hold:

    with        other packages and their version ranges; a range holds only for a version that is known
    frameworks  names of ``job.FRAMEWORKS``
    deepspeed   true: the job uses DeepSpeed; false: it does not
    stages      ZeRO stages
    offload     true: the optimizer state is offloaded to the CPU
    accumulates true: more than one micro-batch per optimizer step
    pipeline    true: more than one pipeline stage
    dtype       ``bf16`` or ``fp16``
    fp32_sums   true: ``data_types.grad_accum_dtype`` is fp32
    processes   true: more than one process
    resumes     true: a checkpoint with another micro-batch is resumed
    generations true: a reinforcement learning trainer with several generations per prompt
    backwards   true: several backward calls are seen before one step
"""

from __future__ import annotations

from collections import namedtuple

__all__ = ["ROWS", "Row"]

Row = namedtuple("Row", "name package versions when effect fixed source remedy severity", defaults=(None, "error"))
Row.__doc__ = "One fault. ``fixed``: the first version without it. ``remedy``: what helps beside a newer version."

ROWS = (
    Row(
        "the config is built before the process group",
        "deepspeed",
        "==0.9.0",
        {"frameworks": ("transformers", "accelerate", "trl"), "processes": True},
        "DeepSpeed counts one process, so train_batch_size is checked and derived against a world size of 1",
        "0.9.1",
        "DeepSpeed #3228, Accelerate #1324",
    ),
    Row(
        "ZeRO-2 gradients are too small",
        "deepspeed",
        ">=0.17.6,<=0.18.2",
        {"stages": (2,), "accumulates": True},  # measured: with one accumulation step these releases train right
        "of {steps} micro-batches only the last one's gradients are left, although the loss looks the same",
        "0.18.3",
        "DeepSpeed #7718, and docs/releases.md",
        "stage 1 or 3",
    ),
    Row(
        "scale_wrt_gas=False is ignored",
        "deepspeed",
        "==0.18.3",  # read in the sources of 0.18.2, 0.18.3 and 0.18.4: the hook came with 0.18.3
        {"frameworks": ("transformers", "trl"), "with": {"transformers": ">=4.49"}, "accumulates": True},
        "the Trainer has normalised the loss by tokens and says so with scale_wrt_gas=False, and this DeepSpeed "
        "divides by {steps} all the same: gradients are 1/{steps} of the right ones",
        "0.18.4",
        "DeepSpeed PR 7724 and engine.py of 0.18.3; Accelerate #3877",
    ),
    Row(
        "ZeRO-2 with CPU offload drops gradients",
        "deepspeed",
        ">=0.15.2,<=0.18.9",
        {"stages": (2,), "offload": True, "accumulates": True},
        "of {steps} micro-batches the first and the last one's gradients are kept, those of all between them are lost",
        "0.19.0",
        "DeepSpeed PR 6550 and PR 7967",
        "no offload_optimizer, or stage 3",
    ),
    Row(
        "CPU offload loses gradients of several backwards",
        "deepspeed",
        "<=0.19.8",
        {"stages": (1, 2), "offload": True, "accumulates": False, "backwards": True},
        "with gradient_accumulation_steps 1 every backward overwrites the gradients of the one before; from 0.19.0 on "
        "those of the first are lost, and those of earlier optimizer steps are added",
        None,
        "DeepSpeed PR 7981, measured with 0.19.8",
        "gradient_accumulation_steps with one step for each backward",
    ),
    Row(
        "the pipeline engine does not divide by the accumulation steps",
        "deepspeed",
        ">=0.16.0,<=0.18.2",  # measured: 0.15.4 averages
        {"pipeline": True, "accumulates": True},
        "gradients are summed over {steps} micro-batches and not averaged: {steps} times too large",
        "0.18.3",
        "DeepSpeed #7749 and #7773",
    ),
    Row(
        "the pipeline engine divides at every stage",
        "deepspeed",
        ">=0.18.3,<=0.19.2",
        {"pipeline": True, "accumulates": True},
        "each hop to an earlier pipeline stage divides by {steps} once more",
        "0.19.3",
        "DeepSpeed #8152, seen on 0.19.2, and PR 8154",
    ),
    Row(
        "ZeRO-1 in bf16 loses the last micro-batch",
        "deepspeed",
        ">=0.18.5,<=0.18.10",
        {"stages": (1,), "dtype": "bf16", "fp32_sums": True, "accumulates": True, "processes": True},
        "the gradients of the window's last micro-batch are left out of the all-reduce",
        "0.19.0",
        "DeepSpeed PR 7985, and docs/releases.md",
        "stage 3",
    ),
    Row(
        "ZeRO-1 in bf16 with sums in fp32 divides by a loss scale that was never applied",
        "deepspeed",
        ">=0.18.3,<=0.18.4",
        {"stages": (1,), "dtype": "bf16", "fp32_sums": True},
        "step() divides the gradients by 65536",
        "0.19.0",  # the releases in between have the fault above
        "measured, see docs/releases.md",
        "stage 2 or 3",
    ),
    Row(
        "bf16 at ZeRO-0 does not clear its gradients",
        "deepspeed",
        ">=0.17.6,<=0.18.5",
        {"stages": (0,), "dtype": "bf16"},
        "gradients are not cleared after the update, so each step takes those of all steps before once more; from "
        "0.18.3 on step() also divides them by a loss scale of 65536 that was never applied",
        "0.18.6",
        "DeepSpeed #7837 and PR 7839, and docs/releases.md",
        "stage 1",
    ),
    Row(
        "fp16 at ZeRO-0 divides by a loss scale that was never applied",
        "deepspeed",
        ">=0.18.3,<=0.19.8",
        {"stages": (0,), "dtype": "fp16"},
        "engine.backward() leaves the loss unscaled and step() divides by the scale: the gradient was 1/16 and 1/128 "
        "of the right one with scales 16 and 128",
        None,
        "DeepSpeed PR 8393, measured with 0.19.8",
        "stage 1",
    ),
    Row(
        "the Trainer's window is neither averaged nor weighted",
        "transformers",
        ">=4.46,<4.49",
        {"frameworks": ("transformers", "trl"), "deepspeed": False, "accumulates": True},
        "for models and losses that do not know num_items_in_batch, loss and gradients are added up over {steps} "
        "micro-batches: {steps} times too large",
        "4.49",
        "Transformers #34263",
    ),
    Row(
        "the Trainer's loss is divided again by DeepSpeed",
        "transformers",
        ">=4.46,<4.49",
        {"frameworks": ("transformers", "trl"), "deepspeed": True, "accumulates": True},
        "a loss that is normalised over the window's tokens is divided by {steps} once more in the engine: gradients "
        "are 1/{steps} of the right ones; for models that do not know num_items_in_batch the logged loss is {steps} "
        "times too large",
        "4.49",
        "Transformers #34263 and PR 35808",
    ),
    Row(
        "a resumed Trainer keeps the checkpoint's batch",
        "transformers",
        "<5.2",
        {"frameworks": ("transformers", "trl"), "resumes": True},
        "train_batch_size of trainer_state.json replaces per_device_train_batch_size, so max_steps and the schedule "
        "are those of the old batch",
        "5.2",
        "Transformers PR 43770",
    ),
    Row(
        "the per-device batch counts prompts",
        "trl",
        "<0.15",
        {"generations": True},
        "from 0.15 on per_device_train_batch_size counts completions, here it counts prompts: the same numbers give "
        "another number of prompts per optimizer step",
        "0.15",
        "TRL #2876 and #2858",
        severity="note",
    ),
    *(
        Row(
            "Lightning divides before the engine divides",
            package,
            "==2.6.6",
            {"with": {"deepspeed": ">=0.19"}, "frameworks": ("lightning",), "accumulates": True},
            "Lightning's closure divides the loss by accumulate_grad_batches {steps} and the engine divides again: the "
            "gradient was exactly 1/{steps} of the right one",
            None,
            "measured with deepspeed 0.19.8, in fp32 on the CPU, with Lightning's check for a GPU set aside",
            "a loss multiplied by accumulate_grad_batches in training_step",
        )
        for package in ("lightning", "pytorch-lightning")
    ),
)
