"""Definitions and imports: what gets a name without being run."""

from __future__ import annotations

import ast

from dsaccum_helpers.readers.script.expressions import Expressions
from dsaccum_helpers.readers.script.values import Class, Function, Reference, Scope


class Definitions(Expressions):
    """Functions, classes and imports."""

    def _FunctionDef(self, node: ast.FunctionDef, scope: Scope) -> None:
        function = Function(node, scope)
        scope.names[node.name] = function
        self.functions.append(function)

    _AsyncFunctionDef = _FunctionDef

    def _ClassDef(self, node: ast.ClassDef, scope: Scope) -> None:
        kind = Class(node, scope, [self.eval(base, scope) for base in node.bases])
        inner = Scope(scope)
        scope.names[node.name] = kind
        self.block(node.body, inner)
        kind.attributes = dict(inner.names)
        methods = {id(part) for part in node.body}
        self.functions = [known for known in self.functions if id(known.node) not in methods]
        self.classes.append(kind)

    def _Import(self, node: ast.Import, scope: Scope) -> None:
        for alias in node.names:
            whole = alias.name if alias.asname else alias.name.split(".")[0]
            scope.names[alias.asname or whole] = self.module(whole) or Reference(whole)

    def _ImportFrom(self, node: ast.ImportFrom, scope: Scope) -> None:
        module = self.module(node.module or "")
        for alias in node.names:
            if alias.name == "*":
                scope.names.update(module.attributes if module else {})
                continue
            own = module.attributes.get(alias.name) if module else self.module(alias.name)
            scope.names[alias.asname or alias.name] = own or Reference(f"{node.module or ''}.{alias.name}".strip("."))
