"""Questions to the syntax tree alone."""

from __future__ import annotations

import ast

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Sequence as Items
    from typing import Any

BLOCKS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)


def as_load(target: ast.expr) -> ast.expr:
    """The same name or attribute, read instead of written."""
    loaded: Any = type(target)(**{**dict(ast.iter_fields(target)), "ctx": ast.Load()})
    return ast.copy_location(loaded, target)


def jump(body: Items[ast.stmt]) -> str:
    """Where the last statement leads: ``loop``, ``function``, ``raise``, or an empty text where it goes on."""
    last = body[-1] if body else None
    if isinstance(last, ast.Continue | ast.Break):
        return "loop"
    if isinstance(last, ast.Return):
        return "function"
    if isinstance(last, ast.If) and last.orelse:
        ways = {jump(last.body), jump(last.orelse)}
        return ways.pop() if len(ways) == 1 else ""
    return "raise" if isinstance(last, ast.Raise) else ""


def adds_to_itself(node: ast.AST) -> bool:
    """``step = step + 1``."""
    return (
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.BinOp)
        and ast.unparse(node.value.left) == ast.unparse(node.targets[0])
    )


def raises(handler: ast.ExceptHandler) -> bool:
    """Is the exception, or another one, raised again?"""
    return any(isinstance(node, ast.Raise) for node in ast.walk(handler))


def inside(loop: ast.stmt) -> list[ast.AST]:
    """The nodes of a loop, without those of functions that are defined in it."""
    found: list[ast.AST] = []
    pending: list[ast.AST] = list(ast.iter_child_nodes(loop))
    while pending:
        node = pending.pop()
        if not isinstance(node, BLOCKS):
            found.append(node)
            pending += ast.iter_child_nodes(node)
    return found
