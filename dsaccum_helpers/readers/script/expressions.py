"""Expressions: what their values have to do with training."""

from __future__ import annotations

import ast

from dsaccum_helpers.readers.script.calls import Calls
from dsaccum_helpers.readers.script.conditions import combined, compared, flag_of, guard_of, inverted, negated
from dsaccum_helpers.readers.script.numbers import arithmetic
from dsaccum_helpers.readers.script.values import (
    Condition,
    Constant,
    Count,
    Function,
    Instance,
    Mapping,
    Reference,
    Role,
    Scope,
    Sequence,
    Tensor,
    Unknown,
    Value,
    counter_named,
    engines_of,
    number,
)
from dsaccum_helpers.trace import Guard, Loop, Number, is_count_name, named_count

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import Any


class Expressions(Calls):
    """Evaluates expressions. Each method ``_kind`` handles one kind of node."""

    def eval(self, node: ast.expr, scope: Scope) -> Value:
        """The value of an expression, ``Unknown`` where nothing is known of it."""
        self.spend()
        handler = getattr(self, f"_{type(node).__name__}", None)
        value: Value | None = handler(node, scope) if handler else None
        return value if value is not None else Unknown()

    def _Constant(self, node: ast.Constant, scope: Scope) -> Value:
        if isinstance(node.value, int | float) and not isinstance(node.value, bool):
            return Count(Number(node.value))
        return Constant(node.value)

    def _Name(self, node: ast.Name, scope: Scope) -> Value:
        value = scope.find(node.id)
        if value is None:
            value = scope.names[node.id] = Unknown(node.id)
        return value

    def _Attribute(self, node: ast.Attribute, scope: Scope) -> Value:
        owner = self.eval(node.value, scope)
        value = self.attribute(owner, node.attr, node)
        if node.attr in self.counters and isinstance(value, Count):
            value = Unknown(node.attr)
            value.counter = True
        return value

    def _Subscript(self, node: ast.Subscript, scope: Scope) -> Value:
        owner, key = self.eval(node.value, scope), self.eval(node.slice, scope)
        index = number(key)
        if index is not None and (place := index.known()) is not None:
            return self.item(owner, int(place), node)
        if isinstance(key, Constant) and isinstance(key.value, str):
            return self.entry(owner, key.value, node)
        if isinstance(owner, Mapping | Sequence) and engines_of(owner):
            return Tensor(engines_of(owner))
        return self.item(owner, None, node)

    def entry(self, owner: Value, key: str, node: ast.expr) -> Value:
        """``owner["key"]``."""
        if key in owner.attributes:
            return owner.attributes[key]
        if isinstance(owner, Reference) and owner.name == "os.environ":
            return self.environment(key, None)
        if isinstance(owner, Tensor):
            return owner
        if isinstance(owner, Mapping) and owner.name:
            return self.config_entry(key)
        value: Value = Unknown(key, owner.over)
        if is_count_name(key):
            value = Count(named_count(key, None), key)
        owner.attributes[key] = value
        return value

    def item(self, owner: Value, place: int | None, node: ast.AST) -> Value:
        """One item of a sequence; of anything else, something that came from it."""
        if isinstance(owner, Sequence):
            if place is None and (flag := flag_of(owner, self.source(node))) is not None:
                return flag
            if owner.open and owner.items:
                return owner.items[0]
            if place is not None and -len(owner.items) <= place < len(owner.items):
                return owner.items[place]
            return Unknown()
        if isinstance(owner, Tensor):
            return owner
        if isinstance(owner, Role) and owner.role in ("loader", "iterator"):
            return Unknown()
        if isinstance(owner, Unknown):
            key = f"[{place}]"
            if key not in owner.attributes:
                owner.attributes[key] = Unknown("", owner.over)
            return owner.attributes[key]
        return Unknown()

    def _BinOp(self, node: ast.BinOp, scope: Scope) -> Value:
        left, right = self.eval(node.left, scope), self.eval(node.right, scope)
        return arithmetic(node, left, right, self.source(node), tuple(self.guards))

    def _UnaryOp(self, node: ast.UnaryOp, scope: Scope) -> Value:
        value = self.eval(node.operand, scope)
        if isinstance(node.op, ast.Not):
            return inverted(value, node, self.source(node))
        if isinstance(node.op, ast.USub) and isinstance(value, Count):
            return Count(Number(-value.number.factor, value.number.symbols, value.over))
        return value

    def _BoolOp(self, node: ast.BoolOp, scope: Scope) -> Value:
        values = self._one_after_another(node, scope)
        if any(isinstance(value, Role | Instance) for value in values) and isinstance(node.op, ast.Or):
            return next(value for value in values if isinstance(value, Role | Instance))
        if isinstance(node.op, ast.Or) and isinstance(values[-1], Count) and not isinstance(values[0], Condition):
            return values[0] if isinstance(values[0], Count) else values[-1]
        return combined(node, values, [self.source(part) for part in node.values])

    def _one_after_another(self, node: ast.BoolOp, scope: Scope) -> list[Value]:
        """The parts of ``a and b``: the later ones happen only where the earlier ones let them."""
        values: list[Value] = []
        for part in node.values:
            value = self.eval(part, scope)
            values.append(value)
            guard = guard_of(value, part, self.source(part))
            self.guards.append(guard if isinstance(node.op, ast.And) else negated(guard))
        del self.guards[-len(values) :]
        return values

    def _Compare(self, node: ast.Compare, scope: Scope) -> Value:
        left = self.eval(node.left, scope)
        values = [self.eval(part, scope) for part in node.comparators]
        engines = engines_of(left, *values)
        if any(isinstance(operator, ast.In | ast.NotIn) for operator in node.ops) and not engines:
            return Condition(Guard("static", None, ast.unparse(node), self.source(node)))
        nothing = isinstance(values[0], Constant) and values[0].value is None
        known = isinstance(left, Count | Role | Instance | Sequence | Mapping | Function)
        if nothing and known and isinstance(node.ops[0], ast.Is | ast.IsNot):
            return Constant(isinstance(node.ops[0], ast.IsNot))
        return compared(node, left, values[0], self.source(node))

    def _IfExp(self, node: ast.IfExp, scope: Scope) -> Value:
        guard = guard_of(self.eval(node.test, scope), node.test, self.source(node.test))
        self.guards.append(guard)
        one = self.eval(node.body, scope)
        self.guards[-1] = negated(guard)
        other = self.eval(node.orelse, scope)
        self.guards.pop()
        for value in (one, other):
            if isinstance(value, Role | Tensor | Instance | Sequence):
                return value
        return one if isinstance(one, Count) else other

    def _NamedExpr(self, node: ast.NamedExpr, scope: Scope) -> Value:
        value = self.eval(node.value, scope)
        self.bind(node.target, value, scope)
        return scope.names.get(node.target.id, value)

    def _List(self, node: ast.List, scope: Scope) -> Value:
        return Sequence([self.eval(part, scope) for part in node.elts[:200]])

    def _Set(self, node: ast.Set, scope: Scope) -> Value:
        return Sequence([self.eval(part, scope) for part in node.elts[:200]])

    def _Tuple(self, node: ast.Tuple, scope: Scope) -> Value:
        return Sequence([self.eval(part, scope) for part in node.elts[:200]])

    def _Dict(self, node: ast.Dict, scope: Scope) -> Value:
        mapping = Mapping()
        for key, part in zip(node.keys, node.values, strict=True):
            value = self.eval(part, scope)
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                mapping.attributes[key.value] = value
                self.places[id(mapping), key.value] = self.source(key)
            elif key is None:
                mapping.attributes.update(value.attributes if isinstance(value, Mapping) else {})
        return mapping

    def _Starred(self, node: ast.Starred, scope: Scope) -> Value:
        return self.eval(node.value, scope)

    def _Await(self, node: ast.Await, scope: Scope) -> Value:
        return self.eval(node.value, scope)

    def _Lambda(self, node: ast.Lambda, scope: Scope) -> Value:
        return Function(node, scope)

    def _JoinedStr(self, node: ast.JoinedStr, scope: Scope) -> Value:
        values = [self.eval(part.value, scope) for part in node.values if isinstance(part, ast.FormattedValue)]
        return Sequence(values)

    def _Slice(self, node: ast.Slice, scope: Scope) -> Value:
        return Unknown()

    def _Yield(self, node: ast.Yield, scope: Scope) -> Value:
        value = self.eval(node.value, scope) if node.value else Constant(None)
        frame = self.frames[-1]
        frame.yielded.append(value)
        frame.loops = self.loops[frame.outer_loops :]
        return Unknown()

    def _YieldFrom(self, node: ast.YieldFrom, scope: Scope) -> Value:
        iterated = self.eval(node.value, scope)
        loops, item = self.loops_over(iterated, node)
        frame = self.frames[-1]
        frame.yielded.append(item)
        frame.loops = [*self.loops[frame.outer_loops :], *loops]
        return Unknown()

    def _comprehension(self, node: Any, scope: Scope, *results: ast.expr) -> Value:
        inner = Scope(scope)
        over: set[int] = set()
        loops = 0
        for generator in node.generators:
            iterated = self.eval(generator.iter, inner)
            over |= {id(iterated), *iterated.over}
            self.keep.append(iterated)
            more, item = self.loops_over(iterated, node)
            self.loops += more
            loops += len(more)
            self.bind(generator.target, item, inner)
        values = [self.eval(result, inner) for result in results]
        del self.loops[-loops:]
        made = Sequence(values[-1:], open=True)
        made.over = frozenset(over)
        return made

    def _ListComp(self, node: ast.ListComp, scope: Scope) -> Value:
        return self._comprehension(node, scope, node.elt)

    def _SetComp(self, node: ast.SetComp, scope: Scope) -> Value:
        return self._comprehension(node, scope, node.elt)

    def _GeneratorExp(self, node: ast.GeneratorExp, scope: Scope) -> Value:
        return self._comprehension(node, scope, node.elt)

    def _DictComp(self, node: ast.DictComp, scope: Scope) -> Value:
        return self._comprehension(node, scope, node.key, node.value)

    def loops_over(self, iterated: Value, node: Any) -> tuple[list[Loop], Value]:
        """The loops that running over a value means, and what one item of it is."""
        source = self.source(node)
        over, count = "other", None
        item: Value = Unknown()
        inner: list[Loop] = list(self.generated.get(id(iterated), []))
        if isinstance(iterated, Sequence):
            over = "list"
            count = None if iterated.open else Number(len(iterated.items))
            item = iterated.items[0] if iterated.items else item
            if not iterated.open and len({type(part) for part in iterated.items}) > 1:
                item = Unknown()
            count = self.sizes.get(id(iterated), count)
        elif isinstance(iterated, Role) and iterated.role in ("loader", "iterator"):
            over = "loader"
        elif isinstance(iterated, Role) and iterated.role == "parameters":
            over, item = "parameters", Role("parameter", source, iterated.engine)
        elif isinstance(iterated, Role) and iterated.role == "range":
            over, count = "range", iterated.facts["count"]
            item = counter_named("index")
        elif id(iterated) in self.sizes:
            over, count = "list", self.sizes[id(iterated)]
        elif _like_loader(iterated.name):
            over = "loader"
        self.keep.append(iterated)
        if inner:
            return inner, item
        loop = Loop(over, source, count, {id(iterated), *iterated.over})
        loop.fixed = _same_each_time(iterated)
        if isinstance(iterated, Role):
            loop.size = iterated.facts.get("batch_size")
            loop.loader = iterated
        if isinstance(iterated, Role) and "item" in iterated.facts:
            item = iterated.facts["item"]
        return [loop], item


def _same_each_time(iterated: Value) -> bool:
    """Names or numbers written out, or a constant of another module."""
    if isinstance(iterated, Sequence):
        return not iterated.open and all(isinstance(item, Constant | Count | Function) for item in iterated.items)
    return isinstance(iterated, Reference | Unknown) and iterated.name.rsplit(".", 1)[-1].isupper()


def _like_loader(name: str) -> bool:
    return any(part in name.lower() for part in ("loader", "dataset", "batches", "stream", "train_data", "data_iter"))
