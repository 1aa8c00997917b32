"""The three numbers are right, for another number of processes."""

from __future__ import annotations

from dsaccum_helpers.mismatches.entry import Mismatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dsaccum_helpers.setting import Setting


class WrittenForOtherWorldSize(Mismatch):
    """A config that was right on the machine it was written for."""

    code = "written-for-other-world-size"
    title = "The numbers are right for another number of processes"
    symptom = "deepspeed.initialize raises an AssertionError; the same file works on another machine."
    cause = "The config was written for twice as many processes as now run it."
    consequence = "Nothing is trained: the engine refuses the configuration."
    remedy = "Start as many processes as the file was written for, or double gradient_accumulation_steps."
    learn = "notebooks/01_three_numbers.ipynb"
    refused = True

    def config(self, setting: Setting) -> dict[str, Any]:
        """The same micro-batch and accumulation, multiplied out for twice the processes."""
        return setting.ds_config() | {"train_batch_size": 2 * setting.train_batch_size}
