"""What a training script does, as the script reader understands it (pure).

A Program is a list of events in the order in which one pass through the code meets them. Functions and methods are
followed into, so an event knows every loop and every condition around it, wherever these are written::

    for batch in loader:                    Loop(over="loader")
        loss = engine(batch)                Event("forward")
        engine.backward(loss / n)           Event("backward"), loss.terms[0].divisions[0].value is n
        if (i + 1) % n == 0:                Guard("every", n)
            engine.step()                   Event("step") with that guard
"""

from __future__ import annotations

import re
from collections import namedtuple

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from dsaccum_helpers.job import Config, Source

#: Names that people give to the accumulation count. "acc" alone is as often an accuracy.
_COUNT_NAME = re.compile(
    r"accum|grad_?acc|\bacc_?(?:steps?|iters?|grads?|num|n)\b|(?:^|_)gas(?:$|_)|^ga(?:_?steps?)?$|update_?freq|iter_size"
    r"|num_?(?:micro|mini)_?batch|micro_?batches_?per|batches_?per_?(?:step|update)|accstep|step_?every|steps?_per_update",
    re.IGNORECASE,
)

Guard = namedtuple("Guard", "kind count text source engines", defaults=(None, "", None, frozenset()))
Guard.__doc__ = """A condition around an event.

``kind``: ``every`` (true once in ``count`` micro-batches), ``boundary`` (asks the engine or Accelerate), ``last``
(the last of a group), ``count`` (a counter has come to ``count``), ``data`` (depends on what a forward pass gave;
``engines`` says whose), ``failed`` (an exception was caught), ``static`` (the same all through the run, a command-line
flag), ``other``; with ``not-`` in front for the opposite. A ``with`` block stands here too, by the name of what it
enters: ``accumulate``, ``no_sync``, ``no-grad``, ``autocast``, ``coalesce_grad_reduction``. ``count``: a Number, None
where it is not known. ``text``: the condition as written, without a leading not.
"""

Division = namedtuple("Division", "value text source guards")
Division.__doc__ = "A loss divided by ``value`` (a Number or None), written ``text``, under these guards."

Term = namedtuple("Term", "divisions summed many own", defaults=((), False, False, True))
Term.__doc__ = """One summand of a loss: what it was divided by, whether it is a sum over samples instead of a mean,
whether it stands for many summands of a list, and whether it may have come out of an engine's forward pass."""

Event = namedtuple("Event", "kind actor source loops guards info")
Event.__doc__ = """Something that the program does.

``kind``: ``forward``, ``backward`` (through the engine or Accelerate), ``direct-backward``, ``step``,
``optimizer-step``, ``zero-grad``, ``scheduler-step``, ``clip``, ``set-boundary``, ``train-batch``, ``no-sync``,
``return-loss`` (to a Trainer), ``use-returned-loss`` (what ``engine.backward`` gave goes into a call),
``use-divided-loss`` (a divided loss goes into a call, for the log), ``count`` (a counter goes up by one),
``scale-counter`` (a number is multiplied by the accumulation steps), ``swallowed`` (an exception is caught and training
goes on). ``actor``: the Engine it is done to, None where that is not known. ``loops``, ``guards``: outermost first.
``info``: a dict.
"""


