"""What is known of an engine before its first step, and how a finding of a live run looks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

from dsaccum_helpers.findings import Finding, Fix
from dsaccum_helpers.mismatches import GROUPS, load
from dsaccum_helpers.observer.places import Place, source

#: One bit each in what ranks tell each other: a float64 holds 53 of them exactly.
_CODES = [code for group in GROUPS.values() for code in group]


class Facts:
    """The engine's numbers, read anew at each window: a script may change them."""

    def __init__(self, engine: Any, world: int) -> None:
        self.engine, self.world = engine, world
        self.rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        self.stage = int(engine.zero_optimization_stage())
        self.managed = bool(engine.managed_gradient_accumulation())
        clip = engine.gradient_clipping()
        self.clip = float(clip) if isinstance(clip, int | float) and not isinstance(clip, bool) else 0.0
        self.optimizer = type(getattr(engine, "basic_optimizer", None) or engine.optimizer).__name__
        self.small = next((p.dtype for p in engine.module.parameters()), torch.float32) != torch.float32
        self.refresh()

    def refresh(self) -> None:
        """Micro-batch, accumulation steps and train batch as they are now."""
        self.micro = self.engine.train_micro_batch_size_per_gpu()
        self.gas = self.engine.gradient_accumulation_steps()
        self.train = self.engine.train_batch_size()

    @property
    def weight_tolerance(self) -> float:
        """How far a sum of weights may be from what it should be: the losses of a 16-bit model are rounded."""
        return 0.02 if self.small else 0.002

    @property
    def norm_tolerance(self) -> float:
        """The same for norms: 2,048 bf16 terms are off by 9.6 % (measured)."""
        return 0.12 if self.small else 0.02


class Seen(Finding):
    """A finding of a live run: with the optimizer step and the rank in which it was seen first."""

    step: int = 0
    rank: int = 0
    times: int = 1

    def to_dict(self) -> dict[str, Any]:
        """As in the JSON report, with ``step``, ``rank`` and ``times``."""
        return {**super().to_dict(), "step": self.step, "rank": self.rank, "times": self.times}


def seen(
    code: str,
    message: str,
    places: Iterable[Place | None] = (),
    *,
    severity: str | None = None,
    title: str | None = None,
    consequence: str | None = None,
    fix: str | None = None,
) -> Seen:
    """A finding of this code; what is not given is that of its entry."""
    entry = load(code)
    where = [one for place in dict.fromkeys(places) for one in source(place)]
    return Seen(
        code,
        severity or entry.severity,
        title or entry.title,
        message,
        where,
        entry.consequence if consequence is None else consequence,
        [Fix(fix or entry.remedy)],
        entry.learn,
    )


def marked(found: Iterable[Finding]) -> tuple[float, float]:
    """Which codes are there as errors and as warnings: two numbers that ranks can exchange."""
    codes: dict[str, set[str]] = {"error": set(), "warning": set(), "note": set()}
    for one in found:
        codes[one.severity].add(one.code)
    errors, warnings = (float(sum(1 << _CODES.index(code) for code in codes[name])) for name in ("error", "warning"))
    return errors, warnings


def elsewhere(marks: Sequence[tuple[float, float]], known: Iterable[str]) -> list[Seen]:
    """What other ranks have found, from ``marked`` of each, without the codes that are known here."""
    codes, found = set(known), []
    for rank, numbers in enumerate(marks):
        for severity, bits in zip(("error", "warning"), map(int, numbers), strict=True):
            for place, code in enumerate(_CODES):
                if bits >> place & 1 and code not in codes:
                    codes.add(code)
                    message = f"Data-parallel rank {rank} sees this, and this rank does not: look at its log and data."
                    found.append(seen(code, message, severity=severity))
                    found[-1].rank = rank
    return found
