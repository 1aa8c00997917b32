"""Methods and attributes of the objects that matter: engines, optimizers, schedulers, loaders, tensors."""

from __future__ import annotations

from dsaccum_helpers.readers.script.names import BATCH_SYMBOLS
from dsaccum_helpers.readers.script.numbers import divided
from dsaccum_helpers.readers.script.state import State, first_of, looks_like
from dsaccum_helpers.readers.script.values import (
    Condition,
    Constant,
    Count,
    Instance,
    Mapping,
    Method,
    Role,
    Sequence,
    Tensor,
    Unknown,
    Value,
    engines_of,
    graph_of,
)
from dsaccum_helpers.trace import Engine, Event, Number

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    import ast

    from dsaccum_helpers.job import Source

    Values = list[Value]
    Named = dict[str, Value]

_LOGGED = ("item", "detach", "tolist", "cpu", "numpy", "data")
_GAS = ("gradient_accumulation_steps", "gradient_accumulation_steps_")
_METHODS = ("backward", "step", "zero_grad", "no_sync", "train_batch", "accumulate")
_OTHERS = ("fabric", "booster", "scaler", "amp", "tape", "horovod")  # have a backward(loss) too
_OPTIMIZERS = ("optim", "opt", "adam", "sgd")
_SCHEDULERS = ("sched", "lr_")