class Number:
    """A number that may not be known: ``factor`` times symbols to their powers.

    Symbols: ``gas`` (the engine's own accumulation steps), ``micro``, ``train`` (its batches), ``world``, ``len:NAME``
    (the length of a loader or list), ``?NAME`` (something unknown), ``=NAME=4`` (an accumulation count that the script
    calls NAME and that is 4). ``over``: ids of the collections it was counted over. ``alias``: what the script calls a
    count that it works out.
    """

    __slots__ = ("alias", "factor", "over", "symbols")

    def __init__(
        self, factor: float = 1, symbols: dict[str, int] | None = None, over: Iterable[int] = (), alias: str = ""
    ) -> None:
        self.factor, self.symbols, self.over, self.alias = factor, symbols or {}, frozenset(over), alias

    def known(self, **given: Any) -> float | None:
        """The number once the engine's own are put in; None where something is still unknown, or it is not finite."""
        result = self.factor
        for symbol, power in self.symbols.items():
            value = float(symbol.rsplit("=", 1)[1]) if symbol.startswith("=") else given.get(symbol)
            if not isinstance(value, int | float) or (power < 0 and not value):
                return None
            result *= value**power
        if abs(result) < 1e15:
            return int(result) if result == int(result) else result
        return result if result < float("inf") and result > float("-inf") else None

    @property
    def counts(self) -> bool:
        """Is it the accumulation count, by what it is or by what it is called?"""
        if self.alias and is_count_name(self.alias):
            return True
        return self.factor == 1 and self.count_power == 1 and len(self.symbols) == 1

    @property
    def count_power(self) -> int:
        """With which power accumulation counts enter: 1 where it was multiplied by one, -1 where divided."""
        if self.alias and is_count_name(self.alias):
            return 1
        return sum(power for symbol, power in self.symbols.items() if symbol == "gas" or is_count_name(symbol))

    def __repr__(self) -> str:
        return f"Number({self.factor}, {self.symbols})"


class Loop:
    """A loop: what it runs over, and how often where that is known.

    ``over``: ``loader``, ``range``, ``list``, ``while`` or ``other``. ``count``: a Number or None.
    ``items``: the ids of the collections it runs over, for comparison with ``Number.over``.
    ``size``: the loader's batch size (a Number or None). ``loader``: what the reader knows of the loader.
    ``fixed``: it runs over the same things each time, such as the names of heads.
    """

    def __init__(self, over: str, source: Source, count: Number | None = None, items: Iterable[int] = ()) -> None:
        self.over, self.source, self.count, self.items = over, source, count, frozenset(items)
        self.size: Number | None = None
        self.loader: Any = None
        self.fixed = False


class Engine:
    """A DeepSpeed engine, or what stands in for one in a framework.

    ``kind``: ``deepspeed``, ``accelerate``, ``trainer`` (Hugging Face) or ``lightning``. ``config``: the Config or the
    path that it was made with, None where that is not known. ``pipeline``: made of a PipelineModule.
    ``guessed``: only known by the calls that are made on it.
    """

    def __init__(self, kind: str, source: Source, name: str = "engine", guessed: bool = False) -> None:
        self.kind, self.source, self.name, self.guessed = kind, source, name, guessed
        self.config: Config | str | None = None
        self.pipeline = False

    def call_it(self, name: str) -> None:
        """The script's first own name for it is what messages use."""
        if self.kind == "deepspeed" and self.name == "engine":
            self.name = name


class Program:
    """The given scripts and notebooks together.

    ``events``: in order. ``engines``: those that appear. ``schedulers``: dicts with ``source``, ``owner`` (``engine``,
    ``prepared``, ``lightning`` or None) and ``total`` (a Number or None). ``cut``: where following them was given up,
    because there is too much; None where they were followed to their end.
    """

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.engines: list[Engine] = []
        self.schedulers: list[dict[str, Any]] = []
        self.cut: Source | None = None
        #: What the checks have worked out of it, by name: a dozen of them ask for the same.
        self.derived: dict[Any, Any] = {}

    def of(self, engine: Engine | None, *kinds: str) -> list[Event]:
        """The events of these kinds that are done to the engine (to any, where it is None)."""
        return [e for e in self.events if e.kind in kinds and (engine is None or e.actor is engine)]


def is_count_name(name: str) -> bool:
    """Is this (or the last part of a dotted name or symbol) what people call the accumulation count?"""
    if name.startswith("="):
        name = name[1:].rsplit("=", 1)[0]
    return not name.startswith("len:") and bool(_COUNT_NAME.search(name.lstrip("?").rsplit(".", 1)[-1]))


def named_count(name: str, value: float | None) -> Number:
    """The accumulation count under the name that the script gives it."""
    return Number(1, {f"?{name}" if value is None else f"={name}={value}": 1})


def without(guards: Iterable[Guard], others: Iterable[Guard]) -> list[Guard]:
    """The guards that are not among the others."""
    known = {(guard.kind, guard.text) for guard in others}
    return [guard for guard in guards if (guard.kind, guard.text) not in known]
