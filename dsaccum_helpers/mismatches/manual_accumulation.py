"""Accumulation 1 in the config, several backwards and one step in the script."""

from __future__ import annotations

from dsaccum_helpers.mismatches.entry import Mismatch, keeps_only_last, needs_accumulation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.setting import Setting


class ManualAccumulation(Mismatch):
    """The script accumulates by itself and the engine does not know."""

    code = "manual-accumulation"
    title = "The script accumulates, and the config says accumulation 1"
    symptom = "No message. The same script trains differently from one ZeRO stage to the next."
    cause = "gradient_accumulation_steps is 1 (or missing), and engine.step() runs after several engine.backward calls."
    consequence = "ZeRO-0 and 3 apply the sum instead of the mean; ZeRO-1 and 2 keep only the last micro-batch."
    remedy = "Put the number into the config and call engine.step() after every engine.backward(loss)."

    def needs(self, setting: Setting) -> str | None:
        """One micro-batch per update needs no accumulation by hand."""
        return needs_accumulation(setting)

    def config(self, setting: Setting) -> dict[str, Any]:
        """The number that the script keeps to itself is missing here."""
        size = setting.train_micro_batch_size_per_gpu * setting.processes
        return setting.ds_config() | {"gradient_accumulation_steps": 1, "train_batch_size": size}

    @staticmethod
    def loop(run: Any) -> None:
        """Several backwards, one step."""
        for i, (inputs, targets) in enumerate(run.loader):
            loss = run.criterion(run.engine(inputs), targets)
            run.engine.backward(loss)
            if (i + 1) % run.gradient_accumulation_steps == 0:
                run.engine.step()

    def predict(self, setting: Setting) -> Prediction:
        """The sum, or the last one alone, by ZeRO stage."""
        count = setting.gradient_accumulation_steps
        weights = (0.0,) * (count - 1) + (1.0,) if keeps_only_last(setting) else (1.0,) * count
        return self._prediction(setting, weights=weights)
