"""What the three programs train on, and the same training in plain PyTorch. Imports torch, and no framework."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from dsaccum_helpers.mismatches.framework_runs import MICRO_BATCH_SIZE, OPTIMIZER_STEPS, FrameworkRun
from dsaccum_helpers.training.tasks import load_task

LEARNING_RATE = 0.1
IGNORED = -100
"""The label of a place that no loss is computed for, in torch and in Transformers."""


@dataclass(frozen=True)
class Bench:
    """A model, its data in the order in which they are read, and the mean loss. Sample dimension first."""

    model: Any
    inputs: torch.Tensor
    targets: torch.Tensor
    criterion: Any


def make_bench(run: FrameworkRun) -> Bench:
    """The digits and a perceptron; with ``script={"model": "gpt2"}`` texts of unequal length and a small GPT-2.

    As many samples as the optimizer steps that are meant need, and ``left_over`` micro-batches more for each process.
    """
    torch.manual_seed(0)
    count = run.accumulation_steps * OPTIMIZER_STEPS + run.script.get("left_over", 0)
    count *= MICRO_BATCH_SIZE * run.processes
    if run.script.get("model") == "gpt2":
        return _texts(count)
    task = load_task("digits")
    return Bench(task.make_model(), task.inputs[:count], task.targets[:count], task.criterion)


def _texts(count: int) -> Bench:
    """The first 3 to 32 characters of each window of the language task; no loss is computed for the rest."""
    from transformers import GPT2Config, GPT2LMHeadModel

    inputs = load_task("language").inputs[:count].clone()
    lengths = torch.randint(3, inputs.shape[1] + 1, (count, 1), generator=torch.Generator().manual_seed(1))
    targets = inputs.masked_fill(torch.arange(inputs.shape[1]) >= lengths, IGNORED)
    size = {"vocab_size": 96, "n_positions": 32, "n_embd": 32, "n_layer": 1, "n_head": 2}
    size |= {"bos_token_id": 0, "eos_token_id": 0}
    model = GPT2LMHeadModel(GPT2Config(**size, attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0, use_cache=False))
    # Without it Transformers 5.24 counts the first character of each text as a target too, which GPT-2 never predicts.
    model.loss_type = "ForCausalLM"
    return Bench(model, inputs, targets, _next_character)


def _next_character(outputs: Any, targets: torch.Tensor) -> torch.Tensor:
    logits, next_ones = outputs.logits[:, :-1].flatten(0, 1), targets[:, 1:].flatten()
    return functional.cross_entropy(logits, next_ones, ignore_index=IGNORED)


def train_plainly(run: FrameworkRun) -> tuple[list[float], torch.Tensor]:
    """What is meant: one full batch an update, no accumulation, no DeepSpeed and no framework.

    Returns the gradient norm of each optimizer step (L2) and the final weights, flat.
    """
    bench = make_bench(run)
    optimizer = torch.optim.SGD(bench.model.parameters(), lr=LEARNING_RATE)
    norms = []
    size = run.train_batch_size
    for inputs, targets in zip(bench.inputs.split(size), bench.targets.split(size), strict=True):
        optimizer.zero_grad()
        bench.criterion(bench.model(inputs), targets).backward()
        norms.append(float(nn.utils.get_total_norm([p.grad for p in bench.model.parameters() if p.grad is not None])))
        optimizer.step()
    return norms, torch.cat([p.detach().flatten() for p in bench.model.parameters()])
