"""Functions of libraries and built-in functions, as far as they matter for a micro-batch."""

from __future__ import annotations

from dsaccum_helpers.readers.script.frameworks import Frameworks
from dsaccum_helpers.readers.script.numbers import as_number, divided
from dsaccum_helpers.readers.script.state import first_of, opened
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
    engines_of,
    number,
)
from dsaccum_helpers.trace import Number, Term

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    import ast

    Values = list[Value]
    Named = dict[str, Value]

_OPTIMIZERS = [
    "Adam",
    "AdamW",
    "SGD",
    "RMSprop",
    "Adagrad",
    "Adafactor",
    "Lion",
    "FusedAdam",
    "DeepSpeedCPUAdam",
    "Lamb",
    "FusedLamb",
    "AdamW8bit",
    "Adam8bit",
    "NAdam",
    "RAdam",
    "Adadelta",
    "LBFGS",
    "ASGD",
    "Rprop",
    "Muon",
]
_ARGUMENTS = ("TrainingArguments", "Seq2SeqTrainingArguments")
_TRL = [
    "SFTConfig",
    "DPOConfig",
    "GRPOConfig",
    "PPOConfig",
    "RewardConfig",
    "KTOConfig",
    "ORPOConfig",
    "CPOConfig",
    "RLOOConfig",
    "OnlineDPOConfig",
    "GKDConfig",
]
_BATCH_NORM = ("BatchNorm1d", "BatchNorm2d", "BatchNorm3d", "LazyBatchNorm1d", "LazyBatchNorm2d", "LazyBatchNorm3d")
_SAME = [
    "tqdm",
    "trange",
    "ceil",
    "floor",
    "list",
    "tuple",
    "cycle",
    "reversed",
    "sorted",
    "track",
    "deepcopy",
    "prefetch",
    "BackgroundGenerator",
    "DeviceLoader",
    "chain",
    "int",
    "float",
    "abs",
    "round",
    "set",
    "mean",
]
_STEP_TOTALS = ("num_training_steps", "T_max", "total_steps", "total_num_steps", "total_iters", "max_steps", "t_total")


