"""The script divides the loss by the accumulation steps, and the engine does so again."""

from __future__ import annotations

from dsaccum_helpers.mismatches.entry import Mismatch, needs_accumulation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.setting import Setting


class LossDividedTwice(Mismatch):
    """A habit of plain PyTorch loops, where nobody else divides."""

    code = "loss-divided-twice"
    title = "The loss is divided by the accumulation steps twice"
    symptom = "No message. The loss falls too slowly under SGD; under Adam nothing shows but the gradient norm."
    cause = "loss / accumulation_steps was carried over from a plain PyTorch loop; engine.backward divides as well."
    consequence = "Every gradient is 1 / accumulation steps of the right one."
    remedy = "engine.backward(loss): leave the division to the engine."

    def needs(self, setting: Setting) -> str | None:
        """Dividing by one changes nothing."""
        return needs_accumulation(setting)

    @staticmethod
    def loop(run: Any) -> None:
        """Divide, then hand over to an engine that divides."""
        for inputs, targets in run.loader:
            loss = run.criterion(run.engine(inputs), targets)
            run.engine.backward(loss / run.gradient_accumulation_steps)
            run.engine.step()

    def predict(self, setting: Setting) -> Prediction:
        """Each micro-batch weighs 1 / accumulation steps squared."""
        count = setting.gradient_accumulation_steps
        return self._prediction(setting, weights=(1 / count**2,) * count)
