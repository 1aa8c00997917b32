"""A library version with a known fault of gradient accumulation in this setting."""

from __future__ import annotations

from itertools import pairwise

from dsaccum_helpers.effective import effective
from dsaccum_helpers.effective.world import whole
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.job import Source
from dsaccum_helpers.mismatches import numerics
from dsaccum_helpers.mismatches.entry import Mismatch, exchanges
from dsaccum_helpers.mismatches.framework_runs import Shown, lightning

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from dsaccum_helpers.findings import Finding
    from dsaccum_helpers.job import Job
    from dsaccum_helpers.known_versions import Row
    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.setting import Setting


class KnownBadVersion(Mismatch):
    """The settings agree, and this version of a library still does not train with them as it should."""

    code = "known-bad-version"
    title = "This version has a known fault in this setting"
    symptom = "No message; in most cases only the gradient norm differs from that of another version or ZeRO stage."
    cause = "A fault of the library that was reported, and mended in a later version."
    consequence = (
        "Gradients are too small, too large or lost although every number of the job is right. Measured with DeepSpeed "
        "0.19.8: bf16 at ZeRO-0 begins with Adam one step ahead, and the first update is 0.744 of the right one."
    )
    remedy = "Install a version without the fault."
    learn = "notebooks/04_loop_mistakes.ipynb"
    not_watched = (
        "The fault that can be run here lies in the optimizer's own arithmetic, which `watch` takes as it is: "
        "`dsaccum verify` shows it as a row. Gradients that a library loses or adds on their way `watch` does name."
    )
    rank = 6
    against_full_batch = True
    #: Measured with Lightning 2.6.6 and DeepSpeed 0.19.8 on the CPU, with Lightning's check for a GPU set aside.
    programs = tuple(
        Shown(
            f"a correct loss, divided by {steps} in Lightning and again in the engine",
            lightning({}, steps, cuda_check=False),
            lightning({}, steps, cuda_check=False, loss="multiplied"),
            optimizer_steps=6,
            norm_ratio=1 / steps,
        )
        for steps in (2, 4)
    )

    def check(self, job: Job) -> Iterable[Finding]:
        """Each row of the table whose version is known to be installed and whose conditions hold."""
        from dsaccum_helpers.known_versions import ROWS

        for row in ROWS:
            version = job.version(row.package)
            if version and within(version, row.versions) and holds(job, row.when):
                yield self._finding(job, row, version)

    def _finding(self, job: Job, row: Row, version: str) -> Finding:
        count = numerics.steps(job)
        effect = row.effect.format(steps=count or "the accumulation steps")
        mended = f"{row.package} {row.fixed} is without it" if row.fixed else "no release is known to be without it"
        message = (
            f"{row.package} {version}: {row.name}. Here {effect}. "
            f"Affected: {row.package} {row.versions.replace(',', ', ')}; {mended} ({row.source})."
        )
        fixes = [Fix(f"Install {row.package} {row.fixed} or newer.")] if row.fixed else []
        if row.remedy:
            fixes.append(Fix(f"{'Until then' if row.fixed else 'What helps'}: {row.remedy}."))
        where = [job.versions[row.package].source, *self._setting(job, row)]
        sentence = effect[:1].upper() + effect[1:] + "."
        return self.found(message, where, fixes, severity=row.severity, consequence=sentence)

    def _setting(self, job: Job, row: Row) -> list[Source]:
        """Where the settings stand that make the fault bite."""
        found = []
        if "stages" in row.when and (stage := job.fact("zero_stage")):
            found.append(stage.source)
        if row.when.get("accumulates"):
            found += numerics.steps_source(job)
        return found

    def needs(self, setting: Setting) -> str | None:
        """Of the faults of the table, the one that the installed version has in a run of this course."""
        if (setting.dtype, setting.optimizer, setting.zero_stage) == ("bf16", "Adam", 0):
            return None
        return (
            "The fault that a run shows with DeepSpeed 0.19 is that bf16 at ZeRO-0 begins with Adam one step ahead; "
            "the versions with the other faults of the table are not installed here. "
            "Smallest fix: dtype 'bf16', optimizer 'Adam' and zero_stage 0."
        )

    def mended_config(self, setting: Setting) -> dict[str, Any]:
        """ZeRO-1 is without the fault."""
        return setting.ds_config() | {"zero_optimization": {"stage": 1}}

    def predict(self, setting: Setting) -> Prediction:
        """The optimizer has made a step with an empty gradient when training begins: its corrections count from two."""
        from dataclasses import replace

        return replace(self._prediction(setting), empty_step=True, exchanges=exchanges(setting))

    def mended_prediction(self, setting: Setting, right: Prediction) -> Prediction:
        """The right run, with sums in bf16."""
        from dataclasses import replace

        return replace(right, exchanges=exchanges(setting))


def within(version: str, versions: str) -> bool:
    """Is the version in the range? ``0.18.2+cu121`` and a nightly of it count as themselves; nonsense as outside."""
    from packaging.specifiers import SpecifierSet
    from packaging.version import InvalidVersion, Version

    try:
        return SpecifierSet(versions).contains(Version(version), prereleases=True)
    except InvalidVersion:
        return False


def holds(job: Job, when: dict[str, Any]) -> bool:
    """Do all conditions of a row hold in this job? One that cannot be known does not."""
    return all(_TESTS[name](job, wanted) for name, wanted in when.items())


def _with(job: Job, wanted: dict[str, str]) -> bool:
    known = {name: job.version(name) for name in wanted}
    return all(version and within(version, wanted[name]) for name, version in known.items())


def _processes(job: Job) -> int:
    known = effective(job).processes
    return whole(known.value) or 1 if known else 1


def _resumes(job: Job, wanted: bool) -> bool:
    before, now = job.value("checkpoint.train_micro_batch_size_per_gpu"), effective(job).micro
    return wanted is bool(before and now and now.value != before)


def _backwards(job: Job, wanted: bool) -> bool:
    """Several backward calls in front of one step, in one pass of the loop."""
    for program in job.programs:
        calls = [(event.kind, event.actor) for event in program.of(None, "backward", "step")]
        if any(one == other and one[0] == "backward" for one, other in pairwise(calls)):
            return wanted
    return not wanted


#: Condition to a function of the job and what the row wants of it.
_TESTS: dict[str, Any] = {
    "with": _with,
    "frameworks": lambda job, wanted: job.framework in wanted,
    "deepspeed": lambda job, wanted: wanted is numerics.trains_with_deepspeed(job),
    "stages": lambda job, wanted: numerics.zero_stage(job) in wanted,
    "offload": lambda job, wanted: wanted is numerics.offloads(job),
    "accumulates": lambda job, wanted: (count := numerics.steps(job)) is not None and wanted is (count > 1),
    "pipeline": lambda job, wanted: wanted is ((job.value("pipeline_parallel") or 1) > 1),
    "dtype": lambda job, wanted: numerics.dtype(job)[0] == wanted,
    "fp32_sums": lambda job, wanted: wanted is (numerics.sum_dtype(job) == "fp32"),
    "processes": lambda job, wanted: wanted is (_processes(job) > 1),
    "resumes": _resumes,
    "generations": lambda job, wanted: wanted is ((job.value("generation.num_generations") or 1) > 1),
    "backwards": _backwards,
}