class Roles(State):
    """What happens when a method is called or an attribute is read."""

    def forward(self, engine: Engine, arguments: Values, keywords: Named, node: ast.Call) -> Tensor:
        """``engine(batch)``."""
        self.emit("forward", engine, node)
        made = Tensor({engine, *graph_of(*arguments, *keywords.values())[0]})
        made.detached = any(guard.kind == "no-grad" for guard in self.guards)
        return made

    def call_role(self, role: Role, arguments: Values, keywords: Named, node: ast.Call) -> Value:
        """Calling the object itself."""
        if role.role in ("engine", "module", "model") and role.engine is not None:
            return self.forward(role.engine, arguments, keywords, node)
        if role.role == "model":
            return Tensor(engines_of(*arguments))
        return Unknown()

    def call_method(self, owner: Value, name: str, arguments: Values, keywords: Named, node: ast.Call) -> Value | None:
        """``owner.name(...)``; None where nothing is known of it."""
        if isinstance(owner, Tensor):
            return self._tensor_method(owner, name, arguments, node)
        if isinstance(owner, Role):
            handler = getattr(self, f"_on_{owner.role}", None)
            made: Value | None = handler(owner, name, arguments, keywords, node) if handler else None
            return made
        if isinstance(owner, Instance | Unknown):
            return self._on_unknown(owner, name, arguments, keywords, node)
        if isinstance(owner, Mapping) and name in ("get", "pop", "setdefault", "update", "copy", "items"):
            return self._mapping_method(owner, name, arguments, keywords)
        if isinstance(owner, Sequence) and name in ("append", "extend", "add") and arguments:
            return self._grown(owner, arguments[0])
        if isinstance(owner, Constant) and name == "format":
            return Constant("")
        return None

    def _mapping_method(self, owner: Mapping, name: str, arguments: Values, keywords: Named) -> Value | None:
        if name == "update":
            owner.attributes.update(arguments[0].attributes if arguments and isinstance(arguments[0], Mapping) else {})
            owner.attributes.update(keywords)
            return Constant(None)
        if name == "copy":
            return owner
        key = arguments[0] if arguments else None
        if not isinstance(key, Constant) or not isinstance(key.value, str):
            return None
        default = arguments[1] if len(arguments) > 1 else None
        return owner.attributes.get(key.value) or (self.config_entry(key.value) if owner.name else default)

    def _grown(self, owner: Sequence, item: Value) -> Value:
        """A list that grows: it holds one kind of item, and its length is a counter."""
        owner.items = [*owner.items[:1], item] if engines_of(item) else [item]
        owner.open = True
        self.grown.add(id(owner))
        self.keep.append(owner)
        return Constant(None)

    def _tensor_method(self, tensor: Tensor, name: str, arguments: Values, node: ast.Call) -> Value:
        if name == "backward":
            self.emit("direct-backward", self.engine_among(tensor.engines), node, loss=tensor)
            return Constant(None)
        if name in ("div", "div_", "true_divide") and arguments:
            made = divided(tensor, arguments[0], node.args[0], self.source(node), tuple(self.guards))
            if name == "div_":
                tensor.terms = made.terms
                return tensor
            return made
        made = Tensor(tensor.engines, tensor.terms, tensor.over)
        made.detached, made.returned = tensor.detached or name in _LOGGED, tensor.returned
        made.gathered = tensor.gathered
        if name == "sum":
            made.terms = tuple(term._replace(summed=True) for term in tensor.terms)
        return made

    def _on_engine(self, role: Role, name: str, arguments: Values, keywords: Named, node: ast.Call) -> Value | None:
        engine = role.engine
        assert engine is not None
        if name == "backward":
            return self.engine_backward(engine, arguments, keywords, node)
        if name in ("step", "zero_grad", "train_batch", "no_sync"):
            kinds = {"step": "step", "zero_grad": "zero-grad", "train_batch": "train-batch", "no_sync": "no-sync"}
            data = first_of(arguments, keywords, "data_iter")
            self.emit(kinds[name], engine, node, on="engine", data=data)
            return Tensor({engine}) if name == "train_batch" else Role("context", self.source(node), kind=name)
        if name == "coalesce_grad_reduction":
            return Role("context", self.source(node), kind=name)
        if name == "set_gradient_accumulation_boundary":
            self.emit("set-boundary", engine, node, value=first_of(arguments, keywords, "is_boundary"))
            return Constant(None)
        if name == "is_gradient_accumulation_boundary":
            return self.boundary(node)
        if name in BATCH_SYMBOLS:
            return Count(Number(1, {BATCH_SYMBOLS[name]: 1}), name)
        if name == "deepspeed_io":
            return Role("loader", self.source(node), engine, batch_size=Number(1, {"micro": 1}))
        if name in ("parameters", "named_parameters", "module_parameters"):
            return Role("parameters", self.source(node), engine)
        if name in ("eval_batch", "forward"):
            return self.forward(engine, arguments, keywords, node) if name == "forward" else Unknown()
        if name in ("train", "to", "cuda", "half", "float", "bfloat16"):
            return role
        return Unknown(name)

    def engine_backward(self, engine: Engine, arguments: Values, keywords: Named, node: ast.Call) -> Value:
        """``engine.backward(loss)`` or ``accelerator.backward(loss)``."""
        loss = first_of(arguments, keywords, "loss")
        scaled = keywords.get("scale_wrt_gas")
        if isinstance(loss, Sequence) and loss.items:
            loss = loss.items[0]
        tensor = loss if isinstance(loss, Tensor) else Tensor((), over=loss.over if loss else ())
        unscaled = isinstance(scaled, Constant) and scaled.value is False
        self.emit("backward", engine, node, loss=tensor, scaled=not unscaled)
        returned = Tensor({engine}, tensor.terms)
        returned.returned = engine.kind == "deepspeed"
        return returned

    def _on_module(self, role: Role, name: str, arguments: Values, keywords: Named, node: ast.Call) -> Value | None:
        if name == "zero_grad":
            self.emit("zero-grad", role.engine, node, on="module")
            return Constant(None)
        if name in ("parameters", "named_parameters"):
            return Role("parameters", self.source(node), role.engine)
        return role if name in ("train", "eval", "to", "cuda", "requires_grad_") else None

    _on_model = _on_module

    def _on_optimizer(self, role: Role, name: str, arguments: Values, keywords: Named, node: ast.Call) -> Value | None:
        if name == "step":
            self.emit("optimizer-step", role.engine, node, prepared=role.facts.get("prepared", False))
        elif name == "zero_grad":
            self.emit("zero-grad", role.engine, node, on="optimizer")
        elif name == "backward":  # the old FP16_Optimizer and the ZeRO optimizers have one
            self.emit("direct-backward", role.engine, node, loss=first_of(arguments, keywords, "loss"))
        return Constant(None)

    def _on_scheduler(self, role: Role, name: str, arguments: Values, keywords: Named, node: ast.Call) -> Value | None:
        if name == "step":
            self.emit("scheduler-step", role.engine, node, scheduler=role.facts)
        return Constant(None) if name == "step" else None

    def _on_gradient(self, role: Role, name: str, arguments: Values, keywords: Named, node: ast.Call) -> Value | None:
        kinds = {"zero_": "zero-grad", "clamp_": "clip", "clip_": "clip"}
        if name in kinds:
            self.by_hand(kinds[name], role, self.source(node))
        return role

    def by_hand(self, kind: str, role: Role, source: Source) -> None:
        """Gradients are cleared or clipped parameter by parameter: one event for the loop over all of them."""
        loops = tuple(loop for loop in self.loops if loop.over != "parameters")
        info = {"on": "optimizer", "by": "clamp_"}
        self.program.events.append(Event(kind, role.engine, source, loops, tuple(self.guards), info))

    def _on_loader(self, role: Role, name: str, arguments: Values, keywords: Named, node: ast.Call) -> Value | None:
        return role if name in ("shuffle", "batch", "repeat", "prefetch", "with_epoch", "to_iterable") else None

    def _on_context(self, role: Role, name: str, arguments: Values, keywords: Named, node: ast.Call) -> Value | None:
        if role.facts.get("kind") == "scaler" and name == "step" and arguments:
            return self.call_method(arguments[0], "step", [], {}, node)
        if role.facts.get("kind") == "scaler" and name == "scale" and arguments:
            return arguments[0]
        return None

    def _on_unknown(self, owner: Value, name: str, arguments: Values, keywords: Named, node: ast.Call) -> Value | None:
        """By the calls made on it something unknown turns out to be an engine, an optimizer, a scheduler."""
        role = getattr(owner, "role", None)
        if role is None and id(owner) in self.models and name in ("parameters", "named_parameters", "zero_grad"):
            return self._on_module(Role("module", self.source(node), self.models[id(owner)]), name, [], {}, node)
        if role is not None:
            return self._on_engine(Role("engine", role.source, role), name, arguments, keywords, node)
        if name == "manual_backward" and arguments:
            engine = self.first_engine("lightning") or self.engine("lightning", node, "manual_backward")
            return self.engine_backward(engine, arguments, keywords, node)
        if name == "backward" and arguments and isinstance(owner, Unknown) and not looks_like(owner, *_OTHERS):
            kind = "accelerate" if looks_like(owner, "accel") else "deepspeed"
            owner.role = self.engine(kind, node, owner.name or "engine", guessed=True)
            return self.engine_backward(owner.role, arguments, keywords, node)
        if name in ("div", "div_", "true_divide") and arguments:
            plain = Tensor((), over=owner.over)
            return divided(plain, arguments[0], node.args[0], self.source(node), tuple(self.guards))
        if name == "accumulate" and looks_like(owner, "accel"):
            return Role("context", self.source(node), kind="accumulate")
        if name == "train_batch" and "data_iter" in keywords and isinstance(owner, Unknown):
            owner.role = self.engine("deepspeed", node, owner.name, guessed=True)
            owner.role.pipeline = True
            return self._on_engine(Role("engine", owner.role.source, owner.role), name, arguments, keywords, node)
        if name == "step" and looks_like(owner, *_OPTIMIZERS) and not looks_like(owner, *_SCHEDULERS):
            self.emit("optimizer-step", None, node, prepared=False)
        if name == "step" and looks_like(owner, *_SCHEDULERS):
            self.emit("scheduler-step", None, node, scheduler={})
        if name == "is_gradient_accumulation_boundary":
            return self.boundary(node)
        if name in _GAS or name == "train_micro_batch_size_per_gpu":
            return Count(Number(1, {"gas" if name in _GAS else "micro": 1}), name)
        return None

    def role_attribute(self, role: Role, name: str, node: ast.Attribute) -> Value | None:
        """An attribute of an object that matters."""
        if role.role in ("parameter", "gradient") and name in ("grad", "data"):
            return Role("gradient" if name == "grad" else role.role, self.source(node), role.engine)
        if role.role in ("engine", "accelerator") and name in _METHODS:
            return Method(role, name, self.guards)
        if role.role == "engine" and role.engine is not None:
            facts = role.facts
            if name in ("optimizer", "lr_scheduler", "training_dataloader") and name in facts:
                return facts[name]
            if name == "module":
                return Role("module", self.source(node), role.engine)
            if name == "optimizer":
                return Role("optimizer", self.source(node), role.engine)
            if name == "lr_scheduler":
                return Role("scheduler", self.source(node), role.engine, owner="engine")
        if role.role == "accelerator":
            if name == "sync_gradients":
                return Condition(self.boundary(node).guard._replace(text="accelerator.sync_gradients"))
            if name == "gradient_accumulation_steps":
                return Count(Number(1, {"gas": 1}), name)
            if name == "num_processes":
                return Count(Number(1, {"world": 1}), name)
        if role.role == "namespace":
            value = role.facts["parser"].get(name)
            return value if isinstance(value, Value) else None
        return None
