"""Hugging Face's Trainer with DeepSpeed, on the CPU.

``run.arguments`` go to ``TrainingArguments``. ``run.script`` may hold ``model`` (``"gpt2"``: texts of unequal length,
whose loss the Trainer weights by the tokens of the whole window) and ``left_over``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from transformers import Trainer, TrainingArguments

from dsaccum_helpers.frameworks.data import LEARNING_RATE, Bench
from dsaccum_helpers.frameworks.watching import watch_callbacks
from dsaccum_helpers.mismatches.framework_runs import FrameworkRun


def train(run: FrameworkRun, bench: Bench) -> None:
    """One epoch, with the settings of the run."""
    arguments = TrainingArguments(
        "trainer_output",
        deepspeed=run.config,
        **run.arguments,
        use_cpu=True,
        ddp_backend="gloo",
        optim="sgd",
        learning_rate=LEARNING_RATE,
        lr_scheduler_type="constant",
        num_train_epochs=1,
        train_sampling_strategy="sequential",  # the order of plain PyTorch
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    if run.script.get("model") == "gpt2":
        model, names = bench.model, ("input_ids", "labels")
    else:
        model, names = WithLoss(bench), ("inputs", "labels")
    rows = [dict(zip(names, row, strict=True)) for row in zip(bench.inputs, bench.targets, strict=True)]
    Trainer(model, arguments, train_dataset=rows, callbacks=watch_callbacks("transformers", run)).train()


class WithLoss(nn.Module):
    """The perceptron as the Trainer wants it: given labels, it returns its mean loss."""

    def __init__(self, bench: Bench) -> None:
        super().__init__()
        self.perceptron, self.criterion = bench.model, bench.criterion

    def forward(self, inputs: torch.Tensor, labels: torch.Tensor) -> dict[str, Any]:
        """The loss of these images (shape: samples, 64) and their digits (shape: samples)."""
        outputs = self.perceptron(inputs)
        return {"loss": self.criterion(outputs, labels), "logits": outputs}
