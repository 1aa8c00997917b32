"""What a run of a framework's program gave, beside plain PyTorch on the full batch. Imports no torch."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from dsaccum_helpers.mismatches.framework_runs import FrameworkRun

SET_ASIDE = "Lightning's check for a CUDA GPU was set aside; as shipped it refuses the CPU."
SAME = 1e-6
"""How far two fp32 weights may part by the order of their sums alone."""
REPORT, WEIGHTS, RIGHT_WEIGHTS = "rank{}.json", "weights.npy", "right_weights.npy"


@dataclass(frozen=True)
class ProgramResult:
    """One run of a program, measured.

    ``set_aside``: what of the framework was set aside to measure it on the CPU; empty where it ran as shipped.
    ``ended``: ``finished``; ``refused``, where the framework raised before it read a sample; or ``failed``.
    ``words``: class and text of that error, as in a traceback. ``gradient_norms``: L2 norm of the gradient that the
    torch optimizer was given at each optimizer step, over all parameters and after clipping. ``samples``: those that
    reached the models of all processes; ``engine_samples``: what the engine counted. ``weights``: flat, fp32.
    ``messages``: what libraries logged or warned of, each once. ``findings``: those of the live observer, as in a JSON
    report. ``right_gradient_norms`` and ``right_weights``: plain PyTorch, one full batch of the size that is meant an
    update.
    """

    ended: Literal["finished", "refused", "failed"]
    words: str
    set_aside: str = ""
    optimizer_steps: int = 0
    micro_batches: int = 0
    samples: int = 0
    engine_samples: int = 0
    engine_accumulation_steps: int | None = None
    gradient_clipping: float | None = None
    gradient_norms: tuple[float, ...] = ()
    learning_rates: tuple[float, ...] = ()
    right_gradient_norms: tuple[float, ...] = ()
    messages: tuple[str, ...] = ()
    findings: tuple[dict[str, Any], ...] = ()
    weights: Any = field(default=None, repr=False, compare=False)
    right_weights: Any = field(default=None, repr=False, compare=False)

    @property
    def norm_ratio(self) -> float | None:
        """The first gradient norm over that of the full batch: 1 where the scale is right."""
        if not self.gradient_norms or not self.right_gradient_norms:
            return None
        return self.gradient_norms[0] / self.right_gradient_norms[0]

    @property
    def weight_difference(self) -> float | None:
        """The largest difference of a weight from plain PyTorch, at the end."""
        return None if self.weights is None else float(abs(self.weights - self.right_weights).max())

    @property
    def summary(self) -> str:
        """The run in one line, without digits that differ between machines."""
        if self.ended != "finished":
            return f"{self.ended}. {' '.join(self.words.split())[:300]}"
        ratio, difference = self.norm_ratio, self.weight_difference
        text = f"{self.optimizer_steps} optimizer steps"
        text += f", first gradient x {ratio:.2f}" if ratio is not None else ""
        same = difference is not None and difference <= SAME
        text += f", weights {'as in' if same else 'other than'} plain PyTorch"
        return text + (f"; seen live: {', '.join(dict.fromkeys(self.codes))}" if self.codes else "")

    @property
    def codes(self) -> list[str]:
        """The codes that the live observer found, warnings and errors alone."""
        return [finding["code"] for finding in self.findings if finding["severity"] != "note"]


def read_result(folder: Path, run: FrameworkRun) -> ProgramResult | None:
    """What the processes left in the folder; ``None`` where none of them could write."""
    reports = [
        json.loads(path.read_text(encoding="utf-8"))
        for rank in range(run.processes)
        if (path := folder / REPORT.format(rank)).is_file()
    ]
    if not reports:
        return None
    # What went wrong in any of the processes is what became of the run.
    first = min(reports, key=lambda report: ("refused", "failed", "finished").index(report["ended"]))
    names = ("optimizer_steps", "engine_samples", "engine_accumulation_steps", "gradient_clipping")
    counted = {name: first[name] for name in (*names, "micro_batches") if name in first}
    finished = first["ended"] == "finished"
    return ProgramResult(
        **counted,
        ended=first["ended"],
        words=first["words"],
        set_aside="" if run.script.get("cuda_check", True) else SET_ASIDE,
        samples=sum(report["samples"] for report in reports),
        gradient_norms=_norms(reports),
        learning_rates=tuple(first.get("learning_rates", ())),
        right_gradient_norms=tuple(first.get("right_gradient_norms", ())),
        messages=tuple(dict.fromkeys(text for report in reports for text in report["messages"])),
        findings=tuple(finding for report in reports for finding in report["findings"]),
        weights=_array(folder / WEIGHTS) if finished else None,
        right_weights=_array(folder / RIGHT_WEIGHTS) if finished else None,
    )


def _norms(reports: list[dict[str, Any]]) -> tuple[float, ...]:
    """Under ZeRO-1, 2 and 3 each process holds a part of the gradient; at stage 0 all hold the whole."""
    parts = [report["squares"] for report in reports if report.get("squares")]
    if not parts:
        return ()
    whole = [sum(step) for step in zip(*parts, strict=True)] if reports[0]["zero_stage"] else parts[0]
    return tuple(math.sqrt(square) for square in whole)


def _array(path: Path) -> Any:
    import numpy

    return numpy.load(path)
