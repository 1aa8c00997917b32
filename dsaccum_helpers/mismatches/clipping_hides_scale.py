"""Gradient clipping hides a gradient that is several times too large."""

from __future__ import annotations

from dsaccum_helpers.mismatches.entry import Mismatch, needs_accumulation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.setting import Setting

#: What DeepSpeed 0.19.3 and newer do where the key ``gradient_clipping`` is missing.
DEFAULT_CLIPPING = 1.0


class ClippingHidesScale(Mismatch):
    """The gradient is the sum over the window instead of its mean, and clipping makes the updates look harmless."""

    code = "clipping-hides-scale"
    title = "Clipping hides a gradient that is too large"
    symptom = "No message. Every update keeps to the clipping norm; only the norm before clipping is N times too large."
    cause = "engine.backward(loss, scale_wrt_gas=False) without dividing, under gradient clipping."
    consequence = "The clipping norm decides the size of every update, not the gradient and the learning rate."
    remedy = "Mend the scale (drop scale_wrt_gas=False), then choose the clipping norm for the right gradient."

    def needs(self, setting: Setting) -> str | None:
        """With one micro-batch the sum is the mean."""
        return needs_accumulation(setting)

    def clipping(self, setting: Setting) -> float:
        """The setting's own norm, or what DeepSpeed takes when the key is missing."""
        return setting.gradient_clipping or DEFAULT_CLIPPING

    def config(self, setting: Setting) -> dict[str, Any]:
        """Clipping on, as it is by default."""
        return setting.ds_config() | {"gradient_clipping": self.clipping(setting)}

    @staticmethod
    def loop(run: Any) -> None:
        """Tell the engine not to divide, and divide nowhere."""
        for inputs, targets in run.loader:
            loss = run.criterion(run.engine(inputs), targets)
            run.engine.backward(loss, scale_wrt_gas=False)
            run.engine.step()

    def predict(self, setting: Setting) -> Prediction:
        """The sum of the window, then the clip."""
        count = setting.gradient_accumulation_steps
        return self._prediction(setting, weights=(1.0,) * count, gradient_clipping=self.clipping(setting))
