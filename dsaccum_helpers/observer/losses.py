"""The weights with which losses enter an update, read from the graph below the tensor that backward() is called on.

From the root the walk goes through arithmetic with plain numbers (``loss / 4``, ``a + 0.1 * b``) to the first other
node, the criterion. Its upstream gradient is the weight of that loss: measured while backward() runs, after whatever
the script, the engine and a loss scaler have multiplied.
"""

from __future__ import annotations

import math
from typing import Any

import torch

_NAMES = ("Div", "Mul", "Neg", "Add", "Sub", "ToCopy", "Clone", "Alias", "View", "ReshapeAlias", "Squeeze", "Unsqueeze")
_ARITHMETIC = frozenset(f"{name}Backward0" for name in _NAMES)
_MEAN, _SUM = 1, 2
_MOST_TERMS = 64


class Term:
    """One criterion under a loss.

    ``factors``: what it was multiplied with, numbers or tensors of one element, each with whether that was written as
    a division. ``kind``:
    ``mean``, ``sum``, ``quotient`` (a sum divided by something, as the script wrote it), or ``other`` where the node
    does not say. ``count``: targets (or elements) under the mean or sum, or the divisor of the quotient; a number or a
    tensor, None where not known. ``elements``: how many the quotient sums up, 0 where not known. ``arrived``: the
    upstream gradient, once backward() has run.
    """

    __slots__ = ("arrived", "count", "elements", "factors", "handle", "kind")

    def __init__(self, factors: tuple[Any, ...], kind: str, count: Any, elements: int = 0) -> None:
        self.factors, self.kind, self.count, self.elements = factors, kind, count, elements
        self.arrived: torch.Tensor | None = None
        self.handle: Any = None

    def take(self, gradients: tuple[torch.Tensor | None, ...]) -> None:
        """The hook of the criterion's node."""
        for gradient in gradients:
            if gradient is not None:
                if gradient.numel() == 1:
                    self.arrived = gradient if self.arrived is None else self.arrived + gradient
                return


def terms(loss: Any) -> list[Term]:
    """The criteria under a loss, each with a hook that measures its weight. Empty where the loss has no graph."""
    root = getattr(loss, "grad_fn", None)
    if root is None:
        return []
    found: list[Term] = []
    todo: list[tuple[Any, tuple[Any, ...]]] = [(root, ())]
    while todo and len(found) < _MOST_TERMS:
        node, factors = todo.pop()
        below = _below(node, factors)
        if below is None:
            term = Term(factors, *_criterion(node))
            term.handle = node.register_prehook(term.take)
            found.append(term)
        else:
            todo += below
    return found


def _below(node: Any, factors: tuple[Any, ...]) -> list[tuple[Any, tuple[Any, ...]]] | None:
    """The nodes under a piece of arithmetic with the factors so far; None where the node is a criterion."""
    name = node.name()
    if name not in _ARITHMETIC:
        # ZeRO-3 wraps what a module gives in autograd functions of its own.
        if "BackwardFunction" not in name and "ForModuleBackward" not in name:
            return None
        kids = [kid for kid, _ in node.next_functions if kid is not None]
        return [(kids[0], factors)] if len(kids) == 1 else None
    kids = [kid for kid, _ in node.next_functions if kid is not None]
    if name in ("AddBackward0", "SubBackward0"):
        negative = name == "SubBackward0" and len(node.next_functions) == 2
        last = node.next_functions[-1][0]
        return [(kid, (*factors, (-1.0, False)) if negative and kid is last else factors) for kid in kids] or None
    if len(kids) != 1:
        return None  # two tensors that both want a gradient: no plain number
    if name == "NegBackward0":
        return [(kids[0], (*factors, (-1.0, False)))]
    if name in ("DivBackward0", "MulBackward0"):
        return _scaled(node, name, kids[0], factors)
    return [(kids[0], factors)]


def _scaled(node: Any, name: str, kid: Any, factors: tuple[Any, ...]) -> list[tuple[Any, tuple[Any, ...]]] | None:
    other = node._saved_other
    if other is None and name == "MulBackward0":
        other = node._saved_self
    if other is None or other.numel() != 1:
        return None
    divided = name == "DivBackward0"
    if divided and kid.name() == "SumBackward0":
        return None  # a mean, or a mean over a window, written by hand
    value = other if other.device.type != "cpu" else float(other)
    if divided:
        value = 1.0 / value if torch.is_tensor(value) or value else 0.0
    return [(kid, (*factors, (value, divided)))]


def _criterion(node: Any) -> tuple[str, Any, int]:
    """Kind, count and elements of a criterion."""
    name = node.name()
    if name == "DivBackward0":
        return "quotient", node._saved_other, _elements(node.next_functions[0][0])
    if name == "MeanBackward0":
        return "mean", None, 0
    if name == "SumBackward0":
        return "sum", _elements(node) or None, 0
    reduction = getattr(node, "_saved_reduction", None)
    if reduction not in (_MEAN, _SUM):
        return "other", None, 0
    count = getattr(node, "_saved_total_weight", None)
    if reduction == _MEAN and getattr(node, "_saved_weight", None) is not None:
        count = None  # with weights of classes this is the sum of weights, and no count of targets
    if count is None and reduction == _SUM:
        saved = getattr(node, "_saved_self", None)
        count = None if saved is None else saved.numel()
    return ("mean" if reduction == _MEAN else "sum"), count, 0


def _elements(node: Any) -> int:
    """How many numbers a SumBackward0 sums up."""
    return math.prod(getattr(node, "_saved_self_sym_sizes", None) or (0,))
