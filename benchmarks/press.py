"""From the press to the first point and to the whole curve: ours against the launchers, all from cells of real kernels.

Every repeat presses every way once, in turning order, so that a busy moment of the machine meets all of them. All give
the same losses, bit for bit, or the benchmark ends.
"""

from __future__ import annotations

import contextlib
import importlib.util
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

from benchmarks import cells
from benchmarks.kernels import Kernel, Press, open_kernel
from benchmarks.report import Table, median, spread
from benchmarks.warm import WarmGroup
from dsaccum_helpers.setting import Setting

#: A person takes at least so long from the end of one press to the next (seconds); ours gets its spare set ready then.
PAUSE_SECONDS = 1.0
BASE = "!deepspeed"
OURS, FIRST = "dsaccum", "dsaccum, first press of a fresh kernel"
SIX = "dsaccum, six runs"
POINTS = 61
NO_ACCELERATE = "notebook_launcher is left out: accelerate is not installed (pip install accelerate)."

Presses = dict[str, list[Press]]


def settings(short: bool) -> list[Setting]:
    """The work: 60 updates of 64 samples, in micro-batches of 8."""
    chosen = [("regression", 1), ("digits", 1), ("digits", 2)]
    return [
        Setting(
            task=task,
            processes=processes,
            train_micro_batch_size_per_gpu=8,
            gradient_accumulation_steps=8 // processes,
            optimizer_steps=POINTS - 1,
        )
        for task, processes in chosen[: 1 if short else None]
    ]


def ways() -> dict[str, Callable[[Setting, Kernel, Presses], None]]:
    """All ways to start, by name; each presses once, or twice in a kernel of its own, and files what it saw."""

    def launched(name: str, cell: Callable[[Setting], str]) -> Callable[[Setting, Kernel, Presses], None]:
        return lambda setting, kernel, seen: seen[name].append(kernel.press(cell(setting), POINTS))

    def twice(first: str, later: str, cell: Callable[[Setting], str]) -> Callable[[Setting, Kernel, Presses], None]:
        def press(setting: Setting, _: Kernel, seen: Presses) -> None:
            with open_kernel() as fresh:
                for name in (first, later):
                    seen[name].append(fresh.press(cell(setting), POINTS))
                    time.sleep(PAUSE_SECONDS)
                if cell is cells.ours and setting.task == "regression":
                    seen[SIX].append(fresh.press(cells.six_of_ours(setting), 6 * POINTS))

        return press

    chosen = {BASE: launched(BASE, cells.deepspeed), "!torchrun": launched("!torchrun", cells.torchrun)}
    if importlib.util.find_spec("accelerate") is not None:
        name = "notebook_launcher"
        chosen[name] = twice(f"{name}, first press of a fresh kernel", name, cells.notebook_launcher)
    chosen[OURS] = twice(FIRST, OURS, cells.ours)
    return chosen


def measure(repeats: int, short: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Everything measured, raw: for each setting the presses of every way, and the loop alone in warm processes."""
    if importlib.util.find_spec("accelerate") is None:
        say(NO_ACCELERATE)
    work = settings(short)
    presses: list[Presses] = [defaultdict(list) for _ in work]
    loops: list[list[dict[str, float]]] = [[] for _ in work]
    with contextlib.ExitStack() as stack:
        plain = stack.enter_context(open_kernel())
        groups = {count: stack.enter_context(WarmGroup(count)) for count in {one.processes for one in work}}
        for repeat in range(repeats):
            for setting, seen, alone in zip(work, presses, loops, strict=True):
                turning = list(ways().items())
                turning = turning[repeat % len(turning) :] + turning[: repeat % len(turning)]
                for name, press in turning:
                    say(f"press {repeat + 1}/{repeats}: {setting.task}, {setting.processes} process(es), {name}")
                    press(setting, plain, seen)
                    if name == OURS:  # side by side, because they are compared with each other
                        three = [groups[setting.processes].measure("engine", setting) for _ in range(3)]
                        alone.append(sorted(three, key=lambda loop: loop["wall"])[1])
                _check_equal(seen)
    return {
        "work": [setting.to_dict() for setting in work],
        "presses": [{name: [asdict(press) for press in all_of] for name, all_of in seen.items()} for seen in presses],
        "loop alone": loops,
        "accelerate": importlib.util.find_spec("accelerate") is not None,
    }


def _check_equal(seen: Presses) -> None:
    """The same losses, bit for bit, from every way to start; the first of the six runs has the seed of the rest."""
    curves = {name: all_of[-1].curves[0] for name, all_of in seen.items()}
    different = sorted(name for name, losses in curves.items() if losses != curves[BASE])
    if different:
        raise RuntimeError(f"not the losses of {BASE}: {', '.join(different)}")


def tables(raw: dict[str, Any]) -> list[Table]:
    """One table for each setting; every ratio is the median of the ratios of the repeats."""
    return [
        _table(Setting(**work), presses, loops, "" if raw["accelerate"] else NO_ACCELERATE)
        for work, presses, loops in zip(raw["work"], raw["presses"], raw["loop alone"], strict=True)
    ]


def ratio(above: list[dict[str, Any]], below: list[dict[str, Any]], key: str) -> float:
    """The median, over the repeats, of one press's time by another's."""
    return median([one[key] / other[key] for one, other in zip(above, below, strict=True)])


def _table(setting: Setting, presses: dict[str, Any], loops: list[dict[str, float]], remark: str) -> Table:
    alone = [{"whole": loop["wall"]} for loop in loops]
    base = presses[BASE]
    rows = [
        [
            name,
            *(spread([press[key] for press in seen]) for key in ("first", "whole", "end")),
            *(f"{ratio(base, seen, key):.1f}" for key in ("first", "whole", "end")),
            f"{ratio(seen, alone, 'whole'):.2f}",
        ]
        for name, seen in presses.items()
    ]
    times = spread([loop["wall"] for loop in loops])
    return Table(
        f"Press to point: {setting.task}, {setting.processes} process(es), {setting.optimizer_steps} updates, "
        f"{setting.train_micro_batch_size_per_gpu} × {setting.gradient_accumulation_steps} × {setting.processes}",
        f"Seconds: median [smallest] of {len(base)}. The loop alone, in a warm process without our recording: {times}. "
        f"Every way gave the same losses, bit for bit. {remark}".strip(),
        ["started by", "first point", "whole curve", "cell is free"]
        + [f"{BASE} ÷ {word}" for word in ("first", "whole", "free")]
        + ["whole ÷ loop alone"],
        rows,
    )


def goals(raw: dict[str, Any]) -> list[tuple[str, float, str, float]]:
    """What is wanted of a press: words, measured, ``>=`` or ``<=``, wanted."""
    wanted = []
    for work, presses, loops in zip(raw["work"], raw["presses"], raw["loop alone"], strict=True):
        where = f"{work['task']}, {work['processes']} process(es)"
        alone = [{"whole": loop["wall"]} for loop in loops]
        first = ratio(presses[BASE], presses[OURS], "first")
        wanted.append((f"first point sooner than by {BASE} ({where})", first, ">=", 100.0))
        wanted.append((f"whole curve ÷ loop alone ({where})", ratio(presses[OURS], alone, "whole"), "<=", 1.3))
        if SIX in presses:
            six = ratio(presses[SIX], presses[BASE], "whole")
            wanted.append((f"six runs of ours ÷ one by {BASE} ({where})", six, "<=", 1.0))
    return wanted
