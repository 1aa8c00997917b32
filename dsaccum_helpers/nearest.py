"""Which settings that work are near one that does not: whole-number arithmetic, every search bounded (pure).

Numbers may be as large as Python's integers; nothing here loops over more than a fixed span of them.
"""

from __future__ import annotations

import math

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import Any

_DIVISOR_SPAN = 64  # how far from the given number another divisor still counts as near


def near_settings(train: int, micro: int | None, steps: int | None, replicas: int) -> list[tuple[int, int, int, int]]:
    """Settings (train, micro, steps, replicas) with train = micro x steps x replicas, near the given one.

    ``None`` stands for a number that is derived. Those that change fewest of the given numbers come first; never empty.
    """
    found = []
    if micro:
        found += [(n * micro * replicas, micro, n, replicas) for n in near_multiples(train, micro * replicas)]
    if steps or not micro:
        fixed = steps or 1
        found += [(n * fixed * replicas, n, fixed, replicas) for n in near_multiples(train, fixed * replicas)]
    share, rest = divmod(train, (micro or 1) * (steps or 1))  # what is left for processes and the derived number
    if not rest and micro and steps:
        found.append((train, micro, steps, share))
    elif not rest:
        found += [
            (train, micro or share // n, steps or (share // n if micro else 1), n)
            for n in near_divisors(share, replicas)
        ]
    if micro and steps:
        found.append((micro * steps * replicas, micro, steps, replicas))
    share, rest = divmod(train, replicas)  # the same batch on the same processes, cut otherwise
    if micro and not rest:
        found += [(train, n, share // n, replicas) for n in near_divisors(share, micro)]
    elif steps and not rest:
        found += [(train, share // n, n, replicas) for n in near_divisors(share, steps)]
    given = (train, micro, steps, replicas)
    return sorted(found, key=lambda new: sum(old not in (None, value) for old, value in zip(given, new, strict=True)))


def near_multiples(number: int, unit: int) -> list[int]:
    """The one or two positive counts of ``unit`` that come nearest to ``number``, the nearer first."""
    counts = {max(number // unit, 1), -(-number // unit)}
    return sorted(counts, key=lambda count: (abs(count * unit - number), count))


def near_divisors(number: int, near: int) -> list[int]:
    """The next divisor of ``number`` at or below ``near`` and the next above, as far as the span reaches."""
    top = min(near, number)
    below = range(top, max(top - _DIVISOR_SPAN, 0), -1)
    above = range(near + 1, min(near + _DIVISOR_SPAN, number) + 1)
    firsts = [next((n for n in span if number % n == 0), None) for span in (below, above)]
    return [n for n in firsts if n is not None]


def near_integers(value: Any) -> list[int]:
    """The positive integers next to a value: 2.5 gives 2 and 3, "64" gives 64, true gives 1, "auto" none."""
    try:
        if isinstance(value, str):
            value = int(value) if value.strip().isdecimal() else float(value)
        near = dict.fromkeys((math.floor(value), math.ceil(value)))
    except (TypeError, ValueError, OverflowError):
        return []
    return [number for number in near if number >= 1]
