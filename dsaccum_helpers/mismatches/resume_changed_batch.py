"""A checkpoint is resumed with another batch, accumulation or world size."""

from __future__ import annotations

from dsaccum_helpers.effective import effective
from dsaccum_helpers.effective.world import whole
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches import numerics
from dsaccum_helpers.mismatches.entry import Mismatch
from dsaccum_helpers.mismatches.layers import complete
from dsaccum_helpers.mismatches.planned import optimizer_steps

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job, Source
    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.setting import Setting

    Numbers = dict[str, int | None]

NAMES = {
    "micro": "checkpoint.train_micro_batch_size_per_gpu",
    "steps": "checkpoint.gradient_accumulation_steps",
    "processes": "checkpoint.processes",
}


_SAME_BATCH = "A step is of the same size, so the schedule fits; a window that was not complete is lost."


class ResumeChangedBatch(Mismatch):
    """Counters and schedules of a checkpoint are in units of the batch that wrote it."""

    code = "resume-changed-batch"
    title = "The checkpoint was written with another batch"
    symptom = "No message; with another number of processes at ZeRO 1, 2 or 3 a ZeRORuntimeException."
    cause = "Micro-batch, accumulation steps or processes differ from those of the run that wrote the checkpoint."
    consequence = (
        "global_steps and the schedule go on counting steps of another size, data is skipped in the wrong amount, and "
        "a window that was not complete is lost. Measured: of 60 updates, resumed halfway with twice the accumulation "
        "steps, 45 are made, and the learning rate ends at 27 % of its start in place of 2 %."
    )
    remedy = "Resume with the same numbers, or convert the position and the length of the schedule."
    learn = "notebooks/04_loop_mistakes.ipynb"
    severity = "warning"

    def check(self, job: Job) -> Iterable[Finding]:
        """The numbers then and now."""
        now, before = _now(job), {part: whole(job.value(name)) for part, name in NAMES.items()}
        refused_by_log = job.said("checkpoint-world")
        for event in refused_by_log[:1]:
            shared = effective(job).shared  # the message counts data-parallel processes
            before["processes"] = before["processes"] or event.values["checkpoint"] * shared
            now["processes"] = now["processes"] or event.values["now"] * shared
        differs = [part for part in NAMES if before[part] and now[part] and before[part] != now[part]]
        if not differs:
            return
        then = {part: before[part] or now[part] for part in NAMES}
        severity, refused = self._refusal(job, "processes" in differs)
        step = job.value("checkpoint.global_step")
        planned = optimizer_steps(job)
        past = planned is not None and step is not None and step >= planned[0]
        text = [_change(job, then, now), *_position(job, then, now, step), *refused]
        if past and planned is not None:
            severity = "error"
            text.append(f"The checkpoint is at step {step} and {planned[1]}: nothing would be trained.")
        facts = [job.fact(name) for name in (*NAMES.values(), "checkpoint.global_step")]
        where: list[Source] = [fact.source for fact in facts if fact]
        where += [*numerics.steps_source(job), *(event.source for event in refused_by_log)]
        shared = effective(job).shared
        same = _batch(then, shared) is not None and _batch(then, shared) == _batch(now, shared)
        fixes, does = self._fixes(job, then, now, differs), _SAME_BATCH if same else None
        if refused and refused_by_log:
            does = "Nothing is trained: loading the checkpoint raises."
        yield self.found(" ".join(text), where, fixes, severity=severity, consequence=does)

    def _refusal(self, job: Job, other_world: bool) -> tuple[str, list[str]]:
        """ZeRO 1 to 3 refuse to load what another number of processes has written."""
        stage, config = numerics.zero_stage(job), job.config
        universal = config is not None and config.get("checkpoint", "load_universal") is True
        partitioned = stage in (1, 2, 3) or bool(job.said("checkpoint-world"))
        if not other_world or not partitioned or universal:
            return self.severity, []
        where = f"ZeRO stage {stage}" if stage else "ZeRO stages 1 to 3"
        return "error", [
            f"At {where} DeepSpeed refuses to load it: the optimizer state is cut for the other number of "
            "processes (a universal checkpoint is not)."
        ]

    def _fixes(self, job: Job, then: Numbers, now: Numbers, differs: list[str]) -> list[Fix]:
        shared = effective(job).shared
        back: dict[str, Any] = {}
        replicas = _replicas(then, shared)
        if replicas and then["micro"] and then["steps"]:
            back = complete(job, then["micro"], then["steps"], replicas)
        if replicas and then["processes"] != now["processes"] and (back or differs == ["processes"]):
            back |= {"processes": then["processes"]}
        same = f"the numbers that it was written with: {_product(then, shared)}"
        if not then["micro"] and not then["steps"]:
            same = f"the {then['processes']} processes that it was written by"
        return [
            Fix(f"Resume with {same}.", back),
            Fix("Load only the weights, and plan the schedule and the data anew for the new batch."),
        ]

    def needs(self, setting: Setting) -> str | None:
        """Half of the micro-batches must hold a window of twice the size."""
        if setting.optimizer_steps >= 4:
            return None
        return (
            f"With optimizer_steps {setting.optimizer_steps} no window of twice the size fits into the second half. "
            "Smallest fix: optimizer_steps 4."
        )

    @staticmethod
    def loop(run: Any) -> None:
        """Save and stop halfway; resume with twice the accumulation steps."""
        halfway = len(run.loader) // 2
        for i, (inputs, targets) in enumerate(run.loader):
            if i == halfway:
                run.resume(2 * run.gradient_accumulation_steps)
            loss = run.criterion(run.engine(inputs), targets)
            run.engine.backward(loss)
            run.engine.step()

    @staticmethod
    def mended_loop(run: Any) -> None:
        """Save behind a complete window, and resume with the same numbers."""
        halfway = len(run.loader) // 2 // run.gradient_accumulation_steps * run.gradient_accumulation_steps
        for i, (inputs, targets) in enumerate(run.loader):
            if i == halfway:
                run.resume(run.gradient_accumulation_steps)
            loss = run.criterion(run.engine(inputs), targets)
            run.engine.backward(loss)
            run.engine.step()

    def predict(self, setting: Setting) -> Prediction:
        """Half of the windows, then windows of twice the length; what was read of an unfinished one is lost."""
        count = setting.gradient_accumulation_steps
        halfway = setting.micro_batches // 2
        before, lost = divmod(halfway, count)
        double = (1 / (2 * count),) * (2 * count)
        return self._prediction(
            setting,
            optimizer_steps=before + (setting.micro_batches - halfway) // (2 * count),
            later=((1 / count,) * count,) * (before - 1) + ((0.0,) * lost + double, double),
        )


