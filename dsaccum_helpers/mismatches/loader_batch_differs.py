"""The loader's batch is not the micro-batch of the config."""

from __future__ import annotations

from dsaccum_helpers.mismatches.entry import Mismatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dsaccum_helpers.setting import Setting


class LoaderBatchDiffers(Mismatch):
    """The engine never looks at the size of what it is fed."""

    code = "loader-batch-differs"
    title = "The loader's batch is not the micro-batch of the config"
    symptom = "No message. An epoch ends after half the steps; throughput and sample counts are off by two."
    cause = "DataLoader(batch_size=...) was set by hand, and train_micro_batch_size_per_gpu was not."
    consequence = "Every update averages over twice the samples that the config claims."
    remedy = "DataLoader(batch_size=engine.train_micro_batch_size_per_gpu())."

    def loader_batch_size(self, setting: Setting) -> int:
        """Twice the micro-batch that the config promises."""
        return 2 * setting.train_micro_batch_size_per_gpu
