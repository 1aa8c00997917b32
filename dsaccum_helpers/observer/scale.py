"""Who divides the losses of an update by the accumulation steps: nobody, one, or more than one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from dsaccum_helpers.observer.facts import Seen, seen
from dsaccum_helpers.observer.places import shown

if TYPE_CHECKING:
    from dsaccum_helpers.observer.causes import Case

#: A factor that is there in so many updates from the first on belongs to the script and not to a schedule.
_LASTING = 3


def _scaled(case: Case) -> list[bool]:
    """Of each backward: does the engine divide?"""
    return [backward.scaled or backward.direct for backward in case.backwards]


def twice(case: Case) -> Seen | None:
    """The script divides by the accumulation steps, and so does the engine or a framework above it."""
    if not case.short_scale or case.gas == 1:
        return None
    if not any(_scaled(case)):
        return _above(case)
    if not all(_scaled(case)):
        return None
    total, number = case.closed.total or 0.0, case.divided_by()
    if number is None and "sum" in case.kinds():
        number = next((n for n in (case.gas, case.gas * case.world) if case.near(total * n, 1.0)), None)
        if number is not None:
            message = (
                f"The loss is the mean over the whole window already ({shown(case.place)}), and the engine divides"
            )
            message += f" it by {case.gas} again.{case.numbers}"
            fix = "engine.backward(loss, scale_wrt_gas=False)"
            return seen("loss-divided-twice", message, [case.place], fix=fix)
    if number is None or total > 1:
        return None
    message = f"The script divides the loss by {number:g}, and the engine divides it by {case.gas} again "
    message += f"({shown(case.place)}).{case.numbers}"
    terms = [term for terms in case.closed.terms for term in terms]
    ambiguous = number == 2 or any(not case.near(term.divided * number, 1.0) for term in terms)
    return _said(case, message, ambiguous)


def _above(case: Case) -> Seen | None:
    """The engine is told not to divide, and the losses are divided by the square of the accumulation steps."""
    number, gas = case.divided_by(), case.gas
    if number != gas**2 or not case.near((case.closed.total or 0.0) * gas, 1.0):
        return None
    message = f"The loss is divided by {gas} twice before the engine has it, by the script and by what calls the "
    message += f"engine with scale_wrt_gas=False ({shown(case.place)}): by {number:g} in all.{case.numbers}"
    return _said(case, message, gas == 2)


def _said(case: Case, message: str, ambiguous: bool) -> Seen:
    """A half, or a number that the loss was multiplied with, can be a part of the loss itself."""
    if not ambiguous:
        return seen("loss-divided-twice", message, [case.place])
    message += f" By hand for the accumulation, or is the factor 1/{case.gas} a part of the loss (the half of a "
    message += "squared error, the weight of a task)? Then it is right."
    return seen("loss-divided-twice", message, [case.place], severity="warning")


def nobody(case: Case) -> Seen | None:
    """Nobody divides: the script has told the engine not to, and does not do it either."""
    if any(_scaled(case)) or case.count < 2:
        return None
    total = case.closed.total
    if total is None or case.kinds() != {"mean"} or not case.near(total, case.count):
        return None
    message = f"scale_wrt_gas=False tells the engine not to divide ({shown(case.place)}), and the script does not "
    message += f"divide either: the gradient is the sum of {case.count} micro-batches.{case.numbers}"
    if case.facts.clip > 0:
        message += f" gradient_clipping {case.facts.clip:g} cuts it to a size that looks right."
        return seen("clipping-hides-scale", message, [case.place])
    fix = f"engine.backward(loss / {case.count}, scale_wrt_gas=False), or leave scale_wrt_gas out."
    title = "Nobody divides the loss by the accumulation steps"
    does = f"Every gradient is {case.count} times too large."
    return seen("caller-owned-boundary", message, [case.place], fix=fix, title=title, consequence=does)


class Share:
    """One factor on every loss that no rule explains: a note, since it may be the loss's own."""

    def __init__(self) -> None:
        self.times, self.share, self.done = 0, 0.0, False

    def rule(self, case: Case, main: Seen | None) -> Iterator[Seen]:
        """The first updates decide, where all of them show the same sum of weights."""
        if self.done or case.closed.total is None:
            return
        share = None if main is not None else _share(case)
        if share is None or (self.times and not case.near(share, self.share)):
            self.done = True
            return
        self.times, self.share = self.times + 1, share
        if self.times == _LASTING:
            self.done = True
            yield self._note(case)

    def _note(self, case: Case) -> Seen:
        message = f"The weights of the micro-batches of each update sum to {self.share:.4g}, not 1, and every loss has "
        message += f"the same ({shown(case.place)}). That is right where the factor belongs to the loss itself; where "
        message += "it was meant for the accumulation, it is one too many or of another number."
        code = "clipping-hides-scale" if case.facts.clip > 0 else "caller-owned-boundary"
        return seen(
            "loss-divided-twice" if self.share < 1 else code,
            message,
            [case.place],
            severity="note",
            title="The weights of an update's losses do not sum to 1",
            consequence="",
            fix="Nothing, where the factor is the loss's own; else leave it out.",
        )


def _share(case: Case) -> float | None:
    """What the equal weights of all losses sum to; None where they are right, differ, or are no means."""
    terms = [term for terms in case.closed.terms for term in terms]
    accumulates = case.gas > 1 or case.count > 1
    if not (accumulates and case.short_scale and terms and case.kinds() <= {"mean", "masked", "other"}):
        return None
    weights, factors = [term.weight or 0.0 for term in terms], [term.factor for term in terms]
    # Of two losses that are added up each has the full weight: not the sum of both counts.
    share = weights[0] * case.count
    alike = all(case.near(one, weights[0]) for one in weights) and all(case.near(one, factors[0]) for one in factors)
    return share if alike and share > 0 and not case.near(share, 1.0) else None
