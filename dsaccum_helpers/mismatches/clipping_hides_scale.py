"""Gradient clipping hides a gradient that is several times too large."""

from __future__ import annotations

from dsaccum_helpers.effective.versions import older
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.job import Fact
from dsaccum_helpers.mismatches.entry import Mismatch, needs_accumulation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job, Source
    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.setting import Setting

#: What DeepSpeed 0.19.3 and newer do where the key ``gradient_clipping`` is missing.
DEFAULT_CLIPPING = 1.0
#: Optimizers whose update does not depend on the gradient's scale.
SCALE_FREE = ("adam", "lamb", "lion", "muon", "adafactor")


class ClippingHidesScale(Mismatch):
    """The gradient is the sum over the window instead of its mean, and clipping makes the updates look harmless."""

    code = "clipping-hides-scale"
    title = "Clipping or the optimizer hides a gradient of the wrong scale"
    symptom = "No message. The loss falls as it should; only the gradient norm before clipping is N times off."
    cause = (
        "The gradient is wrong by a factor (a sum in place of a mean, say). Clipping cuts one that is too large, and "
        "Adam and its kin divide by the gradient's own size."
    )
    consequence = "The clipping norm or the optimizer decides the size of every update, not the gradient."
    remedy = "Mend the scale first, then choose the clipping norm for the right gradient."
    learn = "notebooks/04_loop_mistakes.ipynb"

    severity = "warning"
    #: Faults of the gradient's scale; without one of them there is nothing to hide.
    beside = (
        *("loss-divided-twice", "guarded-engine-step", "manual-accumulation", "backward-bypasses-engine"),
        *("several-backwards-per-step", "sticky-boundary-override", "caller-owned-boundary", "micro-batch-skipped"),
        *("auxiliary-loss-unscaled", "zero-grad-inside-window", "known-bad-version"),
    )

    def check(self, job: Job) -> Iterable[Finding]:
        """Clipping that is on, or an optimizer that takes any scale; only said beside a fault of the scale."""
        clip, place = _clipping(job)
        optimizer, source = _optimizer(job)
        if not clip and not optimizer:
            return
        hides = []
        if clip:
            said = "is not given, which means 1.0 from DeepSpeed 0.19.3 on," if place is None else f"{clip:g}"
            hides.append(f"gradient_clipping {said} cuts every gradient that is too large to the same norm")
        if optimizer:
            hides.append(f"{optimizer} divides by the gradient's own size, so the updates hardly change with its scale")
        text = f"The gradient's scale is wrong, and the loss may not show it: {'; '.join(hides)}."
        consequence = (
            "Measured: a loss divided twice ends 0.17 from the right weights with SGD, 0.00002 with Adam; a gradient 4 "
            "times too large ends 0.11 away without clipping, 0.01 with it. Only the norm before clipping shows it."
        )
        fix = Fix("Mend the scale first; to see that it is right, compare with gradient_clipping 0.0 and SGD.")
        yield self.found(text, filter(None, (place, source)), [fix], consequence=consequence)

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


def _clipping(job: Job) -> tuple[float, Source | None]:
    """The norm at which gradients are clipped, 0 where they are not; where it stands, None for the default."""
    config = job.config
    value = config.get("gradient_clipping") if config is not None else None
    place = config.source("gradient_clipping") if config is not None and value is not None else None
    lightning = job.framework == "lightning"  # which fills in its own norm, where the config has none
    if value == "auto" or config is None or (lightning and value is None):
        names = ("trainer.max_grad_norm", "trainer.gradient_clip_val", "accelerate.gradient_clipping")
        fact = next((fact for name in names if (fact := job.fact(name))), None)
        if fact is not None:
            value, place = fact.value, fact.source
        elif lightning:
            return 0.0, None
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value), place
    off = value is None and older(job, "deepspeed", "0.19.3") is True
    return (0.0 if off else DEFAULT_CLIPPING), place


def _optimizer(job: Job) -> tuple[str, Source | None]:
    """The optimizer where it takes any scale of the gradient, and where it stands."""
    config = job.config
    if config is not None and isinstance(config.get("optimizer", "type"), str):
        said = Fact(config.get("optimizer", "type"), config.source("optimizer", "type"))
    else:
        said = job.fact("optimizer") or job.fact("trainer.optim") or Fact("", None)
    name = str(said.value)
    return (name, said.source) if any(word in name.lower() for word in SCALE_FREE) else ("", None)
