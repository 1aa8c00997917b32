"""``managed_gradient_accumulation`` false while the default scaling stays, or not a boolean."""

from __future__ import annotations

from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.entry import Mismatch, needs_accumulation

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job
    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.mismatches.windows import Pair, Setup
    from dsaccum_helpers.setting import Setting
    from dsaccum_helpers.trace import Program

_KEY = "managed_gradient_accumulation"


class CallerOwnedBoundary(Mismatch):
    """The script owns the windows, and the engine still divides by the config's count."""

    code = "caller-owned-boundary"
    title = "The script owns the window, and the engine still divides by its own count"
    symptom = 'No message. With the text "false" in place of false most step() calls do nothing.'
    cause = "managed_gradient_accumulation: false takes the counting away from the engine, not the division."
    consequence = (
        "Every update is (micro-batches in the window) / (accumulation steps of the config) of the mean; divided by "
        "the script as well, 1 / accumulation steps."
    )
    remedy = (
        "engine.backward(loss / n, scale_wrt_gas=False), or gradient_accumulation_steps 1 with the script's division."
    )
    learn = "notebooks/04_loop_mistakes.ipynb"
    silences = ("loss-divided-twice", "manual-accumulation", "guarded-engine-step", "several-backwards-per-step")
    explains = ("clipping-hides-scale",)

    def check(self, job: Job) -> Iterator[Finding]:
        """The value in the config, and what the script does with its windows."""
        managed = job.config.get(_KEY) if job.config else None
        if managed is None:
            return
        if not isinstance(managed, bool):
            yield self._no_boolean(job, managed)
        elif managed is False and job.programs:
            from dsaccum_helpers.mismatches.windows import setup

            known = setup(job)
            for program in job.programs:
                yield from self._windows(program, known)

    def _no_boolean(self, job: Job, managed: object) -> Finding:
        assert job.config is not None
        off = str(managed).strip().lower() in ("false", "0", "no", "off", "")
        truthy = bool(managed)
        does = "the engine goes on counting, and step() does nothing inside its window" if truthy else "the script owns"
        does += "" if truthy else " the window"
        message = f"{_KEY} is {managed!r:.40}, which is not a boolean. It counts as {'true' if truthy else 'false'}: "
        message += f"{does}."
        value = not off
        fix = Fix(f"Write {str(value).lower()} without quotes.", {_KEY: value})
        where, title = [job.config.source(_KEY)], f"{_KEY} is not a boolean"
        if truthy == value:  # what is meant is also what happens
            return self.found(message, where, [fix], severity="note", consequence="", title=title)
        does = "Updates come at other times than the script means."
        return self.found(message, where, [fix], consequence=does, title=title)

    def _windows(self, program: Program, known: Setup) -> Iterator[Finding]:
        from dsaccum_helpers.mismatches.windows import pairs, sets_boundary

        for pair in pairs(program):
            if sets_boundary(program, pair.engine):
                message = f"set_gradient_accumulation_boundary() is called although {_KEY} is false: DeepSpeed raises."
                event = next(e for e in program.events if e.kind == "set-boundary")
                fix = Fix("Leave the call out: step() ends the window.")
                yield self.found(message, [event.source], [fix], consequence="Nothing is trained: the call raises.")
                return
            if pair.step is not None and (message := _fault(pair, known)):
                fixes = [
                    Fix(
                        f"{pair.engine.name}.backward(loss / n, scale_wrt_gas=False) with n micro-batches in a window."
                    ),
                    Fix("gradient_accumulation_steps 1 in the config, with the division by n in the script."),
                ]
                yield self.found(message, [pair.backward.source, pair.step.source], fixes)
                return

    def needs(self, setting: Setting) -> str | None:
        """Divided twice by one, a loss stays what it is."""
        return needs_accumulation(setting)

    def config(self, setting: Setting) -> dict[str, Any]:
        """The script says where a window ends."""
        return setting.ds_config() | {_KEY: False}

    @staticmethod
    def loop(run: Any) -> None:
        """Own the window, and divide for it; the engine divides too."""
        for i, (inputs, targets) in enumerate(run.loader):
            loss = run.criterion(run.engine(inputs), targets)
            run.engine.backward(loss / run.gradient_accumulation_steps)
            if (i + 1) % run.gradient_accumulation_steps == 0:
                run.engine.step()

    def mended_config(self, setting: Setting) -> dict[str, Any]:
        """The script still owns the window."""
        return self.config(setting)

    @staticmethod
    def mended_loop(run: Any) -> None:
        """Own the window and the division: the engine is told to leave the loss as it is."""
        for i, (inputs, targets) in enumerate(run.loader):
            loss = run.criterion(run.engine(inputs), targets)
            run.engine.backward(loss / run.gradient_accumulation_steps, scale_wrt_gas=False)
            if (i + 1) % run.gradient_accumulation_steps == 0:
                run.engine.step()

    def predict(self, setting: Setting) -> Prediction:
        """Divided by the accumulation steps twice."""
        count = setting.gradient_accumulation_steps
        return self._prediction(setting, weights=(1 / count**2,) * count)


def _fault(pair: Pair, known: Setup) -> str:
    """What is wrong with the scale of a window that the script owns; empty where it is right or not known."""
    from dsaccum_helpers.mismatches.windows import at, count_divisions, own_count

    own, gas = own_count(pair, known), known.gas
    scaled = pair.backward.info.get("scaled", True)
    whole = own if isinstance(own, int) else None
    kinds = {kind for kind, _ in count_divisions(pair.backward, whole or gas)}
    where = f"({at(pair.backward)}, {at(pair.step)})"
    if not pair.inner and not pair.guards:
        if gas is None or gas == 1 or not scaled:
            return ""
        return (
            f"step() is called for every micro-batch {where} and the engine still divides by {gas}: each update is "
            f"1/{gas} of the gradient."
        )
    if kinds and scaled and gas is not None and gas > 1:
        return f"The script divides the loss by its window and the engine by {gas} again {where}: 1/{gas} of the mean."
    if not kinds and scaled and gas is not None and own is not None and own != gas:
        return (
            f"{own} losses make one update {where}, and each is divided by the {gas} of the config: the update is "
            f"{own}/{gas} of the mean."
        )
    if not kinds and not scaled and own is not None and own > 1:
        return f"{own} losses make one update {where} and nobody divides them: the update is {own} times the mean."
    return ""
