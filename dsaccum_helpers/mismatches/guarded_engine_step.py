"""engine.step() runs only every N micro-batches, although the engine counts too."""

from __future__ import annotations

from dsaccum_helpers.mismatches.entry import Mismatch, keeps_only_last, needs_accumulation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.setting import Setting


class GuardedEngineStep(Mismatch):
    """The engine counts calls of step(), so a guard around it makes every window N times longer."""

    code = "guarded-engine-step"
    title = "engine.step() is guarded by a counter, and the engine counts too"
    symptom = (
        "No message. One update for every N × N micro-batches; the loss moves in few, large steps or hardly at all."
    )
    cause = "The guard of a plain PyTorch loop (if (i + 1) % N == 0) was kept around engine.step()."
    consequence = "N times fewer updates. ZeRO-0 and 3 add up N windows; ZeRO-1 and 2 keep only the last micro-batch."
    remedy = "Call engine.step() after every engine.backward(loss): the engine knows when the window is full."

    def needs(self, setting: Setting) -> str | None:
        """A guard of one is no guard."""
        return needs_accumulation(setting)

    @staticmethod
    def loop(run: Any) -> None:
        """Count in the script what the engine counts already."""
        for i, (inputs, targets) in enumerate(run.loader):
            loss = run.criterion(run.engine(inputs), targets)
            run.engine.backward(loss)
            if (i + 1) % run.gradient_accumulation_steps == 0:
                run.engine.step()

    def predict(self, setting: Setting) -> Prediction:
        """A window is N × N micro-batches; what enters the update depends on the ZeRO stage."""
        count = setting.gradient_accumulation_steps
        weights = (1 / count,) * count**2
        if keeps_only_last(setting):
            weights = (0.0,) * (count**2 - 1) + (1 / count,)
        return self._prediction(setting, weights=weights, optimizer_steps=setting.micro_batches // count**2)
