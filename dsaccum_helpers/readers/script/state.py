"""What the interpreter carries along: where it is, what it has seen, and how much it may still do."""

from __future__ import annotations

from dsaccum_helpers.job import Config, Source
from dsaccum_helpers.readers.script.values import (
    Class,
    Condition,
    Function,
    Mapping,
    Reference,
    Sequence,
    Unknown,
    Value,
)
from dsaccum_helpers.trace import Engine, Event, Guard, Loop, Number, Program

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    import ast
    from collections.abc import Collection
    from typing import Any

    from dsaccum_helpers.readers.script.values import Role, Scope

#: Nodes that one program may cost; a script of 5,000 lines has about 60,000 and is followed into itself.
BUDGET = 400_000


class Exhausted(Exception):
    """The program is larger than the interpreter follows; what was understood until then stands."""


class State:
    """The state of one reading. ``words``: the command line that starts the script, name to text."""

    def __init__(self, words: dict[str, Any]) -> None:
        self.program = Program()
        self.words = words
        self.file = ""
        self.budget = BUDGET
        self.reached: ast.stmt | None = None
        self.loops: list[Loop] = []
        self.guards: list[Guard] = []
        self.frames: list[Any] = []
        self.running: set[int] = set()
        self.grown: set[int] = set()
        self.visits: dict[int, int] = {}
        self.functions: list[Function] = []
        self.classes: list[Class] = []
        #: function node to file; node-specific options of a decorated command; attribute names that are counters
        self.files: dict[int, str] = {}
        self.options: dict[int, dict[str, Value]] = {}
        self.counters: set[str] = set()
        #: by id of a value: loops inside the generator that made it, known sizes of lists, places of dict keys
        self.generated: dict[int, list[Loop]] = {}
        self.sizes: dict[int, Number] = {}
        self.places: dict[tuple[int, str], Source] = {}
        #: by id of a model: the engine it was wrapped in
        self.models: dict[int, Engine] = {}
        #: values whose ids are used must stay alive
        self.keep: list[Value] = []
        self.modules: dict[str, Mapping] = {}
        #: what was learnt besides events: (fact name, value, Source)
        self.learnt: list[tuple[str, Any, Source]] = []
        self.references: list[tuple[str, Source]] = []
        self.made_configs: list[Config] = []
        self.loaders: list[Role] = []
        self.trained_on: list[Role] = []
        self.prepared_models: list[Source] = []
        self.prepared_loaders = 0
        self.speakers: list[tuple[str, Source]] = []
        self.lines: dict[str, Any] = {}

    def spend(self) -> None:
        """One more node."""
        self.budget -= 1
        if self.budget < 0:
            raise Exhausted

    def source(self, node: Any) -> Source:
        """Where a node of the file that runs now stands."""
        line, column = getattr(node, "lineno", None), getattr(node, "col_offset", None)
        place = self.lines.get(self.file)
        key = None
        if place is not None and line is not None:
            line, key = place[line - 1] if line <= len(place) else (line, None)
        return Source(self.file, line, None if column is None else column + 1, key)

    def emit(self, kind: str, actor: Engine | None, node: Any, **info: Any) -> None:
        """Something happens here."""
        self.program.events.append(Event(kind, actor, self.source(node), tuple(self.loops), tuple(self.guards), info))
        if kind in ("backward", "train-batch", "direct-backward"):
            for loop in self.loops:
                if loop.loader is not None and loop.loader not in self.trained_on:
                    self.trained_on.append(loop.loader)

    def learn(self, name: str, value: Any, node: Any) -> None:
        """A fact of the job."""
        self.learnt.append((name, value, self.source(node)))

    def module(self, name: str) -> Mapping | None:
        """A module that is one of the given files."""
        raise NotImplementedError

    def eval(self, node: ast.expr, scope: Scope) -> Value:
        """The value of an expression."""
        raise NotImplementedError

    def block(self, body: Any, scope: Scope) -> Any:
        """Run statements in order."""
        raise NotImplementedError

    def bind(self, target: ast.expr, value: Value, scope: Scope) -> None:
        """Give a value its name."""
        raise NotImplementedError

    def config_entry(self, key: str) -> Value:
        """An entry of a config that was read from a file."""
        raise NotImplementedError

    def call_library(self, name: str, arguments: list[Value], keywords: dict[str, Value], node: Any) -> Value:
        """A call of a library's function by its dotted name."""
        raise NotImplementedError

    def instance(self, kind: Class, arguments: list[Value], keywords: dict[str, Value], node: Any) -> Value:
        """An object of a class of the given files."""
        raise NotImplementedError

    def fields(self, kind: Class) -> list[str]:
        """The annotated names of a class body."""
        raise NotImplementedError

    def derived(self, values: list[Value | None], node: Any) -> Value:
        """The result of an unknown function of these values."""
        raise NotImplementedError

    def item(self, owner: Value, place: int | None, node: Any) -> Value:
        """One item of a value."""
        raise NotImplementedError

    def boundary(self, node: ast.AST | None) -> Condition:
        """A question to the engine or to Accelerate whether the window is complete."""
        return Condition(Guard("boundary", None, "the boundary", self.source(node) if node else None))

    def first_engine(self, kind: str) -> Engine | None:
        """The first engine of a kind."""
        return next((engine for engine in self.program.engines if engine.kind == kind), None)

    def engine_among(self, engines: Collection[Engine]) -> Engine | None:
        """The first of these engines that was made: a set of them has no order of its own."""
        return next((engine for engine in self.program.engines if engine in engines), None)

    def engine(self, kind: str, node: Any, name: str, guessed: bool = False) -> Engine:
        """A new engine."""
        made = Engine(kind, self.source(node), name, guessed)
        self.program.engines.append(made)
        return made


def first_of(arguments: list[Value], keywords: dict[str, Value], *names: str, place: int = 0) -> Value | None:
    """An argument given by place or by one of its names."""
    for name in names:
        if name in keywords:
            return keywords[name]
    return arguments[place] if len(arguments) > place else None


def opened(item: Value) -> Sequence:
    """A sequence of unknown length of one kind of item."""
    return Sequence([item], open=True)


def looks_like(value: Value, *parts: str) -> bool:
    """Does the name of something unknown contain one of these?"""
    name = value.name.lower().rsplit(".", 1)[-1] if isinstance(value, Unknown | Reference) else ""
    return any(part in name for part in parts)
