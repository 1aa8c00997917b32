"""A training loop under Accelerate with DeepSpeed, on the CPU.

``run.arguments`` go to ``Accelerator``. ``run.script`` may hold ``plugin`` (arguments of ``DeepSpeedPlugin``),
``environment`` (variables that the shell has set), ``yaml`` (fields beside ``deepspeed_config_file`` in the YAML of
``accelerate launch``), ``loader`` (``"batch_sampler"``: a loader without a batch size;
``"not prepared"``: it is not handed to ``prepare``), ``accumulate`` (False: the loop does not enter
``accelerator.accumulate``), ``backend`` (None: Accelerate is not told to use gloo) and ``left_over``.
"""

from __future__ import annotations

import contextlib
import os

import torch
from accelerate import Accelerator, DeepSpeedPlugin
from accelerate.utils import InitProcessGroupKwargs
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

from dsaccum_helpers.frameworks.data import LEARNING_RATE, Bench
from dsaccum_helpers.frameworks.watching import watching
from dsaccum_helpers.mismatches.framework_runs import MICRO_BATCH_SIZE, FrameworkRun


def train(run: FrameworkRun, bench: Bench) -> None:
    """One epoch, with the settings of the run."""
    os.environ.update(run.script.get("environment", {}))
    # This is how accelerate launch tells the script which fields its YAML has.
    os.environ["ACCELERATE_CONFIG_DS_FIELDS"] = ",".join(run.script.get("yaml", {}))
    plugin = DeepSpeedPlugin(hf_ds_config=run.config, **run.script.get("plugin", {}))
    # Without a GPU Accelerate counts one process, whatever was started, unless it is told to use gloo.
    group = InitProcessGroupKwargs(backend=run.script.get("backend", "gloo"))
    accelerator = Accelerator(deepspeed_plugin=plugin, kwargs_handlers=[group], **run.arguments)

    optimizer = torch.optim.SGD(bench.model.parameters(), lr=LEARNING_RATE)
    loader = make_loader(run, TensorDataset(bench.inputs, bench.targets))
    if run.script.get("loader") == "not prepared":
        engine, optimizer = accelerator.prepare(bench.model, optimizer)
    else:
        engine, optimizer, loader = accelerator.prepare(bench.model, optimizer, loader)

    accumulate = accelerator.accumulate if run.script.get("accumulate", True) else contextlib.nullcontext
    with watching(engine, run):
        for inputs, targets in loader:
            with accumulate(engine):
                loss = bench.criterion(engine(inputs), targets)
                accelerator.backward(loss)
                optimizer.step()
                optimizer.zero_grad()


def make_loader(run: FrameworkRun, samples: TensorDataset) -> DataLoader:
    """Micro-batches in the order of the samples."""
    if run.script.get("loader") == "batch_sampler":
        sampler = BatchSampler(SequentialSampler(samples), MICRO_BATCH_SIZE, drop_last=False)
        return DataLoader(samples, batch_sampler=sampler)
    return DataLoader(samples, batch_size=MICRO_BATCH_SIZE)
