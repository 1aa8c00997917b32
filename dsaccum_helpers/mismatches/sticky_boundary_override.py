"""``set_gradient_accumulation_boundary`` left on or off."""

from __future__ import annotations

from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.entry import Mismatch, needs_accumulation
from dsaccum_helpers.mismatches.windows import at, live, setup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job
    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.mismatches.windows import Setup
    from dsaccum_helpers.setting import Setting
    from dsaccum_helpers.trace import Event


class StickyBoundaryOverride(Mismatch):
    """The override stays until it is set again."""

    code = "sticky-boundary-override"
    title = "The boundary is overridden and never given back"
    symptom = "Left off: nothing is ever trained. Left on: every micro-batch is an update. No message either way."
    cause = "set_gradient_accumulation_boundary(...) holds until the next call; nobody calls it again."
    consequence = (
        "Off: 0 updates. On: 80 updates of a quarter gradient in place of 20 (measured, accumulation steps 4)."
    )
    remedy = "Set it anew for every micro-batch: True for the last of a window, False for the others."
    learn = "notebooks/04_loop_mistakes.ipynb"
    silences = ("manual-accumulation", "guarded-engine-step", "several-backwards-per-step")

    def check(self, job: Job) -> Iterator[Finding]:
        """Calls with one constant value only."""
        known = setup(job)
        for program in job.programs:
            for engine in program.engines:
                calls = [e for e in live(program) if e.kind == "set-boundary" and e.actor is engine]
                values = {getattr(e.info["value"], "value", None) for e in calls}
                if values == {False}:
                    yield self._said(calls, False, known)
                elif values == {True} and known.gas != 1 and not _passed_on(calls):
                    yield self._said(calls, True, known)

    def _said(self, calls: list[Event], value: bool, known: Setup) -> Finding:
        places = ", ".join(dict.fromkeys(at(event) for event in calls))
        message = f"set_gradient_accumulation_boundary({value}) is called ({places}), and never with {not value}: it "
        if value:
            message += "stays on, so from then on every step() is an update, of one micro-batch divided by "
            message += f"{known.gas or 'the accumulation steps'}."
        else:
            message += "stays off, so no step() is a boundary any more and no update happens."
        fix = Fix(
            "Call set_gradient_accumulation_boundary(is_last) before every backward, True for the last of a window."
        )
        return self.found(message, [event.source for event in calls], [fix])

    def needs(self, setting: Setting) -> str | None:
        """With one micro-batch in a window every step is a boundary anyway."""
        return needs_accumulation(setting)

    @staticmethod
    def loop(run: Any) -> None:
        """Ask for one update here and now, and never give the boundary back."""
        run.engine.set_gradient_accumulation_boundary(True)
        for inputs, targets in run.loader:
            loss = run.criterion(run.engine(inputs), targets)
            run.engine.backward(loss)
            run.engine.step()

    @staticmethod
    def mended_loop(run: Any) -> None:
        """Say for each micro-batch whether it is the last of its window."""
        for i, (inputs, targets) in enumerate(run.loader):
            is_last = (i + 1) % run.gradient_accumulation_steps == 0
            run.engine.set_gradient_accumulation_boundary(is_last)
            loss = run.criterion(run.engine(inputs), targets)
            run.engine.backward(loss)
            run.engine.step()

    def predict(self, setting: Setting) -> Prediction:
        """Each micro-batch is an update of its own, and the engine still divides it by the accumulation steps."""
        weights = (1 / setting.gradient_accumulation_steps,)
        return self._prediction(setting, weights=weights, optimizer_steps=setting.micro_batches)


def _passed_on(calls: list[Event]) -> bool:
    """Is the value of a call only passed on, and no constant?"""
    return any(event.info["value"] is None for event in calls)
