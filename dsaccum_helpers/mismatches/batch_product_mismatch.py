"""train_batch_size is not micro-batch × accumulation steps × processes."""

from __future__ import annotations

from dsaccum_helpers.mismatches.entry import Mismatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dsaccum_helpers.setting import Setting


class BatchProductMismatch(Mismatch):
    """All three numbers are given, and their product is another one."""

    code = "batch-product-mismatch"
    title = "The three numbers do not multiply to the train batch size"
    symptom = "deepspeed.initialize raises an AssertionError that prints the two sides of the equation."
    cause = "One number was changed by hand and the two others were left as they were."
    consequence = "Nothing is trained: the engine refuses the configuration."
    remedy = "Leave one of the three numbers out: DeepSpeed derives it. Or set train_batch_size to the product."
    learn = "notebooks/01_three_numbers.ipynb"
    refused = True

    def needs(self, setting: Setting) -> str | None:
        """With micro-batch 1 and accumulation 1 every train batch size fits some number of processes."""
        if setting.train_micro_batch_size_per_gpu * setting.gradient_accumulation_steps > 1:
            return None
        return (
            "With micro-batch 1 and accumulation 1 every train batch size is right for some number of processes. "
            "Smallest fix: gradient_accumulation_steps 2."
        )

    def config(self, setting: Setting) -> dict[str, Any]:
        """One sample too many: no number of processes makes that product whole."""
        return setting.ds_config() | {"train_batch_size": setting.train_batch_size + 1}
