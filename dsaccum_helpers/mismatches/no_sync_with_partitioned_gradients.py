"""``no_sync`` under ZeRO-2 or 3, where every process keeps only its part of the gradients."""

from __future__ import annotations

from dsaccum_helpers.effective.owners import TRAINERS
from dsaccum_helpers.effective.versions import older
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches import numerics
from dsaccum_helpers.mismatches.entry import Mismatch, needs_accumulation
from dsaccum_helpers.mismatches.windows import at, live, same_place, setup

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job
    from dsaccum_helpers.setting import Setting

#: The first DeepSpeed that asserts, and the first Transformers that does not enter no_sync at these stages.
ASSERTS, MENDED = "0.16.0", "4.48"


class NoSyncWithPartitionedGradients(Mismatch):
    """Partitioned gradients are reduced in every micro-batch, so there is nothing to put off."""

    code = "no-sync-with-partitioned-gradients"
    title = "no_sync with partitioned gradients"
    symptom = (
        "AssertionError: no_sync context manager is incompatible with gradient partitioning logic of ZeRO stage 2 (or "
        "3), at the first micro-batch of a window."
    )
    cause = (
        "DeepSpeed 0.16.0 and newer assert; Transformers before 4.48 and accelerator.accumulate() of older Accelerate "
        "enter no_sync in every micro-batch but the last."
    )
    consequence = (
        "The job stops at the first micro-batch. Accumulation 1 hides it and changes the batch. At ZeRO-0 and 1 "
        "no_sync is allowed and changes nothing in the weights."
    )
    remedy = "A newer transformers (4.48) or Accelerate; keep the accumulation steps."
    learn = "notebooks/04_loop_mistakes.ipynb"
    rank = 2
    silences = ("manual-accumulation", "guarded-engine-step")

    def check(self, job: Job) -> Iterable[Finding]:
        """The assertion in a log; else versions that lead to it."""
        logged = list(self._logged(job))
        yield from logged or list(self._script(job)) or self._versions(job)

    def _logged(self, job: Job) -> Iterator[Finding]:
        for event in job.events:
            if event.kind == "no-sync":
                stage = event.values.get("stage") or numerics.zero_stage(job)
                yield self.found(
                    f"At ZeRO stage {stage} each process keeps only its part of the gradients, so they are reduced in "
                    f"every micro-batch; {_layer(job)} entered no_sync, and DeepSpeed {ASSERTS} and newer assert.",
                    [event.source],
                    self._fixes(job),
                )
                return

    def _script(self, job: Job) -> Iterator[Finding]:
        """A script that enters no_sync itself."""
        known = setup(job)
        if known.stage not in (2, 3) or not known.deepspeed:
            return
        for program in job.programs:
            for event in same_place(live(program)):
                if event.kind == "no-sync":
                    text = f"no_sync is entered ({at(event)}) at ZeRO stage {known.stage}, where each process keeps "
                    text += "only its part of the gradients and reduces them in every micro-batch: "
                    text += f"DeepSpeed {ASSERTS} and newer assert that this is not done."
                    yield self.found(text, [event.source], self._fixes(job))
                    return

    def _versions(self, job: Job) -> Iterator[Finding]:
        """Versions that are known to meet in the assertion."""
        stage, count = numerics.zero_stage(job), numerics.steps(job)
        if stage not in (2, 3) or count is None or count < 2 or job.framework not in TRAINERS:
            return
        if older(job, "deepspeed", ASSERTS) is False and older(job, "transformers", MENDED):
            text = (
                f"transformers {job.version('transformers')} enters no_sync in {count - 1} of {count} micro-batches, "
                f"and deepspeed {job.version('deepspeed')} asserts that this is not done at ZeRO stage {stage}."
            )
            where = [job.versions[name].source for name in ("transformers", "deepspeed")]
            stage_fact = job.fact("zero_stage")
            yield self.found(text, [*where, *([stage_fact.source] if stage_fact else [])], self._fixes(job))

    def _fixes(self, job: Job) -> list[Fix]:
        fixes = [Fix("Keep gradient_accumulation_steps; with 1 it is another batch.")]
        if job.framework in TRAINERS and older(job, "transformers", MENDED) is not False:
            fixes.insert(0, Fix(f"Install transformers {MENDED} or newer, which leaves no_sync out at these stages."))
        elif job.framework == "deepspeed":
            fixes.insert(0, Fix("Leave no_sync out: engine.backward and engine.step in every micro-batch do it all."))
        else:
            fixes.insert(0, Fix("Install a newer accelerate, or take accumulate() out and let the engine count."))
        fixes.append(Fix("Or stay at deepspeed 0.15.4, or take ZeRO stage 1, which allow it."))
        return fixes

    def needs(self, setting: Setting) -> str | None:
        """The last micro-batch of a window is synchronised, and with one there is no other."""
        return needs_accumulation(setting)

    def stops(self, setting: Setting) -> str | None:
        """Stages 2 and 3 do not let the loop enter the context at all; at 0 and 1 it changes nothing."""
        if setting.zero_stage < 2:
            return None
        return (
            f"At ZeRO stage {setting.zero_stage} each process keeps only its part of the gradients and hands the rest "
            "over in every micro-batch: there is nothing that no_sync could put off. Smallest fix: leave no_sync out."
        )

    @staticmethod
    def loop(run: Any) -> None:
        """Put the exchange of gradients off until the last micro-batch of the window."""
        from contextlib import nullcontext

        for i, (inputs, targets) in enumerate(run.loader):
            is_last = (i + 1) % run.gradient_accumulation_steps == 0
            with nullcontext() if is_last else run.engine.no_sync():
                loss = run.criterion(run.engine(inputs), targets)
                run.engine.backward(loss)
            run.engine.step()


def _layer(job: Job) -> str:
    """Who entered no_sync."""
    if job.framework in TRAINERS:
        version = job.version("transformers")
        return f"the Trainer of transformers{f' {version}' if version else ''}"
    return "accelerator.accumulate()" if job.framework == "accelerate" else "the program"
