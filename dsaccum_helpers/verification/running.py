"""What the matrix and a person's config share: the numbers of the proof, running it, and measuring distances."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

from dsaccum_helpers.training.events import RunResult
from dsaccum_helpers.training.run import Run
from dsaccum_helpers.verification.rows import SAME_NORM

UPDATES = 10
"""Optimizer steps of the matrix. What is lost, kept or scaled wrongly shows from the first or second update on."""
CONFIG_UPDATES = 20
"""Optimizer steps for a person's config: room for the whole course of its schedule."""
TASK = "digits"
EXACT = 1e-6
"""How far an fp32 weight may end from the full batch's. Sums in another order part by 3e-8 an update (measured)."""

Progress = Callable[[int, int], None]


def run_all(runner: Any, runs: Sequence[Run], progress: Progress | None) -> list[RunResult]:
    """Run to the end; the results in the order given. ``progress`` is called with (runs that are over, runs in all).

    Those on one process go first, side by side: alternating would leave a core idle whenever the number changes.
    """
    over = 0
    # Leaving the loop early, or interrupting it, ends all that is still going on.
    with closing(runner.stream(sorted(runs, key=lambda run: run.result.setting.processes))) as events:
        for _, point in events:
            over += point is None
            if point is None and progress is not None:
                progress(over, len(runs))
    return [run.result for run in runs]


def spread(difference: Any) -> float:
    """The root mean square of the elements."""
    return float((difference**2).mean() ** 0.5)


def worst(measured: Sequence[float | None], right: Sequence[float | None]) -> float:
    """The largest difference of two lists, pair by pair, as a share of the right value; infinite for other lengths."""
    if len(measured) != len(right):
        return float("inf")
    shares = [0.0]
    for one, other in zip(measured, right, strict=True):
        if one is None or other is None:
            return float("inf")
        shares.append(abs(one - other) / max(abs(other), 1e-12))
    # max() would pass over a number that is none.
    return max(shares) if all(share == share for share in shares) else float("inf")


def bf16_share(steps: int, processes: int) -> float:
    """What rounding explains in bf16, as a share of the way that the weights go.

    bf16 keeps 8 significant bits, so each rounding is off by at most 2**-9 of a value. A gradient is rounded on its way
    through the layers (six matrix products) and once for each micro-batch that is added, and the terms are larger than
    their sum (a factor of two). The fp32 masters lose nothing, so the weights part by that share. Adam divides each
    gradient by its own size, which keeps the share but for the few gradients that are no larger than their rounding; at
    the small rate they do not show (measured: 0.02, while the known fault at ZeRO-0 parts the weights by 0.11).
    """
    return (steps * processes + 6) * 2.0**-8


def same_norm(dtype: str, steps: int, processes: int) -> float:
    """By how much the norm of a gradient may differ, as a share of it: in bf16 each of its elements is rounded."""
    return SAME_NORM if dtype == "fp32" else bf16_share(steps, processes)