def _now(job: Job) -> Numbers:
    numbers = effective(job)
    facts = {"micro": numbers.micro, "steps": numbers.steps, "processes": numbers.processes}
    return {part: whole(fact.value) if fact else None for part, fact in facts.items()}


def _batch(numbers: Numbers, shared: int) -> int | None:
    """Samples per optimizer step."""
    micro, steps, replicas = numbers["micro"], numbers["steps"], _replicas(numbers, shared)
    return micro * steps * replicas if micro and steps and replicas else None


def _replicas(numbers: Numbers, shared: int) -> int | None:
    """The data-parallel size; None where the processes are unknown or no multiple of those that share a batch."""
    processes = numbers["processes"]
    return processes // shared if processes and processes % shared == 0 else None


def _product(numbers: Numbers, shared: int) -> str:
    batch = _batch(numbers, shared)
    return f"{numbers['micro'] or '?'} x {numbers['steps'] or '?'} x {_replicas(numbers, shared) or '?'}" + (
        f" = {batch}" if batch else ""
    )


def _change(job: Job, then: Numbers, now: Numbers) -> str:
    shared = effective(job).shared
    if not any(numbers[part] for numbers in (then, now) for part in ("micro", "steps")):
        return f"The checkpoint was written by {then['processes']} processes, now there are {now['processes']}."
    return (
        f"The checkpoint was written with {_product(then, shared)} samples per optimizer step (micro-batch x "
        f"accumulation x data-parallel size), now it is {_product(now, shared)}."
    )


def _position(job: Job, then: Numbers, now: Numbers, step: int | None) -> list[str]:
    """Where the run stands, in units of the new batch."""
    shared = effective(job).shared
    old, new = _batch(then, shared), _batch(now, shared)
    replicas = _replicas(now, shared)
    if not old or not new or not step or not now["micro"] or not replicas:
        return []
    seen = step * old
    skip = seen // (now["micro"] * replicas)
    about = "" if seen % new == 0 else "about "
    return [
        f"Step {step} has seen {seen} samples: {about}step {seen // new} of the new size, {skip} micro-batches of each "
        "process to skip."
    ]
