"""The script divides the loss by the accumulation steps, and the engine does so again."""

from __future__ import annotations

from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.backward_bypasses_engine import scales_direct
from dsaccum_helpers.mismatches.entry import Mismatch, needs_accumulation
from dsaccum_helpers.mismatches.windows import at, count_divisions, live, setup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job
    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.mismatches.windows import Setup
    from dsaccum_helpers.setting import Setting
    from dsaccum_helpers.trace import Division, Event


class LossDividedTwice(Mismatch):
    """A habit of plain PyTorch loops, where nobody else divides."""

    code = "loss-divided-twice"
    title = "The loss is divided by the accumulation steps twice"
    symptom = "No message. The loss falls too slowly under SGD; under Adam nothing shows but the gradient norm."
    cause = "loss / accumulation_steps was carried over from a plain PyTorch loop; engine.backward divides as well."
    consequence = "Every gradient is 1 / accumulation steps of the right one."
    remedy = "engine.backward(loss): leave the division to the engine."
    learn = "notebooks/04_loop_mistakes.ipynb"

    explains = ("clipping-hides-scale",)
    silences = ("unweighted-token-mean",)

    def check(self, job: Job) -> Iterator[Finding]:
        """Each loss that the script has divided and that the engine, or the Trainer, divides again."""
        known = setup(job)
        for program in job.programs:
            for event in live(program):
                if event.kind not in ("backward", "return-loss", "direct-backward") or known.gas == 1:
                    continue
                if not event.info.get("scaled", True) or (
                    event.kind == "direct-backward" and not scales_direct(event, known.stage, job)
                ):
                    continue
                yield from self._in_event(event, known)

    def _in_event(self, event: Event, known: Setup) -> Iterator[Finding]:
        divisions = list(count_divisions(event, known.gas, known.world))
        for kind, division in divisions[:1]:
            yield self._total(event, division, known) if kind == "total" else self._count(event, division, known)

    def _count(self, event: Event, division: Division, known: Setup) -> Finding:
        count = known.gas or "the accumulation steps"
        value = division.value.known(gas=known.gas, world=known.world)
        who = {"accelerate": "accelerator.backward", "deepspeed": f"{event.actor.name}.backward"}
        owner = who.get(event.actor.kind, "the Trainer")
        if event.kind == "direct-backward":
            owner = "DeepSpeed's hook"
        shown = division.text if value is None or str(value) == division.text else f"{division.text} = {value}"
        message = f"The loss is divided by {shown} ({at(division)}), and {owner} divides "
        message += f"it by {count} again ({at(event)}): every gradient is 1/{value or count} of the right one."
        fix = Fix(f"Hand the loss over undivided: leave out the division by {division.text}.")
        return self.found(message, [division.source, event.source], [fix])

    def _total(self, event: Event, division: Division, known: Setup) -> Finding:
        count = known.gas or "the accumulation steps"
        message = (
            f"The loss is divided by {division.text}, which is counted over the whole window, so it is the mean of "
        )
        message += f"the window already ({at(division)}); {event.actor.name}.backward "
        message += (
            f"divides it by {count} again ({at(event)}). Without scale_wrt_gas=False every gradient is 1/{count}."
        )
        fix = Fix(f"{event.actor.name}.backward(loss, scale_wrt_gas=False)")
        return self.found(message, [event.source, division.source], [fix])

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
