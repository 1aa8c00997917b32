"""PyTorch Lightning with its DeepSpeed strategy. Lightning refuses it on the CPU.

``run.arguments`` go to ``Trainer``. ``run.script`` may hold ``cuda_check`` (False: the one check that asks for a GPU is
set aside, and what is measured is not Lightning as shipped), ``loss`` (``"multiplied"``: by accumulate_grad_batches,
the remedy for dividing twice; ``"divided"``) and ``loader`` (``"no batch size"``).
"""

from __future__ import annotations

import os
from typing import Any

import pytorch_lightning as pl
import torch
from pytorch_lightning.strategies import DeepSpeedStrategy
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from dsaccum_helpers.frameworks.data import LEARNING_RATE, Bench
from dsaccum_helpers.frameworks.watching import watch_callbacks
from dsaccum_helpers.mismatches.framework_runs import MICRO_BATCH_SIZE, FrameworkRun


def train(run: FrameworkRun, bench: Bench) -> None:
    """One epoch, with the settings of the run."""
    strategy = DeepSpeedStrategy if run.script.get("cuda_check", True) else WithoutCudaCheck
    trainer = pl.Trainer(
        **run.arguments,
        strategy=strategy(config=dict(run.config)),
        accelerator="cpu",
        devices=run.processes,
        callbacks=watch_callbacks("lightning", run),
        use_distributed_sampler=False,  # Lightning's own shuffles; this keeps the order of plain PyTorch
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Digits(run, bench), make_loader(run, bench))


def make_loader(run: FrameworkRun, bench: Bench) -> DataLoader:
    """Micro-batches in the order of the samples, side by side for the processes."""
    rank = int(os.environ["RANK"])
    if run.script.get("loader") == "no batch size":
        pairs = list(zip(bench.inputs.split(MICRO_BATCH_SIZE), bench.targets.split(MICRO_BATCH_SIZE), strict=True))
        return DataLoader(pairs[rank :: run.processes], batch_size=None)
    samples = TensorDataset(bench.inputs, bench.targets)
    sampler = DistributedSampler(samples, run.processes, rank, shuffle=False)
    return DataLoader(samples, batch_size=MICRO_BATCH_SIZE, sampler=sampler)


class Digits(pl.LightningModule):
    """A correct module: it returns the mean loss of a micro-batch, unless the script says otherwise."""

    def __init__(self, run: FrameworkRun, bench: Bench) -> None:
        super().__init__()
        self.perceptron, self.criterion, self.loss = bench.model, bench.criterion, run.script.get("loss")

    def training_step(self, batch: Any, index: int) -> torch.Tensor:
        """The loss of one micro-batch."""
        inputs, targets = batch
        loss = self.criterion(self.perceptron(inputs), targets)
        steps = self.trainer.accumulate_grad_batches
        return loss * steps if self.loss == "multiplied" else loss / steps if self.loss == "divided" else loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD, which shows a wrong scale."""
        return torch.optim.SGD(self.parameters(), lr=LEARNING_RATE)


class WithoutCudaCheck(DeepSpeedStrategy):
    """Lightning's strategy without the check that refuses the CPU; everything that trains is Lightning's own."""

    def setup_environment(self) -> None:
        """What ``DeepSpeedStrategy`` does behind its check for a GPU, on CPUs that are numbered like GPUs."""
        self.parallel_devices = [torch.device("cpu", rank) for rank in range(self.num_processes)]
        super(DeepSpeedStrategy, self).setup_environment()
