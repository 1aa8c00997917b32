"""One process of a run: join the group, train, tell what was measured. Forked by ``forks``."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import traceback
from pathlib import Path
from typing import Any

import numpy

from dsaccum_helpers.frameworks import watching
from dsaccum_helpers.frameworks.data import make_bench, train_plainly
from dsaccum_helpers.frameworks.measure import Measure, Messages
from dsaccum_helpers.frameworks.result import REPORT, RIGHT_WEIGHTS, WEIGHTS
from dsaccum_helpers.mismatches.framework_runs import FrameworkRun
from dsaccum_helpers.training import worker


def run_rank(folder: Path, rank: int, job: dict[str, Any]) -> None:
    """Train the job's run as one of its processes, and leave the report in the folder."""
    run = FrameworkRun(**job["run"])
    os.chdir(folder)
    os.environ.update(MASTER_ADDR="127.0.0.1", LOCAL_WORLD_SIZE=str(run.processes))
    worker.join(rank, run.processes, str(folder / "rendezvous"))
    if job["watch"]:
        watching.switch_on()
    report = _train(run)
    if report["ended"] == "finished" and rank == 0:
        norms, weights = train_plainly(run)
        report["right_gradient_norms"] = norms
        numpy.save(folder / RIGHT_WEIGHTS, weights.numpy())
    _write(folder / REPORT.format(rank), report)


def _train(run: FrameworkRun) -> dict[str, Any]:
    measure, messages = Measure(), Messages()
    report: dict[str, Any] = {"ended": "finished", "words": ""}
    program = importlib.import_module(f"dsaccum_helpers.frameworks.{run.program}")
    with messages.listening(), measure.waiting():
        try:
            program.train(run, make_bench(run))
        except Exception as error:
            traceback.print_exc()
            # A framework that reads no sample has refused the settings; later it is a failure of the training.
            report["ended"] = "failed" if measure.micro_batches else "refused"
            report["words"] = f"{type(error).__name__}: {error}".strip()
    if report["ended"] == "finished" and measure.engine is None:
        report |= {"ended": "failed", "words": "The framework has trained without DeepSpeed: it made no engine."}
    if report["ended"] == "finished":
        weights = measure.weights()
        if int(os.environ["RANK"]) == 0:
            numpy.save(WEIGHTS, weights.numpy())
    return {**report, **measure.report(), "messages": messages.texts(), "findings": watching.findings()}


def _write(path: Path, report: dict[str, Any]) -> None:
    # Whole or not at all: who reads it may come at any time.
    part = path.with_suffix(".part")
    part.write_text(json.dumps(report), encoding="utf-8")
    with contextlib.suppress(FileNotFoundError):
        part.replace(path)
