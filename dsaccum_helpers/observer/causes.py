"""From the numbers of one window to the name of what is wrong with its gradient.

Each rule needs a wrong number: weights that do not sum to 1, or a gradient that the optimizer does not see. The calls
only say which rule it is. Where calls are odd and the numbers right, a rule gives a note or nothing.
"""

from __future__ import annotations

from dsaccum_helpers.observer.facts import Facts, Seen, seen
from dsaccum_helpers.observer.places import Place, shown
from dsaccum_helpers.observer.scale import nobody, twice
from dsaccum_helpers.observer.window import Closed


class Case:
    """One closed window with what the rules ask of it."""

    def __init__(self, closed: Closed, facts: Facts) -> None:
        self.closed, self.facts = closed, facts
        self.window = closed.window
        self.count = closed.count
        self.gas, self.world, self.stage = facts.gas, facts.world, facts.stage
        self.backwards = self.window.backwards
        self.overrides = {backward.override for backward in self.backwards}
        self.counting = facts.managed and self.overrides <= {None}
        self.several = self._several()
        self.short_scale = closed.total is not None and not self.near(closed.total, 1.0)
        ratio = closed.ratio
        self.lost = ratio is not None and ratio < 1 - facts.norm_tolerance
        self.changed = ratio is not None and abs(ratio - 1) > facts.norm_tolerance
        self.wrong = self.short_scale or self.changed

    def _several(self) -> bool:
        """Do several backwards share one micro-batch? Told by the loader where it is followed, else by the inputs."""
        read = sum(backward.items for backward in self.backwards)
        if read:
            return read <= self.count / 2
        if self.window.repeated:
            return True
        begin = 0
        for size in self.window.groups:
            samples = [backward.samples for backward in self.backwards[begin : begin + size]]
            begin += size
            if size > 1 and None not in samples and sum(samples) <= self.facts.micro:  # type: ignore[arg-type]
                return True
        return False

    def near(self, value: float, goal: float) -> bool:
        """Is it that number, but for rounding?"""
        return abs(value - goal) <= self.facts.weight_tolerance * abs(goal)

    @property
    def place(self) -> Place | None:
        """Where the last backward was called."""
        return self.backwards[-1].place if self.backwards else None

    @property
    def numbers(self) -> str:
        """What was measured, as the end of a message."""
        said = []
        if self.closed.total is not None and self.short_scale:
            said.append(f"the weights of the update's micro-batches sum to {self.closed.total:.4g}, not 1")
        if self.closed.ratio is not None and self.changed:
            said.append(
                f"the optimizer saw a gradient of norm {self.closed.seen:.4g}, {self.closed.ratio:.3g} of what the "
                "window had gathered"
            )
        return f" Measured: {'; '.join(said)}." if said else ""

    def divided_by(self) -> float | None:
        """What all losses of the window were divided by in the script: the accumulation steps, with or without ranks.

        A factor of one half is also how a squared error is written: it must have been written as a division.
        """
        terms = [term for terms in self.closed.terms for term in terms]
        # The square: the script divides, and so does a framework above the engine.
        for number in dict.fromkeys((float(self.gas), float(self.gas * self.world), float(self.gas**2))):
            if number == 1 or not terms:
                continue
            if all(self.near(term.divided * number, 1.0) for term in terms):
                return number
            # Nobody multiplies by 1 / accumulation steps twice; a quarter of a loss is its own factor.
            if 2 < number != self.gas**2 and all(self.near(term.multiplied * number, 1.0) for term in terms):
                return number
        return None

    def fits(self) -> bool:
        """Is a window as long as what engine and script divide by? Then other factors are the loss's own: label
        smoothing, a half, a small second summand.
        """
        engine_divides = all(backward.scaled or backward.direct for backward in self.backwards)
        missing = self.count / self.gas if engine_divides else float(self.count)
        if self.near(missing, 1.0):
            return self.divided_by() is None
        terms = [term for terms in self.closed.terms for term in terms]
        factors = [number * missing for term in terms for number in (term.divided, term.multiplied)]
        return any(self.near(factor, 1.0) for factor in factors)

    def kinds(self) -> set[str]:
        """The kinds of all criteria."""
        return {term.kind for terms in self.closed.terms for term in terms}


