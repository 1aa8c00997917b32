"""The learning rates that DeepSpeed's schedules are documented to give, worked out by our own arithmetic (pure).

Nothing here calls DeepSpeed: the oracle of ``verify --config`` takes its rates from here, the engine from its own
scheduler. The formulae are those of the class docstrings and of ``docs/_pages/config-json.md`` of DeepSpeed 0.19.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

#: Schedule to its parameters and their defaults. None: there is no default, or it comes from the optimizer.
PARAMETERS: dict[str, dict[str, Any]] = {
    "WarmupLR": {
        "warmup_min_lr": 0.0,
        "warmup_max_lr": None,
        "warmup_num_steps": 1000,
        "warmup_type": "log",
    },
    "WarmupDecayLR": {
        "total_num_steps": None,
        "warmup_min_lr": 0.0,
        "warmup_max_lr": 0.001,
        "warmup_num_steps": 1000,
        "warmup_type": "log",
    },
    "WarmupCosineLR": {
        "total_num_steps": None,
        "warmup_min_ratio": 0.0,
        "warmup_num_steps": 1000,
        "cos_min_ratio": 0.0001,
        "warmup_type": "log",
    },
}


@dataclass(frozen=True)
class Schedule:
    """A schedule block. ``name`` is a key of ``PARAMETERS``, or empty for a constant rate."""

    name: str = ""
    parameters: dict[str, Any] = field(default_factory=dict)

    def rates(self, base: float, updates: int) -> list[float]:
        """The learning rate of each of the first ``updates`` optimizer steps; ``base`` is the optimizer's own."""
        if not self.name:
            return [base] * updates
        values = PARAMETERS[self.name] | self.parameters
        rate = _cosine if self.name == "WarmupCosineLR" else _linear
        # DeepSpeed steps the schedule behind an update, from -1 to 0: the first two updates both have the first rate.
        return [rate(values, base, update - 1) for update in range(updates)]


def _warmup(values: dict[str, Any], step: int) -> float | None:
    """The share of the way up after ``step`` steps of the schedule; None where the warm-up is over."""
    length = max(2, values["warmup_num_steps"])
    if step >= length:
        return None
    return step / length if values["warmup_type"] == "linear" else math.log(step + 1) / math.log(length)


def _linear(values: dict[str, Any], base: float, step: int) -> float:
    """WarmupLR, which stays at the top, and WarmupDecayLR, which falls to the lowest rate in a straight line."""
    low, high = values["warmup_min_lr"], values["warmup_max_lr"]
    high = base if high is None else high
    if step < 0:
        return float(low)
    share = _warmup(values, step)
    if share is None:
        share, total = 1.0, values.get("total_num_steps")
        if total is not None:
            share = max(0.0, (total - step) / max(1, total - max(2, values["warmup_num_steps"])))
    return float(low + (high - low) * share)


def _cosine(values: dict[str, Any], base: float, step: int) -> float:
    """WarmupCosineLR: shares of the optimizer's rate, from ``warmup_min_ratio`` up to 1, down to ``cos_min_ratio``."""
    if step < 0:
        return 0.0
    share, low = _warmup(values, step), values["warmup_min_ratio"]
    if share is not None:
        return float(base * (low + (1.0 - low) * share))
    length = max(2, values["warmup_num_steps"])
    done = min(1.0, (step - length + 1) / max(1, values["total_num_steps"] - length))
    low = values["cos_min_ratio"]
    return float(base * (low + (1.0 - low) * (1.0 + math.cos(math.pi * done)) / 2))
