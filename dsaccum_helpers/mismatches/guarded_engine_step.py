"""engine.step() runs only every N micro-batches, although the engine counts too."""

from __future__ import annotations

from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.entry import Mismatch, keeps_only_last, needs_accumulation
from dsaccum_helpers.mismatches.windows import at, holds_forward, once, own_count, pairs, sets_boundary, setup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job
    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.mismatches.windows import Pair, Setup
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
    learn = "notebooks/04_loop_mistakes.ipynb"

    explains = ("clipping-hides-scale",)
    silences = ("manual-accumulation", "several-backwards-per-step")

    def check(self, job: Job) -> Iterator[Finding]:
        """engine.step() under a counter, or behind a loop of backwards, while the engine counts too."""
        known = setup(job)
        if known.gas == 1 or known.managed is False:
            return
        for program in job.programs:
            seen = set()
            for pair in pairs(program):
                if pair.step is None or pair.step.source in seen or sets_boundary(program, pair.engine):
                    continue
                guarded = once(pair.guards) is not None and own_count(pair, known) != 1
                if guarded or (pair.inner and holds_forward(program, pair)):
                    seen.add(pair.step.source)
                    yield self._said(pair, known)

    def _said(self, pair: Pair, known: Setup) -> Finding:
        guard, count, own = once(pair.guards), known.gas, own_count(pair, known)
        name = pair.engine.name
        if guard is not None and guard.kind == "boundary":
            message = (
                f"{name}.step() is called only where {guard.text} is true ({at(pair.step)}), but the engine counts "
            )
            message += f"its own step() calls towards {count or 'its accumulation steps'}: it never gets there, and no "
            message += "update happens at all."
        else:
            how = f"under `{guard.text}`" if guard else "behind the loop over the micro-batches"
            calls = f"once in {own} micro-batches" if own else "not once for each micro-batch"
            message = f"{name}.step() stands {how} ({at(pair.step)}): it is called {calls}, and the engine counts "
            message += f"{count} calls: " if count else "its accumulation steps in these calls: "
            total = f"every {own} x {count} = {own * count} micro-batches" if own and count else "so many times later"
            message += f"an update only {total}."
        if known.stage in (1, 2) and not (guard is not None and guard.kind == "boundary"):
            message += f" At ZeRO-{known.stage} only the last micro-batch of them survives."
        fix = Fix(f"Call {name}.step() after every {name}.backward(loss), without the condition.")
        where = [pair.step.source, pair.backward.source, *([guard.source] if guard and guard.source else [])]
        return self.found(message, where, [fix])

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
