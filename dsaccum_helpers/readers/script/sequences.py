"""Built-in functions, as far as they matter for a micro-batch: lengths, ranges, iterators and what wraps them."""

from __future__ import annotations

from dsaccum_helpers.readers.script.frameworks import Frameworks
from dsaccum_helpers.readers.script.names import SAME
from dsaccum_helpers.readers.script.numbers import as_number
from dsaccum_helpers.readers.script.state import opened
from dsaccum_helpers.readers.script.values import (
    Constant,
    Count,
    Mapping,
    Partial,
    Role,
    Sequence,
    Tensor,
    Unknown,
    Value,
    counted_over,
    counter_named,
    engines_of,
)
from dsaccum_helpers.trace import Number, Term

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    import ast

    Values = list[Value]
    Named = dict[str, Value]


class Sequences(Frameworks):
    """Calls of built-in functions."""

    def builtin(self, name: str, arguments: Values, keywords: Named, node: ast.Call) -> Value | None:
        """A built-in function, or one that hands its argument on."""
        first = arguments[0] if arguments else None
        if name == "get_world_size":
            return Count(Number(1, {"world": 1}), name)
        if name == "dict":
            made_dict = Mapping()
            made_dict.attributes = {**(first.attributes if isinstance(first, Mapping) else {}), **keywords}
            return made_dict
        if first is None:
            return None
        if name in ("len", "range", "sum", "zip", "next", "islice", "enumerate", "iter", "RepeatingLoader", "cycle"):
            return self._of_many(name, first, arguments, node)
        if name in ("max", "min") and len(arguments) == 2:
            return next((value for value in arguments if isinstance(value, Count) and value.number.symbols), None)
        if name == "open" and isinstance(first, Constant):
            made_file = Role("file", self.source(node))
            made_file.name = str(first.value)
            return made_file
        if name in ("Path", "str") and isinstance(first, Constant):
            return first
        if name == "partial":
            return Partial(first, arguments[1:], keywords)
        if name == "getattr" and len(arguments) > 1 and isinstance(arguments[1], Constant):
            return first.attributes.get(str(arguments[1].value))
        return first if name in SAME else None

    def _of_many(self, name: str, first: Value, arguments: Values, node: ast.Call) -> Value | None:
        """What loops run over, and how long it is."""
        if name == "len":
            return self._length(first, node)
        if name == "range":
            return self._range(arguments, node)
        if name == "sum":
            return self._sum(first)
        if name == "zip":
            return self._zipped(arguments, node)
        if name == "next":
            return self.item(first, None, node)
        if name == "enumerate":
            return self._enumerated(first)
        if name != "islice":
            return self._iterated(name, first)
        made = opened(self.item(first, None, node))
        self.sizes[id(made)] = as_number(arguments[-1], node.args[-1]) or Number()
        return made

    def _length(self, value: Value, node: ast.Call) -> Value:
        if isinstance(value, Sequence) and not value.open:
            return Count(Number(len(value.items)))
        if id(value) in self.grown:
            return counter_named(f"len({value.name})")
        if id(value) in self.sizes:
            size = self.sizes[id(value)]
            self.keep.append(value)
            return Count(Number(size.factor, size.symbols, {*size.over, id(value)}))
        from ast import unparse

        text = unparse(node.args[0])
        self.keep.append(value)
        kind = "loader " if isinstance(value, Role) and value.role in ("loader", "iterator") else ""
        return Count(Number(1, {f"len:{kind}{text}": 1}, {id(value)}))

    def _range(self, arguments: Values, node: ast.Call) -> Value:
        stop = arguments[1] if len(arguments) > 1 else arguments[0]
        step = arguments[2] if len(arguments) > 2 else None
        made = Role("range", self.source(node), count=None if step else as_number(stop, node.args[-1]))
        self.keep.append(made)
        return made

    def _sum(self, value: Value) -> Value:
        """``sum(losses)``: the terms of all; a number counted over a collection stays one."""
        if isinstance(value, Sequence):
            tensors = [item for item in value.items if isinstance(item, Tensor)]
            if tensors:
                terms = [Term(t.divisions, t.summed, value.open) for one in tensors for t in one.terms]
                return Tensor(engines_of(*tensors), terms, value.over)
        return Unknown("sum", counted_over(value) | (frozenset({id(value)}) if value.over else frozenset()))

    def _zipped(self, arguments: Values, node: ast.Call) -> Value:
        loops_value = next((a for a in arguments if isinstance(a, Role) and a.role in ("loader", "iterator")), None)
        items = Sequence([self.item(value, None, node) for value in arguments])
        if loops_value is not None:
            made = Role("iterator", loops_value.source, loops_value.engine, **loops_value.facts)
            made.facts["item"] = items
            return made
        result = opened(items)
        for value in arguments:
            if id(value) in self.sizes:
                self.sizes[id(result)] = self.sizes[id(value)]
        return result

    def _iterated(self, name: str, value: Value) -> Value:
        """An iterator, or a loader that begins anew at its end."""
        if not isinstance(value, Role) or value.role not in ("loader", "iterator"):
            return value
        role = value.role if name == "RepeatingLoader" else "iterator"
        made = Role(role, value.source, value.engine, **value.facts)
        made.facts["repeating"] = value.facts.get("repeating", False) or name != "iter"
        made.over = frozenset({id(value), *value.over})
        self.keep += [value, made]
        return made

    def _enumerated(self, value: Value) -> Value:
        index = counter_named("index")
        made: Value
        if isinstance(value, Role) and value.role in ("loader", "iterator"):
            made = Role("iterator", value.source, value.engine, **value.facts)
            made.facts["item"] = Sequence([index, value.facts.get("item") or Unknown()])
        else:
            made = opened(Sequence([index, self.item(value, None, None)]))
            made.name = value.name
            if id(value) in self.sizes:
                self.sizes[id(made)] = self.sizes[id(value)]
            if id(value) in self.generated:
                self.generated[id(made)] = self.generated[id(value)]
            made.over = frozenset({id(value), *value.over})
        self.keep += [value, made]
        return made