def main_cause(case: Case) -> Seen | None:
    """The first rule that fits; they stand in the order in which one explains the others."""
    for rule in (_cleared, _clipped, _skipped, _several, _caller, _override, _by_hand, twice, nobody, _drift, _lost):
        found = rule(case)
        if found is not None:
            return found
    return None


def _cleared(case: Case) -> Seen | None:
    inside = [one for one in case.window.zeroed if one[1] < case.count]
    if not inside:
        return None
    place, _, on = inside[0]
    message = f"Gradients are cleared inside the window by {on}.zero_grad() ({shown(place)})"
    if case.changed:
        return seen("zero-grad-inside-window", f"{message}.{case.numbers}", [place])
    if case.closed.ratio is None:
        return None
    message += f": at ZeRO-{case.stage} this call reaches none of what the window has gathered, and changes nothing."
    return seen("zero-grad-inside-window", message, [place], severity="note", consequence="")


def _clipped(case: Case) -> Seen | None:
    inside = [place for place, before in case.window.clipped if 0 < before < case.count]
    if not inside:
        return None
    message = f"Gradients are clipped inside the window ({shown(inside[0])})"
    if case.changed:
        return seen("clipping-inside-window", f"{message}, before it is complete.{case.numbers}", inside[:1])
    if case.stage in (2, 3):
        message += f": at ZeRO-{case.stage} the call finds no gradients, so nothing is clipped by it at all."
        return seen("clipping-inside-window", message, inside[:1], severity="warning")
    message += "; so far no gradient was large enough to be cut."
    return seen("clipping-inside-window", message, inside[:1], severity="note")


def _skipped(case: Case) -> Seen | None:
    if case.window.skipped:
        place = case.window.skipped[0]
        message = f"A micro-batch was passed forward and got no backward ({shown(place)}): the window closed without it"
        return seen("micro-batch-skipped", f"{message}.{case.numbers}", [place])
    if case.counting and case.window.steps > case.count and (case.short_scale or not case.count):
        message = (
            f"engine.step() was called {case.window.steps} times in this window and backward {case.count} times "
            f"({shown(case.window.step_place)}): {case.window.steps - case.count} micro-batches are missing from it"
        )
        return seen("micro-batch-skipped", f"{message}.{case.numbers}", [case.window.step_place, case.place])
    return None


def _several(case: Case) -> Seen | None:
    if case.window.strayed and case.changed:
        message = (
            f"A backward of another engine's loss has run through this engine's model ({shown(case.place)}), and what "
            f"it left entered this update.{case.numbers}"
        )
        return seen("several-backwards-per-step", message, [case.place])
    if not case.several or not case.counting or case.count <= case.window.steps:
        return None  # a step() for each backward: a large batch that the script cuts into micro-batches
    places = list(dict.fromkeys(backward.place for backward in case.backwards))[:2]
    message = (
        f"backward is called {case.count} times for {case.window.steps} step() calls on the same micro-batches "
        f"({', '.join(map(shown, places))})."
    )
    if case.lost:
        return seen("several-backwards-per-step", message + case.numbers, places)
    if case.changed or case.closed.ratio is None:
        return None
    message += f" At ZeRO-{case.stage} all of them reached the optimizer here; at ZeRO-1 and 2 only the last would."
    return seen("several-backwards-per-step", message, places, severity="note", consequence="")


def _caller(case: Case) -> Seen | None:
    if case.facts.managed or not case.short_scale or case.fits():
        return None
    message = (
        f"managed_gradient_accumulation is false: the script made an update of {case.count} micro-batches "
        f"({shown(case.window.step_place)}), and the division does not fit it (the engine's accumulation steps are "
        f"{case.gas}).{case.numbers}"
    )
    return seen("caller-owned-boundary", message, [case.place, case.window.step_place])


