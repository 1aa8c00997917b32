"""What the interpreter knows of a value: never the value itself, only its part in training."""

from __future__ import annotations

from dsaccum_helpers.trace import Number, Term, is_count_name, named_count

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    import ast
    from collections.abc import Iterable
    from typing import Any

    from dsaccum_helpers.job import Source
    from dsaccum_helpers.trace import Engine, Guard

_MOST_TERMS = 8


class Value:
    """Anything. ``attributes``: what is known of its attributes and items."""

    __slots__ = ("attributes", "name", "over")

    def __init__(self, name: str = "", over: Iterable[int] = ()) -> None:
        self.name, self.over = name, frozenset(over)
        self.attributes: dict[str, Any] = {}


class Unknown(Value):
    """Something of which only its name is known.

    ``role``: the Engine it turned out to be by the calls made on it. ``counter``: it goes up all the time.
    """

    __slots__ = ("counter", "role")

    def __init__(self, name: str = "", over: Iterable[int] = ()) -> None:
        super().__init__(name, over)
        self.role: Engine | None = None
        self.counter = False


class Constant(Value):
    """A literal that is no number: a text, True, None."""

    __slots__ = ("value",)

    def __init__(self, value: Any, name: str = "") -> None:
        super().__init__(name)
        self.value = value


class Count(Value):
    """A number, as far as it is known."""

    __slots__ = ("number",)

    def __init__(self, number: Number, name: str = "") -> None:
        super().__init__(name, number.over)
        self.number = number


class Remainder(Value):
    """``something % number``."""

    __slots__ = ("number",)

    def __init__(self, number: Number | None) -> None:
        super().__init__()
        self.number = number


class Condition(Value):
    """A truth value with what it means for a micro-batch. ``parts``: of ``a and b``, all of which hold together."""

    __slots__ = ("guard", "parts")

    def __init__(self, guard: Guard, parts: Iterable[Guard] = ()) -> None:
        super().__init__()
        self.guard, self.parts = guard, tuple(parts) or (guard,)


class Tensor(Value):
    """A tensor. ``engines``: whose forward pass it came from. ``terms``: the summands of a loss.

    ``detached``: only a number for a log. ``returned``: what ``engine.backward`` gave. ``gathered``: a running sum.
    """

    __slots__ = ("detached", "engines", "gathered", "returned", "terms")

    def __init__(
        self, engines: Iterable[Engine] = (), terms: Iterable[Term] = (Term(),), over: Iterable[int] = ()
    ) -> None:
        super().__init__("", over)
        self.engines, self.terms = frozenset(engines), tuple(terms)[:_MOST_TERMS]
        self.detached = self.returned = self.gathered = False


class Sequence(Value):
    """A list or tuple whose items are known, or one kind of item that is (``items`` of length one, ``open``)."""

    __slots__ = ("items", "open")

    def __init__(self, items: Iterable[Value] = (), open: bool = False) -> None:
        super().__init__()
        self.items, self.open = list(items), open


class Mapping(Value):
    """A dict: ``attributes`` holds its items."""

    __slots__ = ()


class Reference(Value):
    """A dotted name of a library: ``name`` is ``torch.optim.SGD``."""

    __slots__ = ()


class Function(Value):
    """A function of the given files. ``owner``: the object it is bound to."""

    __slots__ = ("closure", "node", "owner")

    def __init__(self, node: Any, closure: Scope, owner: Value | None = None) -> None:
        super().__init__(getattr(node, "name", "<lambda>"))
        self.node, self.closure, self.owner = node, closure, owner


class Class(Value):
    """A class of the given files. ``bases``: what it derives from."""

    __slots__ = ("bases", "closure", "node")

    def __init__(self, node: ast.ClassDef, closure: Scope, bases: list[Value]) -> None:
        super().__init__(node.name)
        self.node, self.closure, self.bases = node, closure, bases


class Instance(Value):
    """An object of a class of the given files; ``attributes`` are its own."""

    __slots__ = ("kind",)

    def __init__(self, kind: Class) -> None:
        super().__init__(kind.name)
        self.kind = kind


