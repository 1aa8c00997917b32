"""What a batch's tensors say of the number of its samples."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch


def first_tensor(values: Any) -> torch.Tensor | None:
    """The first tensor of a forward pass's arguments, also inside a batch that is a dict, list or tuple."""
    return next(_tensors(values), None)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    for value in values:
        if torch.is_tensor(value):
            yield value
        elif isinstance(value, dict | list | tuple):
            yield from _tensors(value.values() if isinstance(value, dict) else value)


def samples_of(values: Any, micro: int) -> int | None:
    """Samples in a batch of which ``micro`` are expected; None where the tensors do not say.

    The first dimension, where all tensors agree on it. One that is as expected is enough: of packed rows, boxes or
    nodes the others count something else. A list of so many tensors has a tensor for each sample. None also for texts
    packed into one row (1 x length), and where the second dimension is the expected one (sequence first).
    """
    tensors = [one for one in _tensors(values) if one.dim()]
    firsts = {one.shape[0] for one in tensors}
    if micro in firsts or any(_list_of(value, micro) for value in _inside(values)):
        return micro
    if len(firsts) != 1:
        return None
    for one in tensors:
        whole = not one.is_floating_point()
        packed = whole and one.dim() == 2 and one.shape[0] == 1 and one.shape[1] > 1
        if packed or (one.dim() > 1 and one.shape[1] == micro and (whole or one.dim() > 2)):
            return None
    return int(firsts.pop())


def _inside(values: Any) -> Iterator[Any]:
    """All lists and tuples of a batch, however deep."""
    for value in values:
        if isinstance(value, list | tuple):
            yield value
        if isinstance(value, dict | list | tuple):
            yield from _inside(value.values() if isinstance(value, dict) else value)


def _list_of(value: Any, micro: int) -> bool:
    """One tensor for each sample: all of one kind, as inputs and targets seldom are."""
    if len(value) != micro or not all(torch.is_tensor(one) and one.dim() for one in value):
        return False
    return len({(one.dtype, one.dim()) for one in value}) == 1
