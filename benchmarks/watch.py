"""What ``watch`` costs: CPU time of a micro-batch of the small language model, watched and not, in turns.

One process and one engine: blocks of updates with and without a watch follow each other, so that a machine that grows
slower slows both. A block holds one whole round of what the watch does by default: one update with the gradients, the
others with the weights of the losses alone. ``python -m benchmarks.watch STAGE BLOCKS`` is the part inside.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.report import Table, spread

ROOT = Path(__file__).resolve().parents[1]
SHARE_WANTED = 0.03
MICRO_BATCH, COUNT = 16, 4
#: Name of a way to watch, its options, and whether a block begins with the first updates, which are looked at closely.
WAYS: dict[str, tuple[dict[str, int], bool]] = {
    "in the long run": ({}, False),
    "the first 16 updates": ({}, True),
    "sample_every=8": ({"sample_every": 8}, False),
}


def measure(repeats: int, short: bool, say: Callable[[str], None]) -> dict[str, Any]:
    """Seconds of CPU time a micro-batch: for each ZeRO stage and way, pairs (without, with)."""
    stages = (0,) if short else (0, 2)
    found = {}
    for stage in stages:
        say(f"watch, ZeRO-{stage}")
        words = [sys.executable, "-m", "benchmarks.watch", str(stage), str(2 if short else 4 * repeats)]
        environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
        found[str(stage)] = json.loads(done.stdout.splitlines()[-1])
    return {"stages": found}


def share(pairs: list[list[float]]) -> float:
    """How much a watch adds, in units of the training without it, by the smallest block of each.

    What else runs on a machine makes a block slower and never faster.
    """
    return min(watched for _, watched in pairs) / min(alone for alone, _ in pairs) - 1


def tables(raw: dict[str, Any]) -> list[Table]:
    """One table: a line for each ZeRO stage and way to watch."""
    rows = [
        [
            f"ZeRO-{stage}",
            way,
            spread([alone for alone, _ in pairs], 1e6, 0),
            spread([watched for _, watched in pairs], 1e6, 0),
            f"{share(pairs):.1%}",
        ]
        for stage, ways in raw["stages"].items()
        for way, pairs in ways.items()
    ]
    text = (
        f"Microseconds of CPU time a micro-batch of {MICRO_BATCH} (language, {COUNT} to an update): median [smallest]."
    )
    return [Table("watch", text, ["engine", "watched", "without", "with", "cost"], rows)]


def goals(raw: dict[str, Any]) -> list[tuple[str, float, str, float]]:
    """What is wanted: words, measured, ``<=``, wanted."""
    return [
        (
            f"cost of watch in the long run, of the CPU time (ZeRO-{stage})",
            share(ways["in the long run"]),
            "<=",
            SHARE_WANTED,
        )
        for stage, ways in raw["stages"].items()
    ]


def inside(stage: int, blocks: int) -> dict[str, list[list[float]]]:
    """The blocks of one engine, in this process."""
    from dsaccum_helpers.mismatches import MATCHED
    from dsaccum_helpers.setting import Setting
    from dsaccum_helpers.training.loops import make_engine
    from dsaccum_helpers.training.tasks import Stream, load_task
    from dsaccum_helpers.training.worker import join, prepare_process

    prepare_process()
    with tempfile.TemporaryDirectory() as folder:
        device = join(0, 1, os.path.join(folder, "store"))
        setting = Setting("language", MICRO_BATCH, COUNT, zero_stage=stage, learning_rate=1e-4)
        task = load_task(setting.task)
        engine, _ = make_engine(task, setting, MATCHED)
        stream = Stream(task, setting)
        data = [[one.to(device) for one in stream.take(i * MICRO_BATCH, MICRO_BATCH)] for i in range(COUNT)]

        def block() -> float:
            began = time.process_time()
            for _ in range(16):
                for inputs, targets in data:
                    engine.backward(task.criterion(engine(inputs), targets))
                    engine.step()
            return (time.process_time() - began) / (16 * COUNT)

        block()
        found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
        for turn in range(blocks):
            for way, (options, first) in WAYS.items():
                found[way].append(_pair(block, engine, options, first, watched_first=bool(turn % 2)))
    return found


def _pair(
    block: Callable[[], float], engine: Any, options: dict[str, int], first: bool, watched_first: bool
) -> list[float]:
    """CPU time a micro-batch without and with a watch, in the order that is asked for."""
    from dsaccum_helpers import watch

    alone = None if watched_first else block()
    observer = watch(engine, quiet=True, **options).start()
    if not first:
        observer.probe.updates = 16
    watched = block()
    observer.stop()
    assert not observer.findings, observer.findings
    return [block() if alone is None else alone, watched]


if __name__ == "__main__":
    print(json.dumps(inside(int(sys.argv[1]), int(sys.argv[2]))))
