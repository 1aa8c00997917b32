"""Batch normalisation inside accumulated micro-batches."""

from __future__ import annotations

from dsaccum_helpers.effective import effective
from dsaccum_helpers.effective.world import whole
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches import numerics
from dsaccum_helpers.mismatches.entry import Mismatch, exchanges, needs_accumulation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job
    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.setting import Setting
    from dsaccum_helpers.training.tasks import Task


class BatchNormPerMicroBatch(Mismatch):
    """Gradients are accumulated, the statistics of batch normalisation are not."""

    code = "batch-norm-per-micro-batch"
    title = "Batch normalisation sees one micro-batch at a time"
    symptom = "The same train_batch_size gives another accuracy when it is cut into other micro-batches."
    cause = "A BatchNorm layer normalises with mean and variance of the micro-batch that is passed forward."
    consequence = (
        "The accumulated gradient is not that of the full batch: mean and variance are estimated from each micro-batch "
        "anew, and the running statistics move once for each micro-batch. Measured: the first gradient of 4 "
        "micro-batches was 4 to 7 % longer or shorter."
    )
    remedy = "A larger micro-batch with fewer accumulation steps, or layers without batch statistics (GroupNorm)."
    learn = "notebooks/04_loop_mistakes.ipynb"
    severity = "warning"

    def check(self, job: Job) -> Iterable[Finding]:
        """A model with BatchNorm, and more than one micro-batch per optimizer step."""
        known, count = job.fact("model.has_batch_norm"), numerics.steps(job)
        if known is None or known.value is not True or count is None or count < 2:
            return
        numbers = effective(job)
        micro = whole(numbers.micro.value) if numbers.micro else None
        replicas = numbers.replicas
        sees = f"{micro} samples" if micro else "one micro-batch"
        message = (
            f"Each BatchNorm layer sees {sees} at a time, {count} times for every optimizer step; "
            + (f"the step itself is taken on {micro * count} samples per process. " if micro else "")
            + "Accumulation adds up gradients, not batch statistics, and SyncBatchNorm only joins processes."
        )
        fixes = [Fix("Use GroupNorm or LayerNorm, or freeze the statistics.", {"model.has_batch_norm": False})]
        if micro and replicas and job.config is not None and job.framework in ("deepspeed", "megatron", "openrlhf"):
            setting = {
                "train_batch_size": micro * count * replicas,
                "train_micro_batch_size_per_gpu": micro * count,
                "gradient_accumulation_steps": 1,
            }
            text = f"If memory allows, pass all {micro * count} samples at once: the same batch without accumulation."
            fixes.insert(0, Fix(text, setting))
        yield self.found(message, [known.source, *numerics.steps_source(job)], fixes)

    def needs(self, setting: Setting) -> str | None:
        """A model of layers in a row, and more than one sample to take a variance from."""
        if setting.dtype != "fp32":
            return (
                "torch's BatchNorm refuses what DeepSpeed makes of it in bf16 on the CPU. Smallest fix: dtype 'fp32'."
            )
        if setting.task != "digits":
            return "The run puts a BatchNorm layer into the model of the digits. Smallest fix: task 'digits'."
        if setting.train_micro_batch_size_per_gpu < 2:
            return "One sample has no variance. Smallest fix: train_micro_batch_size_per_gpu 2."
        return needs_accumulation(setting)

    def prepare(self, task: Task) -> Task:
        """A BatchNorm layer behind the first one."""
        return _with_norm(task, "BatchNorm1d")

    def mended_prepare(self, task: Task) -> Task:
        """A LayerNorm layer in its place: each sample is normalised by itself."""
        return _with_norm(task, "LayerNorm")

    def predict(self, setting: Setting) -> Prediction:
        """Each process's micro-batches go through the model one by one."""
        from dataclasses import replace

        return replace(self._prediction(setting), exchanges=exchanges(setting))


def _with_norm(task: Task, name: str) -> Task:
    from dataclasses import replace

    def make_model() -> Any:
        from torch import nn

        first, *rest = task.make_model().children()
        return nn.Sequential(first, getattr(nn, name)(first.out_features), *rest)

    return replace(task, make_model=make_model)
