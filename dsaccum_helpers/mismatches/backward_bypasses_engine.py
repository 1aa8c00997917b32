"""``loss.backward()`` in place of ``engine.backward(loss)``."""

from __future__ import annotations

from dsaccum_helpers.effective.versions import older
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.entry import Mismatch
from dsaccum_helpers.mismatches.windows import at, live, same_place, setup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job
    from dsaccum_helpers.mismatches.windows import Setup
    from dsaccum_helpers.setting import Setting
    from dsaccum_helpers.trace import Event

_SUPPORTED_SINCE = "0.18.3"  # the first version that scales a direct backward


class BackwardBypassesEngine(Mismatch):
    """The engine does not see the backward pass."""

    code = "backward-bypasses-engine"
    title = "loss.backward() goes past the engine"
    symptom = "ZeRO-0: RuntimeError, direct calls are not supported. Old versions: no message, or KeyError: 0."
    cause = "loss.backward() was kept from a plain PyTorch loop."
    consequence = (
        "Before DeepSpeed 0.18.3 gradients are neither divided by the accumulation steps nor reduced over the ranks; "
        "newer ones do both at ZeRO-1 to 3 and refuse at ZeRO-0."
    )
    remedy = "engine.backward(loss) in place of loss.backward()."
    learn = "notebooks/04_loop_mistakes.ipynb"
    silences = ("loss-divided-twice",)

    def check(self, job: Job) -> Iterator[Finding]:
        """Direct backwards of a loss that came out of an engine."""
        known = setup(job)
        for program in job.programs:
            for event in same_place(live(program)):
                if event.kind != "direct-backward" or event.actor is None:
                    continue
                if event.actor.kind == "deepspeed" and (found := self._raw(event, known, job)):
                    yield found
                elif event.actor.kind == "accelerate" and known.deepspeed:
                    yield self._accelerate(event)

    def _raw(self, event: Event, known: Setup, job: Job) -> Finding | None:
        name = event.actor.name
        fix = Fix(f"{name}.backward(loss) in place of loss.backward().")
        message = f"backward() is called on the loss itself ({at(event)}) and not through {name}.backward(loss). "
        version = job.version("deepspeed")
        if older(job, "deepspeed", _SUPPORTED_SINCE):
            message += (
                f"DeepSpeed {version} then neither divides by {known.gas or 'the accumulation steps'} nor reduces "
            )
            return self.found(message + "over the ranks.", [event.source], [fix])
        if known.stage == 0:
            message += "At ZeRO-0 that is refused (RuntimeError), or in older versions neither divided nor reduced."
            return self.found(message, [event.source], [fix])
        if _in_fp16(job):
            message += "In fp16 the loss scale is left out then: DeepSpeed raises RuntimeError, or with a static scale "
            message += "the gradients are divided by a scale that was never applied."
            return self.found(message, [event.source], [fix])
        if version is None:
            message += f"From DeepSpeed {_SUPPORTED_SINCE} on this is right at ZeRO-1 to 3; before it gradients are "
            message += "neither divided nor reduced. Which version runs? Give --have deepspeed==VERSION."
            note = self.found(message, [event.source], [fix], severity="note")
            note.silences = ()
            return note
        return None

    def _accelerate(self, event: Event) -> Finding:
        message = f"backward() is called on the loss itself ({at(event)}) and not through accelerator.backward(loss): "
        message += "under DeepSpeed nobody steps the engine then, and no update happens at all."
        return self.found(message, [event.source], [Fix("accelerator.backward(loss) in place of loss.backward().")])

    def stops(self, setting: Setting) -> str | None:
        """Stage 0 refuses; at 1 to 3 hooks on the engine's outputs divide and reduce as engine.backward does."""
        if setting.zero_stage:
            return None
        return (
            "At ZeRO stage 0 nothing divides or reduces the gradients of a loss.backward(), so DeepSpeed refuses it "
            f"(versions before {_SUPPORTED_SINCE} train on without a word). Smallest fix: engine.backward(loss)."
        )

    @staticmethod
    def loop(run: Any) -> None:
        """Call backward on the loss, as in plain PyTorch."""
        for inputs, targets in run.loader:
            loss = run.criterion(run.engine(inputs), targets)
            loss.backward()
            run.engine.step()


def scales_direct(event: Event, stage: int | None, job: Job) -> bool:
    """Does a hook divide the loss of a direct backward as engine.backward does? A version that is not said is new."""
    raw = event.actor is not None and event.actor.kind == "deepspeed"
    return raw and stage in (1, 2, 3) and not older(job, "deepspeed", _SUPPORTED_SINCE)


def _in_fp16(job: Job) -> bool:
    return job.config is not None and job.config.get("fp16", "enabled") is True