class Library(Frameworks):
    """Calls of functions that are not in the given files."""

    def call_library(self, name: str, arguments: Values, keywords: Named, node: ast.Call) -> Value:
        """``torch.utils.data.DataLoader(...)``: ``name`` is the full dotted name."""
        last = name.rsplit(".", 1)[-1]
        for handler in (self._of_deepspeed, self._of_accelerate, self._of_trainers, self._of_torch, self._of_data):
            if (made := handler(name, last, arguments, keywords, node)) is not None:
                return made
        if (parser := self.new_parser(last, arguments, keywords, node)) is not None:
            return parser
        if (made := self.builtin(last, arguments, keywords, node)) is not None:
            return made
        made = self.derived([*arguments, *keywords.values()], node)
        reduction = keywords.get("reduction")
        if isinstance(made, Tensor) and isinstance(reduction, Constant) and reduction.value in ("sum", "none"):
            made.terms = tuple(Term(term.divisions, True) for term in made.terms)
        return made

    def _of_deepspeed(self, name: str, last: str, arguments: Values, keywords: Named, node: ast.Call) -> Value | None:
        if name in ("deepspeed.initialize", "deepspeed.runtime.engine.DeepSpeedEngine", "deepspeed.DeepSpeedEngine"):
            return self.initialize(arguments, keywords, node)
        if last in ("PipelineModule",):
            return Role("model", self.source(node), pipeline=True)
        if last == "add_config_arguments" and arguments:
            return arguments[0]
        return None

    def _of_accelerate(self, name: str, last: str, arguments: Values, keywords: Named, node: ast.Call) -> Value | None:
        if last == "Accelerator":
            return self.accelerator(arguments, keywords, node)
        if last in ("DeepSpeedPlugin", "GradientAccumulationPlugin"):
            return self.plugin(last, arguments, keywords, node)
        return None

    def _of_trainers(self, name: str, last: str, arguments: Values, keywords: Named, node: ast.Call) -> Value | None:
        if last == "Trainer" and ("lightning" in name or name.startswith("pl.")):
            return self.lightning_trainer(keywords, node)
        if last == "DeepSpeedStrategy":
            return Role("strategy", self.source(node), config=keywords.get("config"))
        if last in _ARGUMENTS or (last in _TRL and "trl" in name):
            return self.training_arguments(last, keywords, node)
        return None

    def _of_torch(self, name: str, last: str, arguments: Values, keywords: Named, node: ast.Call) -> Value | None:
        if last in _BATCH_NORM:
            self.learn("model.has_batch_norm", True, node)
            return Role("model", self.source(node))
        if last in _OPTIMIZERS:
            return Role("optimizer", self.source(node))
        if last in ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm"):
            target = first_of(arguments, keywords, "parameters")
            engine = target.engine if isinstance(target, Role) else next(iter(engines_of(target)), None)
            if engine is not None:
                self.emit("clip", engine, node, by=last, accelerate=False)
            return Unknown(last)
        if last.endswith("LR") or "schedule" in last.lower() or last.endswith("Scheduler"):
            return self._scheduler(last, arguments, keywords, node)
        if last in ("GradScaler", "autocast"):
            return Role("context", self.source(node), kind="scaler" if last == "GradScaler" else "autocast")
        if last in ("no_grad", "inference_mode"):
            return Role("context", self.source(node), kind="no-grad")
        if last in ("div", "true_divide") and len(arguments) > 1 and isinstance(arguments[0], Tensor):
            return divided(arguments[0], arguments[1], node.args[1], self.source(node), tuple(self.guards))
        return None

    def _scheduler(self, last: str, arguments: Values, keywords: Named, node: ast.Call) -> Value:
        total = next((keywords[key] for key in _STEP_TOTALS if key in keywords), None)
        if total is None and last in ("CosineAnnealingLR", "PolynomialLR", "LinearLR") and len(arguments) > 1:
            total = arguments[1]
        if total is None and last.startswith("get_") and len(arguments) > 2:
            total = arguments[-1]
        optimizer = first_of(arguments, keywords, "optimizer")
        engine = optimizer.engine if isinstance(optimizer, Role) else None
        made = Role("scheduler", self.source(node), engine, owner=None, total=number(total), name=last)
        made.facts["source"], made.facts["optimizer"] = self.source(node), optimizer
        self.program.schedulers.append(made.facts)
        return made

    def _of_data(self, name: str, last: str, arguments: Values, keywords: Named, node: ast.Call) -> Value | None:
        if last.endswith("DataLoader") or last == "StatefulDataLoader":
            return self._loader(arguments, keywords, node)
        if name in ("os.getenv", "os.environ.get") and arguments and isinstance(arguments[0], Constant):
            default = arguments[1] if len(arguments) > 1 else None
            if isinstance(default, Constant) and isinstance(default.value, str) and default.value.isdigit():
                default = Count(Number(int(default.value)))
            return self.environment(str(arguments[0].value), default, node)
        if name in ("json.load", "hjson.load", "yaml.safe_load") and arguments:
            return self._loaded(arguments[0])
        if name in ("json.loads",) and arguments:
            return self._loaded(arguments[0])
        return None

    def _loaded(self, value: Value) -> Value:
        made = Mapping(value.name if isinstance(value, Role) and value.role == "file" else "")
        return made if made.name else Unknown("config")

    def _loader(self, arguments: Values, keywords: Named, node: ast.Call) -> Value:
        size = keywords.get("batch_size") or (arguments[1] if len(arguments) > 1 else None)
        made = Role("loader", self.source(node), batch_size=number(size) if size else Number(1))
        nothing = isinstance(size, Constant) and size.value is None
        made.facts["hidden"] = nothing or "batch_sampler" in keywords
        if made.facts["hidden"]:
            made.facts["batch_size"] = None
        drop = keywords.get("drop_last")
        made.facts["drop_last"] = drop.value if isinstance(drop, Constant) else None
        self.loaders.append(made)
        self.keep.append(made)
        return made

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
        if name == "len":
            return self._length(first, node)
        if name == "range":
            return self._range(arguments, node)
        if name == "sum":
            return self._sum(first)
        if name == "zip":
            return self._zipped(arguments)
        if name in ("next",):
            return self.item(first, None, node)
        if name == "islice" and len(arguments) > 1:
            made = opened(self.item(first, None, node))
            self.sizes[id(made)] = as_number(arguments[-1], node.args[-1]) or Number()
            return made
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
        if name == "enumerate":
            return self._enumerated(first)
        if name in ("iter", "RepeatingLoader", "cycle"):
            return self._iterated(name, first)
        return first if name in _SAME else None

    def _length(self, value: Value, node: ast.Call) -> Value:
        if isinstance(value, Sequence) and not value.open:
            return Count(Number(len(value.items)))
        if id(value) in self.grown:
            made = Unknown(f"len({value.name})")
            made.counter = True
            return made
        if id(value) in self.sizes:
            size = self.sizes[id(value)]
            self.keep.append(value)
            return Count(Number(size.factor, size.symbols, {*size.over, id(value)}))
        from ast import unparse

        text = unparse(node.args[0])
        self.keep.append(value)
        return Count(Number(1, {f"len:{text}": 1}, {id(value)}))

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

    def _zipped(self, arguments: Values) -> Value:
        loops_value = next((a for a in arguments if isinstance(a, Role) and a.role in ("loader", "iterator")), None)
        items = Sequence([self.item(value, None, None) for value in arguments])
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
        index = Unknown("index")
        index.counter = True
        made: Value
        if isinstance(value, Role) and value.role in ("loader", "iterator"):
            made = Role("iterator", value.source, value.engine, **value.facts)
            made.facts["item"] = Sequence([index, value.facts.get("item") or Unknown(element_of=id(value))])
            made.facts["origin"] = value
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
