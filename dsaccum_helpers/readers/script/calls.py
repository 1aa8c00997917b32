"""Calls: functions and classes of the given files are followed into, those of libraries are known or passed over."""

from __future__ import annotations

import ast

from dsaccum_helpers.readers.script.library import Library
from dsaccum_helpers.readers.script.values import (
    Class,
    Condition,
    Constant,
    Count,
    Function,
    Instance,
    Mapping,
    Method,
    Partial,
    Reference,
    Role,
    Scope,
    Sequence,
    Tensor,
    Unknown,
    Value,
    counted_over,
    graph_of,
    lineage,
    weight,
)
from dsaccum_helpers.trace import is_count_name, named_count

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import Any

_DEEPEST = 14
_MOST_VISITS = 24


class Frame:
    """One call in progress: what it returned and yielded so far."""

    def __init__(self, outer_loops: int) -> None:
        self.returned: list[Value] = []
        self.yielded: list[Value] = []
        self.loops: list[Any] = []
        self.outer_loops = outer_loops


class Calls(Library):
    """Calls and attributes."""

    def _Call(self, node: ast.Call, scope: Scope) -> Value:
        if isinstance(node.func, ast.Name) and node.func.id == "super":
            return Unknown("super")
        owner: Value | None = None
        if isinstance(node.func, ast.Attribute):
            owner = self.eval(node.func.value, scope)
            callee = self.attribute(owner, node.func.attr, node.func)
        else:
            callee = self.eval(node.func, scope)
        arguments: list[Value] = []
        for part in node.args:
            value = self.eval(part, scope)
            if isinstance(part, ast.Starred) and isinstance(value, Sequence) and not value.open:
                arguments += value.items
            else:
                arguments.append(value)
        keywords = {key.arg: self.eval(key.value, scope) for key in node.keywords if key.arg}
        for key in node.keywords:
            if key.arg is None:
                extra = self.eval(key.value, scope)
                keywords.update(extra.attributes if isinstance(extra, Mapping) else {})
        self._note_use(node, [*arguments, *keywords.values()])
        return self.call(callee, arguments, keywords, node, owner)

    def _note_use(self, node: ast.Call, values: list[Value]) -> None:
        """A number that ``engine.backward`` returned goes into a call: a print, a progress bar, a log."""
        pending, seen = list(values), 0
        while pending and seen < 50:
            value, seen = pending.pop(), seen + 1
            if isinstance(value, Tensor) and (value.returned or value.detached):
                engine = self.engine_among(value.engines)
                counted = [d for term in value.terms for d in term.divisions if d.value is not None and d.value.counts]
                if value.returned:
                    self.emit("use-returned-loss", engine, node)
                elif counted and not value.gathered:
                    self.emit("use-divided-loss", engine, node, division=counted[0])
                return
            pending += getattr(value, "items", [])
            pending += value.attributes.values() if isinstance(value, Mapping) else []

    def call(
        self, callee: Value, arguments: list[Value], keywords: dict[str, Value], node: ast.Call, owner: Value | None
    ) -> Value:
        """What a call gives; ``owner`` is what a method is called on."""
        if isinstance(callee, Function):
            return self.function(callee, arguments, keywords, node)
        if isinstance(callee, Partial):
            every = [*callee.arguments, *arguments]
            return self.call(callee.callee, every, {**callee.keywords, **keywords}, node, None)
        if isinstance(callee, Method):
            return self._method_call(callee, arguments, keywords, node)
        if isinstance(callee, Class):
            return self.instance(callee, arguments, keywords, node)
        if isinstance(callee, Instance):
            for name in ("__call__", "forward"):
                method = self.method(callee, name)
                if method is not None:
                    return self.function(method, arguments, keywords, node)
        if isinstance(callee, Reference):
            return self.call_library(callee.name, arguments, keywords, node)
        made: Value | None = None
        if isinstance(node.func, ast.Attribute) and owner is not None:
            made = self.call_method(owner, node.func.attr, arguments, keywords, node)
        elif isinstance(node.func, ast.Name) and not isinstance(callee, Role):
            made = self.builtin(node.func.id, arguments, keywords, node)
        if made is not None:
            return made
        if isinstance(callee, Role):
            return self.call_role(callee, arguments, keywords, node)
        if isinstance(callee, Unknown) and callee.role is not None:
            return self.forward(callee.role, arguments, keywords, node)
        return self.derived([*arguments, *keywords.values(), owner], node)

    def _method_call(self, method: Method, arguments: list[Value], keywords: dict[str, Value], node: ast.Call) -> Value:
        """A method that may have been taken under a condition: that condition holds for the call as well."""
        guards = [guard for guard in method.guards if guard not in self.guards]
        self.guards += guards
        made = self.call_method(method.owner, method.name, arguments, keywords, node)
        if guards:
            del self.guards[-len(guards) :]
        return made or Unknown(method.name)

    def derived(self, values: list[Value | None], node: ast.expr) -> Value:
        """The result of an unknown function of these values."""
        engines, detached = graph_of(*values)
        over = counted_over(*values)
        if engines:
            made = Tensor(engines, over=over)
            made.detached = detached
            return made
        # A property is a call as well, without its brackets.
        called = f"{ast.unparse(node.func)[:60]}(...)" if isinstance(node, ast.Call) else ast.unparse(node)[:60]
        return Unknown(called, over)

    def function(self, function: Function, arguments: list[Value], keywords: dict[str, Value], node: Any) -> Value:
        """Follow a call into a function of the given files."""
        body = function.node
        if len(self.frames) > _DEEPEST or id(body) in self.running or self.visits.get(id(body), 0) >= _MOST_VISITS:
            return self.derived([*arguments, *keywords.values()], node) if node is not None else Unknown()
        self.visits[id(body)] = self.visits.get(id(body), 0) + 1
        scope = Scope(function.closure)
        bound = [function.owner, *arguments] if function.owner is not None else arguments
        self.parameters(body, bound, keywords, scope)
        frame = Frame(len(self.loops))
        self.frames.append(frame)
        self.running.add(id(body))
        file, self.file = self.file, self.files.get(id(body), self.file)
        try:
            if isinstance(body, ast.Lambda):
                return self.eval(body.body, scope)
            self.block(body.body, scope)
        finally:
            self.file = file
            self.running.discard(id(body))
            self.frames.pop()
        return self.result(frame)

    def result(self, frame: Frame) -> Value:
        """What a call gave back: its returned values joined, or a sequence of what it yielded."""
        if frame.yielded:
            made = Sequence(frame.yielded[-1:], open=True)
            self.generated[id(made)] = frame.loops
            self.keep.append(made)
            return made
        telling = [value for value in frame.returned if not isinstance(value, Constant)]
        for kind in (Role, Sequence, Instance, Tensor, Mapping, Count, Condition):
            same = [value for value in telling if isinstance(value, kind)]
            if same:
                return max(same, key=weight)
        return (telling or frame.returned or [Constant(None)])[-1]

    def parameters(self, body: Any, arguments: list[Value], keywords: dict[str, Value], scope: Scope) -> None:
        """Bind arguments to parameters; those not given have their defaults."""
        names = [part.arg for part in (*body.args.posonlyargs, *body.args.args)]
        defaults = dict(zip(reversed(names), reversed(body.args.defaults), strict=False))
        for part, default in zip(body.args.kwonlyargs, body.args.kw_defaults, strict=True):
            names.append(part.arg)
            if default is not None:
                defaults[part.arg] = default
        options = self.options.get(id(body), {})
        given = dict(zip(names, arguments, strict=False))
        for name in names:
            if name in given or name in keywords:
                value = given.get(name, keywords.get(name))
            elif name in options:
                value = options[name]
            elif name in defaults:
                value = self.eval(defaults[name], scope.parent or scope)
            else:
                value = Count(named_count(name, None)) if is_count_name(name) else Unknown(name)
            self.bind(ast.Name(name, ast.Store()), value or Unknown(name), scope)
        if body.args.vararg:
            scope.names[body.args.vararg.arg] = Sequence(arguments[len(names) :])
        if body.args.kwarg:
            extra = Mapping()
            extra.attributes = {key: value for key, value in keywords.items() if key not in names}
            scope.names[body.args.kwarg.arg] = extra

    def instance(self, kind: Class, arguments: list[Value], keywords: dict[str, Value], node: Any) -> Value:
        """Make an object of a class of the given files."""
        made = Instance(kind)
        self.keep.append(made)
        if method := self.method(made, "__init__"):
            self.function(method, arguments, keywords, node)
        else:  # a dataclass, or a class that takes what its base takes
            fields = [name for name in kind.attributes if name in self.fields(kind)]
            made.attributes.update(dict(zip(fields, arguments, strict=False)))
            made.attributes.update(keywords)
            if method := self.method(made, "__post_init__"):
                self.function(method, [], {}, node)
        return made

    def fields(self, kind: Class) -> list[str]:
        """The annotated names of a class body, in order."""
        body = kind.node.body
        return [p.target.id for p in body if isinstance(p, ast.AnnAssign) and isinstance(p.target, ast.Name)]

    def method(self, owner: Instance, name: str) -> Function | None:
        """A method of the object's class or of a base in the given files, bound to the object."""
        for kind in lineage(owner.kind):
            found = kind.attributes.get(name) if isinstance(kind, Class) else None
            if isinstance(found, Function):
                static = any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in found.node.decorator_list)
                return Function(found.node, found.closure, None if static else owner)
        return None

    def attribute(self, owner: Value, name: str, node: ast.Attribute) -> Value:
        """``owner.name``."""
        if name in owner.attributes and not isinstance(owner, Class):
            return owner.attributes[name]
        if isinstance(owner, Instance):
            method = self.method(owner, name)
            if method is not None:
                if self.is_property(method):
                    return self.function(method, [], {}, node)
                return method
            return self._class_attribute(owner.kind, name) or self._new_attribute(owner, name)
        if isinstance(owner, Class):
            return owner.attributes.get(name) or Unknown(name)
        if isinstance(owner, Reference):
            return Reference(f"{owner.name}.{name}")
        if isinstance(owner, Role) and (known := self.role_attribute(owner, name, node)) is not None:
            return known
        if isinstance(owner, Tensor):
            return owner
        if isinstance(owner, Mapping):
            return Unknown(name)
        return self._new_attribute(owner, name)

    def _class_attribute(self, kind: Class, name: str) -> Value | None:
        known = (one for one in lineage(kind) if isinstance(one, Class) and name in one.attributes)
        return next((one.attributes[name] for one in known), None)

    def _new_attribute(self, owner: Value, name: str) -> Value:
        made: Value = Count(named_count(name, None), name) if is_count_name(name) else Unknown(name, owner.over)
        if isinstance(owner, Unknown) and owner.name in ("accelerator", "acc") and name == "sync_gradients":
            made = self.boundary(node=None)
        owner.attributes[name] = made
        return made

    def is_property(self, method: Function) -> bool:
        """Is the method read without a call?"""
        names = {ast.unparse(decorator).rsplit(".", 1)[-1] for decorator in method.node.decorator_list}
        return bool(names & {"property", "cached_property"})
