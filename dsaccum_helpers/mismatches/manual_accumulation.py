"""Accumulation 1 in the config, several backwards and one step in the script."""

from __future__ import annotations

from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.entry import Mismatch, keeps_only_last, needs_accumulation
from dsaccum_helpers.mismatches.windows import (
    at,
    count_divisions,
    holds_forward,
    once,
    own_count,
    pairs,
    sets_boundary,
    setup,
)

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


_EVERY_MICRO_BATCH = (
    "Every micro-batch is an update with its own gradient divided by the accumulation steps (80 updates in place of 20 "
    "measured)."
)


class ManualAccumulation(Mismatch):
    """The script accumulates by itself and the engine does not know."""

    code = "manual-accumulation"
    title = "The script accumulates, and the config says accumulation 1"
    symptom = "No message. The same script trains differently from one ZeRO stage to the next."
    cause = "gradient_accumulation_steps is 1 (or missing), and engine.step() runs after several engine.backward calls."
    consequence = "ZeRO-0 and 3 apply the sum instead of the mean; ZeRO-1 and 2 keep only the last micro-batch."
    remedy = "Put the number into the config and call engine.step() after every engine.backward(loss)."
    learn = "notebooks/04_loop_mistakes.ipynb"

    explains = ("clipping-hides-scale",)
    silences = ("several-backwards-per-step",)

    def check(self, job: Job) -> Iterator[Finding]:
        """Windows that only the script knows of."""
        known = setup(job)
        for program in job.programs:
            if known.gas == 1 and known.managed is not False:
                yield from self._windows(program, known, "deepspeed", "step")
            if known.deepspeed and not job.value("accelerator.accumulate"):
                yield from self._windows(program, known, "accelerate", "optimizer-step")

    def _windows(self, program: Program, known: Setup, kind: str, steps: str) -> Iterator[Finding]:
        seen = set()
        for pair in pairs(program, kind, steps):
            if pair.step is None or pair.step.source in seen or sets_boundary(program, pair.engine):
                continue
            guard = once(pair.guards)
            if (guard is None and not (pair.inner and holds_forward(program, pair))) or own_count(pair, known) == 1:
                continue
            seen.add(pair.step.source)
            yield self._accelerate(pair, known) if kind == "accelerate" else self._said(pair, known)

    def _said(self, pair: Pair, known: Setup) -> Finding:
        own, name = own_count(pair, known), pair.engine.name
        message = f"The config accumulates 1 micro-batch, and the script gathers {own or 'several'} by itself: "
        message += f"{name}.backward ({at(pair.backward)}) is called {f'{own} times' if own else 'several times'} for "
        message += f"one {name}.step() ({at(pair.step)}). "
        whole = own if isinstance(own, int) else None
        divided = any(kind == "count" for kind, _ in count_divisions(pair.backward, whole))
        if known.stage in (0, 3) and divided:
            message += (
                f"At ZeRO-{known.stage} the gradients add up and the script divides, so this trains as meant; at "
            )
            message += "ZeRO-1 and 2 only the last micro-batch would survive."
        elif known.stage in (0, 3):
            message += f"At ZeRO-{known.stage} the gradients add up undivided: {own or 'that many'} times too large."
        else:
            stage = f"ZeRO-{known.stage}" if known.stage else "ZeRO-1 and 2"
            message += f"Each backward is a boundary then: at {stage} only the last of them reaches the optimizer."
        text = (
            f"Set gradient_accumulation_steps to {own or 'that count'}, call {name}.step() after every backward, and "
        )
        fix = Fix(text + "leave the division to the engine.")
        severity = "note" if known.stage in (0, 3) and divided else None
        return self.found(message, [pair.step.source, pair.backward.source], [fix], severity=severity)

    def _accelerate(self, pair: Pair, known: Setup) -> Finding:
        own = own_count(pair, known)
        message = (
            f"Without accelerator.accumulate() every accelerator.backward ({at(pair.backward)}) is an update of its "
        )
        message += (
            f"own under DeepSpeed; the condition around optimizer.step() ({at(pair.step)}) does nothing. Meant were "
        )
        message += f"{own or 'several'} micro-batches for each update."
        fix = Fix(
            "Put the micro-batch under `with accelerator.accumulate(model):`, call optimizer.step() each time, and "
            "give the count to Accelerator(gradient_accumulation_steps=...) and to the DeepSpeed config."
        )
        where = [pair.step.source, pair.backward.source]
        return self.found(message, where, [fix], consequence=_EVERY_MICRO_BATCH)

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
