"""What is noted of one accumulation window: from the first backward after an update to the next update."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from dsaccum_helpers.observer.losses import Term
from dsaccum_helpers.observer.places import Place


class Backward:
    """One backward pass.

    ``scaled``: does the engine divide by its accumulation steps? ``direct``: backward() was called on the tensor
    itself. ``override``: the boundary flag that the script set, None for none. ``samples``: first dimension of what
    the forward pass was given, ``read``: that of what the loader gave last, None where not known. ``items``: how many
    the loader gave since the last backward. ``forwards``: training forward passes since the last backward.
    ``scale``: the loss scale of fp16. ``gas``: the engine's accumulation steps at the time.
    """

    __slots__ = (
        "direct",
        "forwards",
        "gas",
        "items",
        "override",
        "place",
        "read",
        "samples",
        "scale",
        "scaled",
        "terms",
    )

    def __init__(self, place: Place, scaled: bool, direct: bool, gas: Any, override: Any) -> None:
        self.place, self.scaled, self.direct, self.gas, self.override = place, scaled, direct, gas, override
        self.samples: int | None = None
        self.read: int | None = None
        self.forwards = 0
        self.items = 0
        self.scale = 1.0
        self.terms: list[Term] = []


class Window:
    """``backwards`` and the calls between them; places are lists of (place, how many backwards came before)."""

    def __init__(self, sampled: bool, gradients: bool) -> None:
        self.sampled, self.gradients = sampled, gradients
        self.backwards: list[Backward] = []
        self.steps = 0
        self.step_place: Place | None = None
        self.groups: list[int] = []  # backwards before each step()
        self.zeroed: list[tuple[Place, int, str]] = []
        self.clipped: list[tuple[Place, int]] = []
        self.skipped: list[Place] = []
        self.rates: list[float] = []
        self.scheduler_place: Place | None = None
        self.scheduler_outside = 0
        self.bypassed: Place | None = None  # a forward pass around the engine
        self.repeated = 0  # backwards that share their micro-batch with the one before
        self.broken = False  # begun before the watch, or a backward failed half way: its numbers say nothing
        self.strayed = False  # a backward of another engine has reached this one's parameters
        self.override_place: Place | None = None
        self.no_sync = False


class Measured:
    """One criterion in numbers: ``factor`` is all that the script multiplied it with, ``divided`` what of it was
    written as a division, ``weight`` how much a mean over the micro-batch's targets enters the update with; None where
    that cannot be known. ``kind``: as in ``Term``, with ``masked`` or ``total`` in place of ``quotient``.
    """

    __slots__ = ("count", "divided", "factor", "kind", "multiplied", "weight")

    def __init__(self, term: Term, values: Iterator[float], scale: float) -> None:
        self.factor = self.divided = self.multiplied = 1.0
        for value, divided in term.factors:
            number = abs(next(values) if torch.is_tensor(value) else value)
            self.factor *= number
            self.divided *= number if divided else 1.0
            self.multiplied *= 1.0 if divided else number
        self.count = next(values) if torch.is_tensor(term.count) else term.count
        self.kind = _kind(term, self.count)
        arrived = abs(next(values)) / scale if term.arrived is not None else None
        if self.kind == "total" or arrived is None:
            self.weight = None
        elif self.kind == "sum":
            self.weight = None if self.count is None else arrived * self.count
        else:
            self.weight = arrived


class Closed:
    """A window as numbers.

    ``terms``: per backward, its criteria. ``weights``: per backward, the sum of their weights (1 / accumulation steps
    each in a right run), None where not known. ``total``: sum of the weights, the mean over ranks. ``token_range``:
    fewest and most targets under the mean of a full micro-batch, over all ranks. ``ratio``: norm that the optimizer saw
    over the norm of the window's gradient; ``seen``: that norm. ``spread``: relative difference of the parameters
    between ranks. ``marks``: what each rank had found before, as ``facts.marked`` gives it; empty on one process.
    """

    def __init__(self, window: Window, micro: int) -> None:
        self.window = window
        self.count = len(window.backwards)
        self.terms: list[list[Measured]] = []
        self.total: float | None = None
        self.ratio: float | None = None
        self.seen: float | None = None
        self.spread = 0.0
        self.marks: list[tuple[float, float]] = []
        if window.sampled:
            values = iter(_numbers(window))
            for backward in window.backwards:
                scale = backward.scale * (backward.gas if backward.direct else 1.0)
                self.terms.append([Measured(term, values, scale) for term in backward.terms])
        self.weights = [_sum([term.weight for term in terms]) for terms in self.terms]
        self.own_total = _sum(self.weights)
        self.token_range = self._tokens(micro)

    def forget(self) -> None:
        """The window cannot be weighed."""
        self.terms, self.weights = [], []
        self.own_total = self.token_range = self.total = self.ratio = None

    def _tokens(self, micro: int) -> tuple[float, float] | None:
        """Where micro-batches weigh the same: a last one that is short may have fewer targets."""
        pairs = list(zip(self.window.backwards, self.terms, strict=False))
        sizes = [backward.samples for backward, _ in pairs]
        if pairs and sizes[-1] is not None and sizes[-1] < micro and set(sizes[:-1]) <= {micro}:
            pairs.pop()
        counts, weights = [], []
        for backward, terms in pairs:
            if len(terms) == 1 and terms[0].kind in ("mean", "masked") and terms[0].weight is not None:
                counts.append(backward.samples if terms[0].count is None else terms[0].count)
                weights.append(terms[0].weight)
        known = [count for count in counts if count is not None]
        if not known or len(known) < len(counts) or max(weights) > 1.001 * min(weights):
            return None
        return min(known), max(known)


def _sum(values: list[float | None]) -> float | None:
    """The sum where all are known and there is one."""
    known = [value for value in values if value is not None]
    return sum(known) if known and len(known) == len(values) else None


def _kind(term: Term, count: float | None) -> str:
    """What a sum divided by hand is: a mean where it can be one, else a part of a total over several micro-batches."""
    if term.kind != "quotient":
        return term.kind
    if count is None or count > term.elements:
        return "total"
    return "mean" if count == term.elements else "masked"


def _numbers(window: Window) -> list[float]:
    """All numbers that lie in tensors, read at once: on a GPU each reading by itself would wait."""
    tensors: list[Any] = []
    for backward in window.backwards:
        for term in backward.terms:
            tensors += [value for value, _ in term.factors if torch.is_tensor(value)]
            tensors += [term.count] if torch.is_tensor(term.count) else []
            tensors += [term.arrived] if term.arrived is not None else []
    if not tensors:
        return []
    device = next((one.device for one in tensors if one.device.type != "cpu"), tensors[0].device)
    parts = [one.detach().reshape(-1)[:1].to(device=device, dtype=torch.float32) for one in tensors]
    found: list[float] = torch.cat(parts).tolist()
    return found