class Role(Value):
    """An object of a library that matters here.

    ``role``: ``engine``, ``module`` (what the engine wraps), ``model`` (a plain one), ``parameters``, ``parameter``,
    ``gradient``, ``optimizer``, ``scheduler``, ``loader``, ``sampler``, ``iterator``, ``range``, ``accelerator``,
    ``plugin``, ``strategy``, ``trainer``, ``parser``, ``namespace`` (what it gives), ``file``, ``context``.
    ``engine``: whose it is. ``facts``: what else is known.
    """

    __slots__ = ("engine", "facts", "role", "source")

    def __init__(self, role: str, source: Source, engine: Engine | None = None, **facts: Any) -> None:
        super().__init__(role)
        self.role, self.source, self.engine, self.facts = role, source, engine, facts


class Method(Value):
    """A method of an object that matters, not yet called. ``guards``: those under which it was taken."""

    __slots__ = ("guards", "owner")

    def __init__(self, owner: Role, name: str, guards: Iterable[Guard] = ()) -> None:
        super().__init__(name)
        self.owner, self.guards = owner, tuple(guards)


class Partial(Value):
    """``functools.partial``: a call of which some arguments are there already."""

    __slots__ = ("arguments", "callee", "keywords")

    def __init__(self, callee: Value, arguments: Iterable[Value], keywords: dict[str, Value]) -> None:
        super().__init__(callee.name)
        self.callee, self.arguments, self.keywords = callee, list(arguments), dict(keywords)


class Scope:
    """Names of a function, with the module's names behind them."""

    __slots__ = ("names", "parent")

    def __init__(self, parent: Scope | None = None) -> None:
        self.names: dict[str, Value] = {}
        self.parent = parent

    def find(self, name: str) -> Value | None:
        """The value of a name, None where it is not known."""
        scope: Scope | None = self
        while scope is not None:
            if name in scope.names:
                return scope.names[name]
            scope = scope.parent
        return None


def lineage(kind: Class) -> list[Value]:
    """The class and all that it derives from, the nearest first and each once."""
    found: dict[int, Value] = {}
    pending: list[Value] = [kind]
    while pending:
        level, pending = pending, []
        for one in level:
            if id(one) not in found:
                found[id(one)] = one
                pending += one.bases if isinstance(one, Class) else []
    return list(found.values())


def number(value: Value | None) -> Number | None:
    """The Number of a value, None where it is none."""
    return value.number if isinstance(value, Count) else None


def engines_of(*values: Value | None) -> frozenset[Engine]:
    """Whose forward passes the values came from."""
    found: set[Engine] = set()
    pending = list(values)
    for value in pending[:200]:
        if isinstance(value, Tensor):
            found |= value.engines
        elif isinstance(value, Sequence):
            found |= engines_of(*value.items[:20])
        elif isinstance(value, Mapping):
            found |= engines_of(*list(value.attributes.values())[:20])
    return frozenset(found)


def graph_of(*values: Value | None) -> tuple[frozenset[Engine], bool]:
    """Whose forward passes a gradient would reach, and whether it reaches none because all values are detached."""
    attached = [value for value in values if not (isinstance(value, Tensor) and value.detached)]
    engines = engines_of(*attached)
    return (engines, False) if engines else (engines_of(*values), True)


def counted_over(*values: Value | None) -> frozenset[int]:
    """The collections over which the values were counted."""
    return frozenset().union(*(value.over for value in values if value is not None))


def named(value: Value, name: str) -> Value:
    """The value under a name; a number remembers that it was called an accumulation count."""
    if isinstance(value, Count) and is_count_name(name) and not value.number.counts:
        number = value.number
        if not number.symbols:
            return Count(named_count(name, number.factor), name)
        return Count(Number(number.factor, number.symbols, number.over, name), name)
    if isinstance(value, Unknown | Count) and not value.name:
        value.name = name
    if isinstance(value, Role) and value.role == "engine" and value.engine is not None:
        value.engine.call_it(name)
    return value


def weight(value: Value) -> float:
    """How much a value has to do with training."""
    if isinstance(value, Role):
        return 3 if value.engine is not None else 2
    if isinstance(value, Sequence | Mapping | Instance | Class | Function | Method | Partial):
        return 1 + max((max(weight(part), 0) for part in getattr(value, "items", [])[:20]), default=0) / 4
    if isinstance(value, Unknown):
        return 3 if value.role is not None else -1
    return -2 if isinstance(value, Constant) and value.value is None else 0


def preferred(old: Value, new: Value) -> Value:
    """Which of two values, set in two branches, counts: the one that has to do with an engine, else the later one."""
    return old if weight(old) > weight(new) else new


def counter_named(name: str) -> Unknown:
    """A number that goes up all the time."""
    value = Unknown(name)
    value.counter = True
    return value
