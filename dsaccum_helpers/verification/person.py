"""A person's DeepSpeed config made small: what is kept, what is scaled and why, and what is refused (no torch)."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, field, replace
from typing import Any

from dsaccum_helpers.batch import KEYS
from dsaccum_helpers.doctor import diagnose, read_job
from dsaccum_helpers.effective import effective
from dsaccum_helpers.effective.world import whole
from dsaccum_helpers.findings.text import plain, short
from dsaccum_helpers.job import Job
from dsaccum_helpers.mismatches.known_bad_version import within
from dsaccum_helpers.setting import Setting, SettingError
from dsaccum_helpers.verification import blocks, keys
from dsaccum_helpers.verification.blocks import MOST_NUMBER
from dsaccum_helpers.verification.running import CONFIG_UPDATES, TASK
from dsaccum_helpers.verification.schedules import Schedule

MOST_MICRO_BATCH = 8
MOST_STEPS = 64
MOST_TRAIN_BATCH = 1024
#: The length of the small task's gradients in the first updates, about; and the most they are made longer.
FIRST_NORM, MOST_FACTOR = 0.5, 16
#: What DeepSpeed does where ``gradient_clipping`` is missing, and since when (it trained unclipped before).
DEFAULT_CLIPPING = 1.0
CLIPS_BY_DEFAULT = ">=0.19.3"
STAND_IN_PROCESSES = 2
#: Not a fault of the config: the rows are there to show it.
_SHOWN_BY_ROWS = ("known-bad-version",)


@dataclass(frozen=True)
class Plan:
    """All that is needed to train as the config says, small. ``clipping`` is None where the config has no such key.

    ``values``: the config as DeepSpeed is given it, but for the three batch numbers. ``micro``, ``steps`` and
    ``processes`` are the person's until ``fit`` makes them small.
    """

    source: str
    micro: int
    steps: int
    processes: int
    stage: int
    dtype: str
    optimizer: blocks.Optimizer
    schedule: Schedule
    clipping: float | None
    values: dict[str, Any]
    kept: list[str] = field(default_factory=list)
    scaled: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)

    def fit(self, most_processes: int) -> Plan:
        """The same with numbers that this machine trains in seconds; says what was kept and what was scaled."""
        room = MOST_TRAIN_BATCH // (min(self.steps, MOST_STEPS) * min(self.processes, most_processes))
        limits = {
            "micro-batch": (
                self.micro,
                min(MOST_MICRO_BATCH, room),
                "its samples are averaged in one pass",
            ),
            "accumulation steps": (self.steps, MOST_STEPS, "so that it takes seconds"),
            "processes": (self.processes, most_processes, "as many as there are devices or cores here"),
        }
        kept, scaled = list(self.kept), list(self.scaled)
        for name, (value, most, why) in limits.items():
            small = min(value, most)
            (kept if small == value else scaled).append(
                f"{name} {value}." if small == value else f"{name} {value} -> {small}: {why}."
            )
        numbers = [min(value, most) for value, most, _ in limits.values()]
        train = self.micro * self.steps * self.processes
        small = numbers[0] * numbers[1] * numbers[2]
        if small != train:
            scaled.append(f"train batch {train} -> {small} = {numbers[0]} x {numbers[1]} x {numbers[2]}.")
        micro, steps, processes = numbers
        return replace(self, micro=micro, steps=steps, processes=processes, kept=kept, scaled=scaled)

    def config(self, micro: int, steps: int, processes: int) -> dict[str, Any]:
        """What DeepSpeed is given for one split."""
        return dict(zip(KEYS, (micro * steps * processes, micro, steps), strict=True)) | self.values

    def setting(self, micro: int, steps: int, processes: int) -> Setting:
        """The split as a Setting: what a run and its recorder need to know of it. The oracle of the config reads more.

        Raises ``SettingError`` where it is too large.
        """
        return Setting(
            task=TASK,
            train_micro_batch_size_per_gpu=micro,
            gradient_accumulation_steps=steps,
            processes=processes,
            zero_stage=self.stage,
            dtype=self.dtype,
            optimizer="SGD" if self.optimizer.name == "SGD" else "Adam",
            optimizer_steps=CONFIG_UPDATES,
        )

    def loss_factor(self, clipping: float) -> int:
        """By what the small task's loss is multiplied, so that the config's clipping has something to do.

        A power of two, which no rounding notices; 1 where there is no clipping, or where gradients as long as that
        would not train the small task.
        """
        factor = 2 ** max(0, math.ceil(math.log2(2 * clipping / FIRST_NORM))) if clipping else 1
        return factor if factor <= MOST_FACTOR else 1

    def splits(self) -> dict[str, tuple[int, int, int]]:
        """(micro-batch, accumulation steps, processes) of the rows: the config's, and the same batch otherwise."""
        rows = {"as configured": (self.micro, self.steps, self.processes)}
        if self.processes > 1:
            rows["on one process"] = (self.micro * self.processes, self.steps, 1)
        if self.steps > 1:
            rows["without accumulation"] = (self.micro * self.steps, 1, self.processes)
        return rows

    def oracle_clipping(self, versions: dict[str, str]) -> float:
        """The norm at which the full batch is clipped: the config's, or DeepSpeed's own where the key is missing."""
        if self.clipping is not None:
            return self.clipping
        return DEFAULT_CLIPPING if within(versions.get("deepspeed", ""), CLIPS_BY_DEFAULT) else 0.0