def _override(case: Case) -> Seen | None:
    if case.overrides <= {None} or not case.short_scale or case.divided_by() is not None:
        return None
    total, place = case.closed.total or 0.0, case.window.override_place or case.place
    if not case.near(total, case.count / case.gas):
        return None
    if case.gas == 1:
        message = (
            f"The config accumulates 1 micro-batch, and the script gathers {case.count} with the boundary flag "
            f"({shown(place)}): nobody divides them."
        )
        return seen("manual-accumulation", message + case.numbers, [place, case.place])
    if 1 < case.count < case.gas:
        message = f"A window was closed after {case.count} of {case.gas} micro-batches ({shown(place)}), each divided "
        return seen("leftover-micro-batches", f"{message}by {case.gas}.{case.numbers}", [case.place])
    if case.count == 1:
        message = (
            f"The boundary is set to true and stays so ({shown(place)}): every micro-batch is an update, of a gradient "
        )
        message += f"divided by {case.gas}."
    else:
        message = f"The boundary flag ({shown(place)}) makes windows of {case.count}, the engine divides by {case.gas}."
    return seen("sticky-boundary-override", message + case.numbers, [place, case.place])


def _by_hand(case: Case) -> Seen | None:
    """Fewer steps than backwards while the engine counts its step() calls."""
    if not case.counting or case.count <= case.window.steps or case.several:
        return None
    step = case.window.step_place
    if case.gas == 1:
        message = (
            f"The config accumulates 1 micro-batch, and the script gathers {case.count} by itself: backward "
            f"({shown(case.place)}) is called {case.count} times for one step() ({shown(step)})."
        )
        if case.wrong or case.closed.total is None:
            return seen("manual-accumulation", message + case.numbers, [step, case.place])
        if case.closed.ratio is None:
            return None
        message += f" At ZeRO-{case.stage} this trains as meant; at ZeRO-1 and 2 only the last would survive."
        return seen("manual-accumulation", message, [step, case.place], severity="note", consequence="")
    if not case.wrong and case.closed.total is not None:
        return None
    message = (
        f"engine.step() ({shown(step)}) is not called for every backward ({shown(case.place)}): {case.window.steps} "
        f"calls for {case.count} micro-batches. The engine counts the calls, so this update took {case.count} "
        f"micro-batches in place of {case.gas}."
    )
    return seen("guarded-engine-step", message + case.numbers, [step, case.place])


def _lost(case: Case) -> Seen | None:
    """The optimizer's gradient is not the window's, and no call explains it."""
    if not case.changed or any(before == case.count for _, before in case.window.clipped):
        return None
    message = f"The gradient that reaches the optimizer is not the one that the window gathered.{case.numbers}"
    if case.window.bypassed:
        message += f" The forward pass goes around the engine ({shown(case.window.bypassed)})."
    engine, severity = case.facts.engine, "error"
    if case.stage == 0 and not case.window.bypassed and engine.optimizer is getattr(engine, "basic_optimizer", None):
        severity = "warning"
        message += " Or the script changed p.grad itself before step() (noise, zeroed rows): then it is as meant."
    fix = "Call the model through engine(...), and compare the versions with dsaccum explain known-bad-version."
    title = "Gradients are lost or added on the way to the optimizer"
    return seen(
        "known-bad-version", message, [case.window.bypassed, case.place], severity=severity, title=title, fix=fix
    )


def _drift(case: Case) -> Seen | None:
    if case.closed.spread <= 1e-5:
        return None
    message = f"After the update the parameters differ between ranks (norms by {case.closed.spread:.2g}): gradients "
    message += f"were not averaged over them ({shown(case.place)})."
    code = "no-sync-with-partitioned-gradients" if case.window.no_sync else "known-bad-version"
    return seen(
        code, message, [case.place], severity="error", title="The ranks drift apart", fix="Leave no_sync() out."
    )
