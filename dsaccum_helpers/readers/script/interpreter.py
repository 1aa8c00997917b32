"""Reads a whole program: modules as they import each other, then what nobody called."""

from __future__ import annotations

import ast

from dsaccum_helpers.readers.script.calls import Frame
from dsaccum_helpers.readers.script.state import Exhausted
from dsaccum_helpers.readers.script.statements import Statements
from dsaccum_helpers.readers.script.values import Class, Constant, Function, Instance, Mapping, Scope, Tensor

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import Any

_TRAINER_METHODS = {"compute_loss": "trainer", "training_step": "lightning"}


class Interpreter(Statements):
    """One reading of a set of scripts. Nothing of them is imported or run."""

    def __init__(self, words: dict[str, Any]) -> None:
        super().__init__(words)
        self.frames.append(Frame(0))  # the module itself: a misplaced return or yield finds something there
        self.trees: dict[str, tuple[str, ast.Module]] = {}
        self.instances: dict[int, Instance] = {}

    def read(self, trees: dict[str, ast.Module]) -> None:
        """Read the files, given by name."""
        for file, tree in trees.items():
            stem = file.replace("\\", "/").rsplit("/", 1)[-1].rsplit(".", 1)[0]
            self.trees[stem] = (file, tree)
            self._prepare(file, tree)
        try:
            for stem in list(self.trees):
                self.module(stem)
            self._uncalled()
        except (Exhausted, RecursionError):
            self.program.cut = self.source(self.reached)  # what was understood until here stands

    def _prepare(self, file: str, tree: ast.Module) -> None:
        """Which function is in which file, and which attributes are counters."""
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                self.files[id(node)] = file
            elif isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Attribute):
                self.counters.add(node.target.attr)

    def module(self, name: str) -> Mapping | None:
        """A module that is one of the given files, read when it is first asked for."""
        stem = name.rsplit(".", 1)[-1]
        if stem not in self.trees:
            return None
        if stem not in self.modules:
            made = self.modules[stem] = Mapping(f"module {stem}")
            outer = self.file, self.loops, self.guards
            self.file, self.loops, self.guards = self.trees[stem][0], [], []
            scope = Scope()
            made.attributes = scope.names  # also while it is read, for modules that import each other
            self.block(self.trees[stem][1].body, scope)
            made.attributes = scope.names  # an ``if`` puts another dict in the place of the first one
            self.file, self.loops, self.guards = outer
        return self.modules[stem]

    def _If(self, node: ast.If, scope: Scope) -> Any:
        if "__name__" in ast.unparse(node.test):
            return self.block(node.body, scope)
        return super()._If(node, scope)

    def _FunctionDef(self, node: Any, scope: Scope) -> None:
        super()._FunctionDef(node, scope)
        if node.decorator_list:
            self.options[id(node)] = self.decorated(node)

    _AsyncFunctionDef = _FunctionDef

    def instance(self, kind: Class, arguments: Any, keywords: Any, node: Any) -> Any:
        """Make an object, and remember the first of each class."""
        made = super().instance(kind, arguments, keywords, node)
        if isinstance(made, Instance):
            self.instances.setdefault(id(kind), made)
        return made

    def _uncalled(self) -> None:
        """Functions and methods that nobody called are entry points; those that others call come last."""
        called = self._called_names()
        waiting = [f for f in self.functions if not self.visits.get(id(f.node))]
        for function in sorted(waiting, key=lambda f: f.name in called):
            if not self.visits.get(id(function.node)):
                self._enter(function)
        for kind in list(self.classes):
            self._methods(kind, called)

    def _called_names(self) -> set[str]:
        found: set[str] = set()
        for _, tree in self.trees.values():
            for node in ast.walk(tree):
                if isinstance(node, ast.Call):
                    func = node.func
                    found.add(func.id if isinstance(func, ast.Name) else getattr(func, "attr", ""))
        return found

    def _enter(self, function: Function) -> Any:
        self.file = self.files.get(id(function.node), self.file)
        self.loops, self.guards = [], []
        return self.function(function, [], {}, None)

    def _methods(self, kind: Class, called: set[str]) -> None:
        names = [name for name, value in kind.attributes.items() if isinstance(value, Function)]
        bases = self.base_names(kind)
        for name in sorted(names, key=lambda name: name in called):
            node = kind.attributes[name].node
            special = self._trainer_kind(name, bases)
            if self.visits.get(id(node)) and special is None:
                continue
            owner = self.instances.get(id(kind)) or self._made(kind)
            method = self.method(owner, name)
            if method is None or name == "__init__":
                continue
            if special is not None:
                self._loss_method(method, special)
            elif name == "configure_optimizers":
                before = len(self.program.schedulers)
                result = self._enter(method)
                self._lightning_schedules(result, self.program.schedulers[before:])
            elif name not in ("forward", "__call__", "__getitem__", "__len__", "__repr__", "__iter__"):
                self._enter(method)

    def _made(self, kind: Class) -> Instance:
        self.file = self.files.get(id(kind.node.body[0]), self.file)
        self.loops, self.guards = [], []
        made = self.instance(kind, [], {}, None)
        assert isinstance(made, Instance)
        return made

    def _trainer_kind(self, name: str, bases: set[str]) -> str | None:
        kind = _TRAINER_METHODS.get(name)
        if kind == "lightning" and any(base.endswith("LightningModule") for base in bases):
            return kind
        if kind == "trainer" and any(base.endswith("Trainer") for base in bases):
            return kind
        return None

    def _loss_method(self, method: Function, kind: str) -> None:
        """A loss that is handed to a Trainer, which accumulates itself."""
        engine = next((e for e in self.program.engines if e.kind == kind), None)
        engine = engine or self.engine(kind, method.node, method.name)
        loss = self._enter(method)
        items = getattr(loss, "items", None) or list(getattr(loss, "attributes", {}).values()) or [loss]
        tensor = next((item for item in [loss, *items] if isinstance(item, Tensor)), None)
        if not isinstance(loss, Constant):
            self.file = self.files.get(id(method.node), self.file)
            self.emit("return-loss", engine, method.node, loss=tensor or Tensor())

    def _lightning_schedules(self, result: Any, made: list[dict[str, Any]]) -> None:
        """With interval "step" Lightning moves a scheduler once in each optimizer step."""
        block = getattr(result, "attributes", {}).get("lr_scheduler")
        interval = getattr(block, "attributes", {}).get("interval")
        if isinstance(interval, Constant) and interval.value == "step":
            for facts in made:
                facts["owner"] = "lightning"