def read_plan(config: Any, processes: int | None) -> Plan | list[str]:
    """The plan of a config (a path, or a dict); a list of findings where the config does not agree with itself.

    Raises ``SettingError`` for what cannot be verified here, ``JobError`` for a file that cannot be read.
    """
    job = read_job(config, processes=processes, framework="deepspeed")
    source = "the config" if isinstance(config, dict) else plain(os.fspath(config))
    if job.unreadable:
        one = job.unreadable[0]
        raise SettingError(f"{one.message}. Smallest fix: {one.remedy}.")
    if job.config is None:
        raise SettingError(f"{source} is no DeepSpeed config. Smallest fix: dsaccum verify --config ds_config.json.")
    values = dict(job.config.values)
    for key in KEYS:
        keys.no_auto(key, values.get(key))
    kept, notes = keys.top_level(values)
    zero, more = keys.zero(values.get("zero_optimization"))
    bf16, dtype = keys.bf16(values)
    _exchanged_whole(kept, dtype)
    optimizer = blocks.optimizer(values.get("optimizer"))
    schedule, kept_lines, scaled = blocks.scheduler(values.get("scheduler"))
    clipping = _clipping(values)
    wrong = [one for one in diagnose(job, ignore=_SHOWN_BY_ROWS).findings if one.severity == "error"]
    if wrong:
        return [_finding(one) for one in wrong]
    micro, steps, replicas, stands_in = _numbers(job, processes)
    ours = {"optimizer": optimizer.block, "zero_optimization": zero, "zero_allow_untested_optimizer": True}
    ours |= kept | bf16 | ({"scheduler": _block(schedule)} if schedule.name else {})
    ours |= {} if clipping is None else {"gradient_clipping": clipping}
    lines = [line for line in (f"ZeRO stage {zero['stage']}, {dtype}.", optimizer.kept, *kept_lines) if line]
    lines.append(_clipping_words(clipping))
    lines += [f"{name} {value}." for name, value in kept.items()]
    scaled = [*stands_in, *scaled]
    left_out = [*optimizer.notes, *notes, *more]
    return Plan(
        *(source, micro, steps, replicas, zero["stage"], dtype, optimizer, schedule, clipping, ours),
        *(lines, scaled, left_out),
    )


def _exchanged_whole(kept: dict[str, Any], dtype: str) -> None:
    if kept.get("communication_data_type") not in (None, "fp32", dtype):
        why = "it rounds gradients on their way, so no full batch gives the same weights"
        raise keys.refuse("communication_data_type", why, "verify a copy without it")


def _numbers(job: Job, processes: int | None) -> tuple[int, int, int, list[str]]:
    """Micro-batch, accumulation steps and processes of the person, and a word where nobody says how many processes."""
    assert job.config is not None
    train, micro, steps = (whole(job.config.values.get(key)) for key in KEYS)
    words = []
    if processes is None and train and micro and train % (micro * (steps or 1)) == 0 and steps:
        processes = train // (micro * steps)
    elif processes is None and train is None:
        processes = STAND_IN_PROCESSES
        words = [f"processes not given: {processes} stand in for them (--processes N)."]
    if processes is None:
        raise SettingError(
            "The accumulation steps depend on the number of processes, and nobody says how many there are. "
            "Smallest fix: --processes 8."
        )
    job.set("processes", processes)
    numbers = effective(job)
    if numbers.micro is None or numbers.steps is None:
        missing = " ".join(numbers.missing) or "The batch numbers are not known."
        raise SettingError(f"{missing} Smallest fix: write all three batch numbers into a copy of the config.")
    return numbers.micro.value, numbers.steps.value, processes, words


def _clipping(values: dict[str, Any]) -> float | None:
    clipping = values.get("gradient_clipping")
    keys.no_auto("gradient_clipping", clipping)
    if clipping is None:
        return None
    if isinstance(clipping, bool) or not isinstance(clipping, int | float) or not 0 <= clipping <= MOST_NUMBER:
        raise SettingError(f"gradient_clipping is {clipping!r:.60}. Smallest fix: a number from 0 on.")
    return float(clipping)


def _clipping_words(clipping: float | None) -> str:
    if clipping is None:
        return "gradient_clipping is missing: the oracle clips as this DeepSpeed does then (1.0 from 0.19.3 on)."
    return f"gradient_clipping {clipping:g}." if clipping else "gradient_clipping 0: none."


def _block(schedule: Schedule) -> dict[str, Any]:
    return {"type": schedule.name, "params": schedule.parameters}


def _finding(finding: Any) -> str:
    fix = f" Smallest fix: {finding.fixes[0].description}" if finding.fixes else ""
    return f"{finding.code}: {short(finding)}{fix}"
