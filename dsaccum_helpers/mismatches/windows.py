"""How a script goes through an accumulation window: what the entries of the training loop share.

A window is the micro-batches of one optimizer step. ``pairs`` brings each ``backward`` together with the ``step`` that
belongs to it and says what stands between them; ``live`` leaves out the branches in which no engine is used.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import namedtuple
from operator import itemgetter

from dsaccum_helpers.effective import effective
from dsaccum_helpers.mismatches.numerics import zero_stage
from dsaccum_helpers.trace import Guard, without

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from dsaccum_helpers.job import Job, Source
    from dsaccum_helpers.trace import Division, Engine, Event, Number, Program

Pair = namedtuple("Pair", "engine backward step inner guards")
Pair.__doc__ = "A backward and its step. ``inner``: loops around the backward alone; ``guards``: of the step alone."

Setup = namedtuple("Setup", "gas stage managed deepspeed world")
Setup.__doc__ = """What the checks ask of the job. ``gas``: accumulation steps, ``stage``: of ZeRO, ``world``: replicas,
each None where it is not known. ``managed``: the value of managed_gradient_accumulation. ``deepspeed``: False where
Accelerate runs without it."""

#: Guards that let one micro-batch of a window through.
ONCE = ("every", "count", "last", "boundary")
_BRANCHES = ("static", "other")
_OTHER_COUNTS = re.compile(
    r"head|class|task|layer|gpu|world|rank|view|crop|temp|tau|len|dim|size|token|scale|channel|expert|agent|sample|std",
    re.IGNORECASE,
)


def setup(job: Job) -> Setup:
    """What the checks of the training loop ask of the job."""
    numbers = effective(job)
    gas = numbers.steps.value if numbers.steps else None
    gas = gas if isinstance(gas, int) and not isinstance(gas, bool) and gas > 0 else None
    managed = job.config.get("managed_gradient_accumulation", default=True) if job.config else True
    return Setup(gas, zero_stage(job), managed, _may_run_deepspeed(job), numbers.replicas)


def _may_run_deepspeed(job: Job) -> bool:
    """Is DeepSpeed not ruled out? Only Accelerate can be told to run without it."""
    kind = str(job.value("accelerate.distributed_type", "")).upper()
    return not (kind and kind != "DEEPSPEED" and job.config is None and not job.value("accelerate.use_deepspeed"))


def live(program: Program) -> list[Event]:
    """The events without those of branches that are the alternative to using the engine."""
    if "live" not in program.derived:
        program.derived["live"] = _live(program)
    found: list[Event] = program.derived["live"]
    return found


def _live(program: Program) -> list[Event]:
    arms: dict[str, set[bool]] = {}
    for event in program.events:
        if event.actor is not None and event.kind in ("backward", "step", "train-batch"):
            for guard in event.guards:
                if guard.kind.removeprefix("not-") in _BRANCHES:
                    arms.setdefault(guard.text, set()).add(guard.kind.startswith("not-"))
    return [event for event in program.events if _used(event.guards, arms)]


def _used(guards: Iterable[Guard], arms: dict[str, set[bool]]) -> bool:
    for guard in guards:
        if guard.kind == "failed":
            return False
        taken = arms.get(guard.text)
        if taken and guard.kind.startswith("not-") not in taken:
            return False
        if guard.kind == "static" and " == " in guard.text and not taken and _other_choice(guard.text, arms):
            return False
    return True


def _other_choice(text: str, arms: dict[str, set[bool]]) -> bool:
    """Has the same setting another value where an engine is used?"""
    name = text.split(" == ", 1)[0]
    return any(other.startswith(f"{name} == ") and taken == {False} for other, taken in arms.items())


def compatible(one: Iterable[Guard], other: Iterable[Guard]) -> bool:
    """Can both happen in one pass, or do they stand in opposite branches?"""
    kinds = {(guard.text, guard.kind) for guard in one if guard.text}
    return not kinds or all((guard.text, _opposite(guard.kind)) not in kinds for guard in other)


def pairs(program: Program, kind: str = "deepspeed", steps: str = "step") -> list[Pair]:
    """Each backward of an engine of this kind with the step that follows it."""
    name = ("pairs", kind, steps)
    if name not in program.derived:
        engines = [engine for engine in program.engines if engine.kind == kind]
        program.derived[name] = [pair for engine in engines for pair in _pairs_of(engine, live(program), steps)]
    found: list[Pair] = program.derived[name]
    return found


def _pairs_of(engine: Engine, events: list[Event], steps: str) -> Iterator[Pair]:
    done = [(place, event) for place, event in enumerate(events) if event.kind == steps and event.actor is engine]
    branches = {(step.loops, guard.text, guard.kind) for _, step in done for guard in step.guards if guard.text}
    choices: dict[object, list[tuple[int, Event]]] = {}
    for place, event in enumerate(events):
        if event.kind not in ("backward", "direct-backward") or event.actor is not engine or _coalesced(event):
            continue
        # Long scripts hold thousands of backwards, but few kinds of surroundings.
        around = event.loops, frozenset((guard.text, guard.kind) for guard in event.guards)
        if around not in choices:
            choices[around] = _nearest(event, done)
        step = _step_after(place, choices[around])
        if step is None:
            yield Pair(engine, event, None, (), ())
            continue
        shared = _shared(event.loops, step.loops)
        # A condition with a step in its other branch as well decides nothing.
        alone = without(step.guards, event.guards)
        guards = [guard for guard in alone if (step.loops, guard.text, _opposite(guard.kind)) not in branches]
        yield Pair(engine, event, step, event.loops[shared:], guards)


def _coalesced(event: Event) -> bool:
    """Does the engine reduce the gradients of several backwards together, as it was told to?"""
    return any(guard.kind == "coalesce_grad_reduction" for guard in event.guards)


def _opposite(kind: str) -> str:
    return kind.removeprefix("not-") if kind.startswith("not-") else f"not-{kind}"


def _nearest(backward: Event, steps: list[tuple[int, Event]]) -> list[tuple[int, Event]]:
    """From each place of a step on: the first step in as many loops of the backward as possible."""
    found: list[tuple[int, Event]] = []
    most = -1
    guarded, outermost = bool(backward.guards), backward.loops[0] if backward.loops else None
    for place, step in reversed(steps):
        if not guarded or compatible(backward.guards, step.guards):
            # Most steps of a long script stand in other loops.
            shared = _shared(backward.loops, step.loops) if step.loops and step.loops[0] is outermost else 0
            found.append((place, step if shared >= most else found[-1][1]))
            most = max(most, shared)
    return found[::-1]


def _step_after(place: int, nearest: list[tuple[int, Event]]) -> Event | None:
    """The step that belongs to a backward at this place; one before it in the loop will do."""
    behind = bisect_right(nearest, place, key=itemgetter(0))
    return nearest[behind if behind < len(nearest) else 0][1] if nearest else None


def _shared(one: tuple[object, ...], other: tuple[object, ...]) -> int:
    count = 0
    for left, right in zip(one, other, strict=False):
        if left is not right:
            break
        count += 1
    return count


def once(guards: Iterable[Guard]) -> Guard | None:
    """The guard that lets one micro-batch of a window through."""
    return next((guard for guard in guards if guard.kind in ONCE), None)


def sets_boundary(program: Program, engine: Engine) -> bool:
    """Does the script tell this engine where its windows end?"""
    if "set boundaries" not in program.derived:
        program.derived["set boundaries"] = {event.actor for event in program.events if event.kind == "set-boundary"}
    return engine in program.derived["set boundaries"]


def holds_forward(program: Program, pair: Pair) -> bool:
    """Is there a forward pass in the loops around the backward alone: are these micro-batches, not losses of one?"""
    innermost = pair.inner[-1] if pair.inner else None
    outer = pair.backward.loops[: len(pair.backward.loops) - len(pair.inner)]
    if innermost is not None and innermost.fixed and any(loop.over == "loader" for loop in outer):
        return False  # heads or tasks, the same ones for every micro-batch of the loader
    if "forwards" not in program.derived:
        passes = [event.loops for event in program.events if event.kind == "forward"]
        program.derived["forwards"] = bool(passes), {loop for loops in passes for loop in loops}
    some, around = program.derived["forwards"]
    return innermost in around or not some


def own_count(pair: Pair, known: Setup) -> float | None:
    """How many micro-batches the script itself puts into a window, None where that is not known."""
    guard = once(pair.guards)
    number: Number | None = guard.count if guard else None
    if number is None and pair.inner:
        number = pair.inner[0].count
        if number is None and pair.inner[0].over == "list":  # a list that was gathered until it had so many items
            number = next((g.count for g in pair.backward.guards if g.kind == "count"), None)
        if len(pair.inner) > 1:
            return None
    if number is None:
        return None
    # A count of which only the name is known is the engine's own, as far as one can tell.
    return number.known(gas=known.gas, world=known.world) or (known.gas if number.counts else None)


def count_divisions(event: Event, gas: int | None, world: int | None = None) -> Iterator[tuple[str, Division]]:
    """Divisions of the loss by the accumulation count (``count``), or by a total of the window (``total``)."""
    terms = event.info["loss"].terms if event.info.get("loss") is not None else ()
    for term in terms:
        for division in term.divisions:
            if division.value is None or not compatible(division.guards, event.guards):
                continue
            kind = _division_kind(division, event, gas, world, 0 if term.many else len(terms))
            if kind:
                yield kind, division


def _division_kind(division: Division, event: Event, gas: int | None, world: int | None, terms: int) -> str | None:
    value = division.value
    if value.known(gas=gas) == 1:
        return None
    if value.counts:
        return "count"
    around = frozenset().union(*(loop.items for loop in event.loops))
    if value.over & around:
        return "total" if any(symbol.startswith("?") for symbol in value.symbols) else "count"
    known = value.known(gas=gas, world=world)
    if known is None or gas is None or known != gas or gas == 1:
        return None
    # A number that is called nothing in particular is the count only where it cannot be the mean of as many summands,
    # half of something, or the number of something else.
    if not terms or terms == known or known <= 2 or _OTHER_COUNTS.search(division.text):
        return None
    return "count"


def same_place(events: Iterable[Event]) -> list[Event]:
    """Each place of the script once."""
    seen: set[Source] = set()
    found = []
    for event in events:
        if event.source not in seen:
            seen.add(event.source)
            found.append(event)
    return found


def at(event: Event | Division) -> str:
    """``train.py:12``, with the cell of a notebook."""
    cell = f" ({event.source.key})" if event.source.key else ""
    return f"{event.source.file}:{event.source.line}{cell}"
