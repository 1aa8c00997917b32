"""The micro-batches of an epoch are not a multiple of the accumulation steps."""

from __future__ import annotations

from dsaccum_helpers.mismatches.entry import Mismatch, needs_accumulation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.setting import Setting


class LeftoverMicroBatches(Mismatch):
    """The window straddles the end of the epoch; what is left at the very end is never applied."""

    code = "leftover-micro-batches"
    title = "Micro-batches are left over at the end of an epoch"
    symptom = "No message. Fewer optimizer steps than planned, and the learning rate never reaches its end."
    cause = (
        "The script plans ceil(len(loader) / accumulation steps) updates an epoch; the engine carries the rest over."
    )
    consequence = "Updates mix two epochs, the last micro-batches are lost, and the schedule is longer than the run."
    remedy = "Make len(loader) a multiple of gradient_accumulation_steps (drop_last on the window, or pad the data)."

    def needs(self, setting: Setting) -> str | None:
        """Nothing can be left over of a window of one micro-batch."""
        return needs_accumulation(setting)

    def epochs(self, setting: Setting) -> tuple[int, int]:
        """Epochs of one window and a half: the script plans two updates in each."""
        count = setting.gradient_accumulation_steps
        return -(-setting.optimizer_steps // 2), count + count // 2

    def predict(self, setting: Setting) -> Prediction:
        """The engine makes one update for each full window, across epochs."""
        epochs, length = self.epochs(setting)
        return self._prediction(setting, optimizer_steps=epochs * length // setting.gradient_accumulation_steps)
