"""What the loop itself costs, in CPU time of a warm process: plain PyTorch, DeepSpeed's engine, and our recording.

The recording's share is metered inside one run: the time in the recorder's own code by the time of everything else.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

from benchmarks.report import Table, median, spread
from benchmarks.warm import LOOPS, WarmGroup
from dsaccum_helpers.setting import Setting

SHARE_WANTED = 0.05
HEAD = ["work", "ZeRO", "plain PyTorch", "engine", "÷ plain", "recording", "of it evaluation"]
HEAD += ["share of the loop", "without evaluation"]


def settings(short: bool) -> list[Setting]:
    """Every task with every ZeRO stage, in micro-batches of 8 and 8 of them; and the setting the panels open with."""
    eights = Setting(train_micro_batch_size_per_gpu=8, gradient_accumulation_steps=8)
    if short:
        return [eights]
    work = []
    for task in ("regression", "digits", "language"):
        work += [eights.change(task=task, zero_stage=stage) for stage in (0, 1, 2, 3)]
        work.append(Setting(task))
    return work


def measure(repeats: int, short: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Everything measured, raw: for each setting and each loop one dictionary a repeat."""
    work = settings(short)
    runs: list[dict[str, list[dict[str, float]]]] = [defaultdict(list) for _ in work]
    with WarmGroup(1) as group:
        for repeat in range(repeats):
            say(f"loop {repeat + 1}/{repeats}")
            for setting, seen in zip(work, runs, strict=True):
                for kind in LOOPS:
                    seen[kind].append(group.measure(kind, setting))
    return {"work": [setting.to_dict() for setting in work], "runs": runs}


def share(run: dict[str, float], key: str = "recording") -> float:
    """The part of the recorder, or of its evaluation alone, in units of the loop without any recording."""
    return run[key] / (run["cpu"] - run["recording"] - run["metering"])


def tables(raw: dict[str, Any]) -> list[Table]:
    """One table: a line for each setting."""
    rows = []
    for work, seen in zip(raw["work"], raw["runs"], strict=True):
        setting, recorded = Setting(**work), seen["recorded"]
        per_update = 1e6 / setting.optimizer_steps
        engine = [run["cpu"] for run in seen["engine"]]
        plain = [run["cpu"] for run in seen["plain"]]
        rows.append(
            [
                f"{setting.task} {setting.train_micro_batch_size_per_gpu} × {setting.gradient_accumulation_steps}",
                str(setting.zero_stage),
                spread(plain, per_update, 0),
                spread(engine, per_update, 0),
                f"{median([one / other for one, other in zip(engine, plain, strict=True)]):.2f}",
                spread([run["recording"] for run in recorded], per_update, 0),
                spread([run["evaluation"] for run in recorded], per_update, 0),
                f"{median([share(run) for run in recorded]):.1%}",
                f"{median([share(run) - share(run, 'evaluation') for run in recorded]):.1%}",
            ]
        )
    return [
        Table(
            "The loop and our recording, one process",
            f"Microseconds of CPU time for each update: median [smallest] of {len(raw['runs'][0]['engine'])}. "
            "Recording holds the evaluation on the fixed set at every update; its share is metered inside one run.",
            HEAD,
            rows,
        )
    ]


def goals(raw: dict[str, Any]) -> list[tuple[str, float, str, float]]:
    """What is wanted of the recording: words, measured, ``<=``, wanted."""
    wanted = []
    for work, seen in zip(raw["work"], raw["runs"], strict=True):
        setting = Setting(**work)
        shape = f"{setting.train_micro_batch_size_per_gpu} × {setting.gradient_accumulation_steps}"
        measured = median([share(run) for run in seen["recorded"]])
        words = f"recording's share of the loop ({setting.task} {shape}, ZeRO-{setting.zero_stage})"
        wanted.append((words, measured, "<=", SHARE_WANTED))
    return wanted
