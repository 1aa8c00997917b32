"""Functions of libraries and built-in functions, as far as they matter for a micro-batch."""

from __future__ import annotations

from dsaccum_helpers.readers.script.names import ARGUMENTS, BATCH_NORM, NORMALISED, OPTIMIZERS, STEP_TOTALS, TRL
from dsaccum_helpers.readers.script.numbers import divided
from dsaccum_helpers.readers.script.sequences import Sequences
from dsaccum_helpers.readers.script.state import first_of
from dsaccum_helpers.readers.script.values import (
    Constant,
    Count,
    Mapping,
    Role,
    Tensor,
    Unknown,
    Value,
    engines_of,
    number,
)
from dsaccum_helpers.trace import Number, Term

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    import ast

    Values = list[Value]
    Named = dict[str, Value]


class Library(Sequences):
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
        if last == "PipelineModule":
            return Role("model", self.source(node), pipeline=True)
        if last == "add_config_arguments" and arguments:
            return arguments[0]
        return None

    def _of_accelerate(self, name: str, last: str, arguments: Values, keywords: Named, node: ast.Call) -> Value | None:
        if last == "Accelerator":
            return self.accelerator(keywords, node)
        if last in ("DeepSpeedPlugin", "GradientAccumulationPlugin"):
            return self.plugin(last, arguments, keywords, node)
        return None

    def _of_trainers(self, name: str, last: str, arguments: Values, keywords: Named, node: ast.Call) -> Value | None:
        if last == "Trainer" and ("lightning" in name or name.startswith("pl.")):
            return self.lightning_trainer(keywords, node)
        if last == "DeepSpeedStrategy":
            stage = self.plain(keywords.get("stage"))
            return Role("strategy", self.source(node), config=keywords.get("config"), stage=stage)
        if last in ARGUMENTS or (last in TRL and "trl" in name):
            return self.training_arguments(last, keywords, node)
        return None

    def _of_torch(self, name: str, last: str, arguments: Values, keywords: Named, node: ast.Call) -> Value | None:
        if name.endswith("autograd.backward") and arguments and isinstance(arguments[0], Tensor):
            return self.call_method(arguments[0], "backward", [], {}, node)
        if name.startswith("torchvision.models.") and any(part in last for part in NORMALISED):
            self.learn("model.has_batch_norm", True, node)
            return Unknown(last)
        if last in BATCH_NORM:
            self.learn("model.has_batch_norm", True, node)
            return Role("model", self.source(node))
        if last in OPTIMIZERS:
            return Role("optimizer", self.source(node))
        if last in ("clip_grad_norm_", "clip_grad_value_", "clip_grad_norm"):
            target = first_of(arguments, keywords, "parameters")
            engine = target.engine if isinstance(target, Role) else self.engine_among(engines_of(target))
            if engine is not None:
                self.emit("clip", engine, node, by=last)
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
        total = next((keywords[key] for key in STEP_TOTALS if key in keywords), None)
        if total is None and last in ("CosineAnnealingLR", "PolynomialLR", "LinearLR") and len(arguments) > 1:
            total = arguments[1]
        if total is None and last.startswith("get_") and len(arguments) > 2:
            total = arguments[-1]
        optimizer = first_of(arguments, keywords, "optimizer")
        engine = optimizer.engine if isinstance(optimizer, Role) else None
        made = Role("scheduler", self.source(node), engine, owner=None, total=number(total))
        made.facts["source"] = made.source
        self.program.schedulers.append(made.facts)
        return made

    def _of_data(self, name: str, last: str, arguments: Values, keywords: Named, node: ast.Call) -> Value | None:
        if last == "BatchSampler":
            return self._sampler(arguments, keywords, node)
        if last.endswith("DataLoader"):
            return self._loader(arguments, keywords, node)
        if name in ("os.getenv", "os.environ.get") and arguments and isinstance(arguments[0], Constant):
            default = arguments[1] if len(arguments) > 1 else None
            if isinstance(default, Constant) and isinstance(default.value, str) and default.value.isdigit():
                default = Count(Number(int(default.value)))
            return self.environment(str(arguments[0].value), default)
        if name in ("json.load", "json.loads", "hjson.load", "yaml.safe_load") and arguments:
            return self._loaded(arguments[0])
        return None

    def _loaded(self, value: Value) -> Value:
        made = Mapping(value.name if isinstance(value, Role) and value.role == "file" else "")
        return made if made.name else Unknown("config")

    def _sampler(self, arguments: Values, keywords: Named, node: ast.Call) -> Role:
        size = first_of(arguments, keywords, "batch_size", place=1)
        return Role("sampler", self.source(node), batch_size=number(size))

    def _loader(self, arguments: Values, keywords: Named, node: ast.Call) -> Value:
        size = first_of(arguments, keywords, "batch_size", place=1)
        made = Role("loader", self.source(node), batch_size=number(size) if size else Number(1))
        nothing = isinstance(size, Constant) and size.value is None
        made.facts["hidden"] = nothing or "batch_sampler" in keywords
        if made.facts["hidden"]:
            sampler = keywords.get("batch_sampler")
            made.facts["batch_size"] = sampler.facts.get("batch_size") if isinstance(sampler, Role) else None
        drop = keywords.get("drop_last")
        made.facts["drop_last"] = drop.value if isinstance(drop, Constant) else None
        self.loaders.append(made)
        self.keep.append(made)
        return made
