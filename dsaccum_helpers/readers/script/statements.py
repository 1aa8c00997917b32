"""Statements: one pass through the code, with the loops and conditions around each event."""

from __future__ import annotations

import ast

from dsaccum_helpers.readers.script.conditions import guard_of, guards_of, negated, setting_name
from dsaccum_helpers.readers.script.definitions import Definitions
from dsaccum_helpers.readers.script.syntax import adds_to_itself, as_load, inside, jump, raises
from dsaccum_helpers.readers.script.values import (
    Constant,
    Count,
    Role,
    Scope,
    Sequence,
    Tensor,
    Value,
    counter_named,
    named,
    preferred,
)
from dsaccum_helpers.trace import Event, Guard, Loop, Term

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Sequence as Items
    from typing import Any

    Pending = list[tuple[str, Guard]]  # what the rest of the loop ("loop") or function ("function") stands under

_JUMPS = (ast.Continue, ast.Break, ast.Return, ast.Raise)


class Statements(Definitions):
    """Runs statements. Each method ``_kind`` handles one kind and returns the guards that it puts on what follows."""

    def block(self, body: Items[ast.stmt], scope: Scope) -> Pending:
        """Run statements in order; what follows an early ``continue`` or ``return`` stands under its opposite."""
        pending: Pending = []
        for statement in body:
            self.spend()
            self.reached = statement
            handler = getattr(self, f"_{type(statement).__name__}", None)
            new: Pending = handler(statement, scope) or [] if handler else []
            self.guards += [guard for _, guard in new]
            pending += new
            if isinstance(statement, _JUMPS):
                break
        if pending:
            del self.guards[-len(pending) :]
        return pending

    def _Expr(self, node: ast.Expr, scope: Scope) -> None:
        self.eval(node.value, scope)

    def _Return(self, node: ast.Return, scope: Scope) -> None:
        value = self.eval(node.value, scope) if node.value else Constant(None)
        self.frames[-1].returned.append(value)

    def _Assign(self, node: ast.Assign, scope: Scope) -> None:
        value = self.eval(node.value, scope)
        for target in node.targets:
            self.bind(target, value, scope)
            if isinstance(value, Count) and value.number.count_power == 1 and not value.number.counts:
                self.emit("scale-counter", None, node, name=ast.unparse(target))

    def _AnnAssign(self, node: ast.AnnAssign, scope: Scope) -> None:
        if node.value is not None:
            self.bind(node.target, self.eval(node.value, scope), scope)

    def _AugAssign(self, node: ast.AugAssign, scope: Scope) -> None:
        self._note_count(node, scope)
        combined = self.eval(ast.copy_location(ast.BinOp(as_load(node.target), node.op, node.value), node), scope)
        if isinstance(combined, Count) and isinstance(node.op, ast.Add | ast.Sub):
            combined = counter_named(combined.name or ast.unparse(node.target))
        if isinstance(combined, Tensor) and combined.detached:
            combined.terms = (Term(),)  # a running number for the log: what it is divided by says nothing any more
            combined.gathered = True
        self.bind(node.target, combined, scope)

    def _note_count(self, node: ast.AugAssign, scope: Scope) -> None:
        """``global_step += 1``, or by a truth value such as ``accelerator.sync_gradients``."""
        if not isinstance(node.op, ast.Add) or not isinstance(node.target, ast.Name | ast.Attribute):
            return
        step = self.eval(node.value, scope)
        if isinstance(step, Count) and step.number.known() == 1:
            self.emit("count", None, node, name=ast.unparse(node.target))
        elif (guard := guard_of(step, node.value, self.source(node))).kind == "boundary":
            self.guards.append(guard)
            self.emit("count", None, node, name=ast.unparse(node.target))
            self.guards.pop()

    def bind(self, target: ast.expr, value: Value, scope: Scope) -> None:
        """Give a value its name; a tuple of targets takes a sequence apart."""
        if isinstance(target, ast.Name):
            scope.names[target.id] = named(value, target.id)
        elif isinstance(target, ast.Attribute):
            owner = self.eval(target.value, scope)
            self.set_attribute(owner, target.attr, named(value, target.attr))
        elif isinstance(target, ast.Subscript):
            owner, key = self.eval(target.value, scope), self.eval(target.slice, scope)
            if isinstance(key, Constant) and isinstance(key.value, str):
                owner.attributes[key.value] = named(value, key.value)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, value, scope)
        elif isinstance(target, ast.Tuple | ast.List):
            for place, part in enumerate(target.elts):
                if isinstance(part, ast.Starred):
                    self.bind(part.value, Sequence(getattr(value, "items", [])[place:]), scope)
                    break
                self.bind(part, self.item(value, place, part), scope)

    def set_attribute(self, owner: Value, name: str, value: Value) -> None:
        """An attribute set in one branch does not undo what the DeepSpeed branch has set."""
        if name == "grad" and isinstance(owner, Role) and owner.role == "parameter":
            self.by_hand("zero-grad", owner, owner.source)
            return
        old = owner.attributes.get(name)
        owner.attributes[name] = preferred(old, value) if old is not None and self.guards else value

    def _If(self, node: ast.If, scope: Scope) -> Pending:
        test = self.eval(node.test, scope)
        decided = isinstance(node.test, ast.Constant | ast.Compare)
        if decided and isinstance(test, Constant) and isinstance(test.value, bool):
            return self.block(node.body if test.value else node.orelse, scope)
        guard = guard_of(test, node.test, self.source(node.test))
        before = dict(scope.names)
        self.under(guards_of(test, node.test, self.source(node.test)), node.body, scope)
        after, scope.names = scope.names, before
        self.under([negated(guard)], node.orelse, scope)
        for name, value in after.items():
            old = scope.names.get(name)
            if old is not value:
                scope.names[name] = value if old is None else preferred(old, value)
        pending: Pending = []
        if where := jump(node.body):
            pending.append((where, negated(guard)))
        if where := jump(node.orelse):
            pending.append((where, guard))
        return [entry for entry in pending if entry[0] != "raise"]

    def under(self, guards: list[Guard], body: Items[ast.stmt], scope: Scope) -> None:
        """Run statements under conditions."""
        self.guards += guards
        self.block(body, scope)
        del self.guards[-len(guards) :]

    def _For(self, node: ast.For, scope: Scope) -> None:
        iterated = self.eval(node.iter, scope)
        loops, item = self.loops_over(iterated, node)
        self._widen(node, scope)
        self.loops += loops
        self.bind(node.target, item, scope)
        self.block(node.body, scope)
        del self.loops[-len(loops) :]
        self.block(node.orelse, scope)

    _AsyncFor = _For

    def _While(self, node: ast.While, scope: Scope) -> None:
        self._widen(node, scope)
        self.loops.append(Loop("while", self.source(node)))
        self.eval(node.test, scope)
        self.block(node.body, scope)
        self.loops.pop()
        self.block(node.orelse, scope)

    def _widen(self, loop: ast.stmt, scope: Scope) -> None:
        """What a loop changes has no fixed value in it: counters above all."""
        for node in inside(loop):
            if isinstance(node, ast.AugAssign) or adds_to_itself(node):
                target: Any = node.target if isinstance(node, ast.AugAssign) else getattr(node, "targets", [None])[0]
                if isinstance(target, ast.Name) and isinstance(scope.find(target.id), Count):
                    scope.names[target.id] = counter_named(target.id)
                elif isinstance(target, ast.Attribute):
                    owner = self.eval(target.value, scope)
                    if isinstance(owner.attributes.get(target.attr), Count):
                        owner.attributes[target.attr] = counter_named(target.attr)

    def _With(self, node: ast.With, scope: Scope) -> Pending:
        guards = []
        for item in node.items:
            context = self.eval(item.context_expr, scope)
            if isinstance(context, Role) and context.role == "context":
                guards.append(Guard(context.facts["kind"], None, "", self.source(node)))
            if item.optional_vars is not None:
                inner = context.items[0] if isinstance(context, Sequence) and context.items else context
                self.bind(item.optional_vars, inner, scope)
        self.guards += guards
        pending = self.block(node.body, scope)
        if guards:
            del self.guards[-len(guards) :]
        return pending

    _AsyncWith = _With

    def _Try(self, node: ast.Try, scope: Scope) -> Pending:
        first = len(self.program.events)
        pending = self.block(node.body, scope)
        last = len(self.program.events)
        for handler in node.handlers:
            source = self.source(handler)
            if jump(handler.body) not in ("raise", "function") and not raises(handler):
                info = {"events": self.program.events[first:last]}
                self.program.events.append(
                    Event("swallowed", None, source, tuple(self.loops), tuple(self.guards), info)
                )
            self.under([Guard("failed", None, "an exception", source)], handler.body, scope)
        self.block(node.orelse, scope)
        self.block(node.finalbody, scope)
        return pending

    _TryStar = _Try

    def _Match(self, node: ast.Match, scope: Scope) -> None:
        self.eval(node.subject, scope)
        subject = setting_name(node.subject).rsplit(".", 1)[-1]
        for case in node.cases:
            text = f"{subject} == {ast.unparse(case.pattern)}"
            self.under([Guard("static", None, text, self.source(node))], case.body, scope)
