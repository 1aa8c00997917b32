"""Conditions: what a test means for the micro-batch under it."""

from __future__ import annotations

import ast

from dsaccum_helpers.readers.script.values import (
    Condition,
    Constant,
    Count,
    Remainder,
    Sequence,
    Tensor,
    Unknown,
    Value,
    engines_of,
)
from dsaccum_helpers.trace import Guard, Number, is_count_name, named_count

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from dsaccum_helpers.job import Source

#: The more telling part of ``a and b`` decides what the whole means.
_WEIGHT = ("every", "boundary", "last", "count", "data", "static", "other")


def guard_of(value: Value, node: ast.expr, source: Source) -> Guard:
    """The Guard that a test puts on what it guards."""
    text = ast.unparse(node)
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        text = ast.unparse(node.operand)
    if isinstance(value, Condition):
        return value.guard._replace(source=source)
    if isinstance(value, Remainder):  # ``if i % n:``
        return Guard("not-every", value.number, text, source)
    if isinstance(value, Tensor):
        return Guard("data", None, text, source, value.engines)
    if isinstance(value, Unknown | Constant | Count):
        return Guard("static", None, text, source)
    return Guard("other", None, text, source)


def guards_of(value: Value, node: ast.expr, source: Source) -> list[Guard]:
    """All the Guards that a test puts on what it guards: those of each part of ``a and b``."""
    if isinstance(value, Condition) and len(value.parts) > 1:
        return [part._replace(source=source) for part in value.parts]
    return [guard_of(value, node, source)]


def negated(guard: Guard) -> Guard:
    """The opposite condition."""
    kind = guard.kind.removeprefix("not-") if guard.kind.startswith("not-") else f"not-{guard.kind}"
    return guard._replace(kind=kind)


def compared(node: ast.Compare, left: Value, right: Value, source: Source) -> Condition:
    """What ``left op right`` means."""
    operator, text = node.ops[0], ast.unparse(node)
    equal = isinstance(operator, ast.Eq | ast.Is | ast.GtE | ast.Gt)
    if (choice := _choice(node, left, right)) is not None:
        return Condition(Guard("static" if equal else "not-static", None, choice, source))
    if isinstance(right, Remainder) and not isinstance(left, Remainder):
        left, right = right, left
    if isinstance(left, Remainder):
        kind = "every" if isinstance(operator, ast.Eq | ast.Is) else "not-every"
        if isinstance(operator, ast.Lt | ast.LtE):
            kind = "not-every"
        return Condition(Guard(kind, left.number, text, source))
    engines = engines_of(left, right)
    if engines:
        return Condition(Guard("data", None, text, source, engines))
    for counter, limit in ((left, right), (right, left)):
        if _is_counter(counter) and (found := _limit(limit)) is not None:
            return Condition(Guard("count" if equal else "not-count", found, text, source))
    names = {ast.unparse(part) for part in ast.walk(node) if isinstance(part, ast.Name | ast.Attribute)}
    if _is_last(node):
        return Condition(Guard("last" if equal else "not-last", None, text, source))
    static = any(isinstance(side, Constant) for side in (left, right)) and not any("step" in name for name in names)
    return Condition(Guard("static" if static else "other", None, text, source))


def combined(node: ast.BoolOp, values: list[Value], sources: list[Source]) -> Value:
    """``a and b``, ``a or b``: the most telling part, under the text of the whole."""
    guards = [guard_of(*parts) for parts in zip(values, node.values, sources, strict=True)]

    def weight(guard: Guard) -> int:
        return _WEIGHT.index(guard.kind.removeprefix("not-")) if guard.kind.removeprefix("not-") in _WEIGHT else 9

    best = min(guards, key=weight)
    engines = frozenset().union(*(guard.engines for guard in guards))
    parts: list[Guard] = []
    if isinstance(node.op, ast.And):
        for value, guard in zip(values, guards, strict=True):
            parts += value.parts if isinstance(value, Condition) else [guard]
    return Condition(best._replace(text=ast.unparse(node), engines=engines), parts)


def inverted(value: Value, node: ast.UnaryOp, source: Source) -> Condition:
    """``not a``."""
    if isinstance(value, Remainder):
        return Condition(Guard("every", value.number, ast.unparse(node), source))
    return Condition(negated(guard_of(value, node.operand, source)))


def _choice(node: ast.Compare, left: Value, right: Value) -> str | None:
    """``setting == "deepspeed"``: one text for the same setting under whatever expression it is reached."""
    if not isinstance(node.ops[0], ast.Eq | ast.NotEq) or not isinstance(right, Constant):
        return None
    if not isinstance(right.value, str) or not isinstance(left, Constant | Unknown):
        return None
    name = left.name or setting_name(node.left)
    return f"{name.rsplit('.', 1)[-1]} == {right.value!r}"


def setting_name(node: ast.expr) -> str:
    """``engine`` of ``args.engine``, ``config["engine"]`` and ``config.get("engine", ...)``."""
    key: ast.expr | None = None
    if isinstance(node, ast.Subscript):
        key = node.slice
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get" and node.args:
        key = node.args[0]
    return str(key.value) if isinstance(key, ast.Constant) else ast.unparse(node)


def _is_counter(value: Value) -> bool:
    return isinstance(value, Unknown) and (value.counter or value.name.startswith("len("))


def _limit(value: Value) -> Number | None:
    if isinstance(value, Count):
        return value.number
    if isinstance(value, Unknown) and is_count_name(value.name):
        return named_count(value.name, None)
    return None


def _is_last(node: ast.Compare) -> bool:
    """``i == len(chunks) - 1`` and ``i + 1 == len(chunks)``."""
    sides = [node.left, node.comparators[0]]
    return any(
        isinstance(part, ast.Call) and isinstance(part.func, ast.Name) and part.func.id == "len"
        for side in sides
        for part in ast.walk(side)
    )


def flag_of(flags: Sequence, source: Source) -> Condition | None:
    """One of a list of truth values of which a single one is true, gone through over and over: true once in so many."""
    values = [item.value for item in flags.items if isinstance(item, Constant)]
    if len(values) < 2 or len(values) != len(flags.items) or sorted(map(repr, values))[-2:] != ["False", "True"]:
        return None
    return Condition(Guard("every", Number(len(values)), "a flag that is true once in so many", source))
