"""What DeepSpeed, Accelerate, Transformers and Lightning make when they are called."""

from __future__ import annotations

from dsaccum_helpers.job import Config
from dsaccum_helpers.readers.script.names import BATCH_SYMBOLS
from dsaccum_helpers.readers.script.options import Options
from dsaccum_helpers.readers.script.state import first_of, looks_like
from dsaccum_helpers.readers.script.values import (
    Class,
    Constant,
    Count,
    Instance,
    Mapping,
    Reference,
    Role,
    Sequence,
    Unknown,
    Value,
    lineage,
)
from dsaccum_helpers.trace import Engine, Number

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    import ast
    from typing import Any

    Values = list[Value]
    Named = dict[str, Value]

#: Arguments of the Trainer of which it matters that a call does not give them.
_WITH_DEFAULT = (
    *("per_device_train_batch_size", "gradient_accumulation_steps", "max_grad_norm"),
    *("learning_rate", "adam_epsilon", "weight_decay"),
)


class Frameworks(Options):
    """The objects that frameworks give."""

    def initialize(self, arguments: Values, keywords: Named, node: ast.Call) -> Value:
        """``deepspeed.initialize(...)``: engine, optimizer, loader, scheduler."""
        engine = self.engine("deepspeed", node, "engine")
        model = first_of(arguments, keywords, "model", place=1)
        engine.pipeline = isinstance(model, Role) and model.facts.get("pipeline", False)
        config = keywords.get("config") or keywords.get("config_params")
        namespace = first_of(arguments, keywords, "args")
        if config is None and namespace is not None:
            config = self.named_setting(namespace, "deepspeed_config")
        self._configure(engine, config, node)
        if isinstance(model, Role) and model.role == "model":
            model.engine = engine
        elif model is not None:
            self.models[id(model)] = engine
            self.keep.append(model)
        loader = Role("loader", self.source(node), engine, batch_size=Number(1, {"micro": 1}), own=True)
        optimizer = keywords.get("optimizer")
        if not isinstance(optimizer, Role) or optimizer.role != "optimizer":
            optimizer = Role("optimizer", self.source(node), engine)
        optimizer.engine = engine
        scheduler = keywords.get("lr_scheduler")
        if isinstance(scheduler, Role) and scheduler.role == "scheduler":
            scheduler.facts["owner"], scheduler.engine = "engine", engine
        else:
            scheduler = Role("scheduler", self.source(node), engine, owner="engine")
        made = Role("engine", self.source(node), engine, optimizer=optimizer, lr_scheduler=scheduler)
        made.facts["training_dataloader"] = loader
        return Sequence([made, optimizer, loader, scheduler])

    def named_setting(self, namespace: Value, name: str) -> Value | None:
        """A setting of a namespace, where it is known."""
        if isinstance(namespace, Role) and namespace.role == "namespace":
            found = namespace.facts["parser"].get(name)
            return found if isinstance(found, Value) else None
        return namespace.attributes.get(name)

    def _configure(self, engine: Engine, config: Value | None, node: ast.Call) -> None:
        if isinstance(config, Constant) and isinstance(config.value, str):
            engine.config = config.value
            self.references.append((config.value, self.source(node)))
        elif isinstance(config, Mapping) and config.name:
            engine.config = config.name
            self.references.append((config.name, self.source(node)))
        elif isinstance(config, Mapping):
            engine.config = self.config_of(config)
            self._config_schedule(config, node)

    def _config_schedule(self, config: Mapping, node: ast.Call) -> None:
        """The scheduler of a config in the script: its length may be a product of names."""
        params = config.attributes.get("scheduler", config).attributes.get("params", config)
        total = params.attributes.get("total_num_steps")
        if isinstance(total, Count) and total.number.symbols:
            source = self.places.get((id(params), "total_num_steps")) or self.source(node)
            self.program.schedulers.append({"owner": "engine", "total": total.number, "source": source})

    def config_of(self, mapping: Mapping) -> Config:
        """A dict literal as a DeepSpeed config; values that are not known are left out."""
        places: dict[tuple[str, ...], tuple[int, int]] = {}
        values = self._plain(mapping, (), places)
        file = next((source.file for (owner, _), source in self.places.items() if owner == id(mapping)), self.file)
        return Config(values, file, places, kind="script")

    def _plain(self, mapping: Mapping, path: tuple[str, ...], places: dict[tuple[str, ...], tuple[int, int]]) -> Any:
        plain: dict[str, Any] = {}
        for key, value in mapping.attributes.items():
            known: Any = None
            if isinstance(value, Mapping):
                known = self._plain(value, (*path, key), places)
            elif isinstance(value, Constant):
                known = value.value
            elif isinstance(value, Count):
                known = value.number.known(world=self.words.get("world size"))
            if known is None and not path and key in BATCH_SYMBOLS and not isinstance(value, Constant):
                known = f"<{value.name or key}>"  # somebody fills it in: not the same as a missing key
            if known is None:
                continue
            plain[key] = known
            source = self.places.get((id(mapping), key))
            if source is not None and source.line:
                places[(*path, key)] = (source.line, source.column or 1)
        return plain

    def config_entry(self, key: str) -> Value:
        """``config["gradient_accumulation_steps"]`` of a config that was read from a file."""
        if key in BATCH_SYMBOLS:
            return Count(Number(1, {BATCH_SYMBOLS[key]: 1}), key)
        return Unknown(key)

    def accelerator(self, keywords: Named, node: ast.Call) -> Value:
        """``Accelerator(...)``."""
        self.speakers.append(("accelerate", self.source(node)))
        self.learn("accelerator.present", True, node)
        plugin = keywords.get("gradient_accumulation_plugin")
        steps = keywords.get("gradient_accumulation_steps")
        if steps is None and isinstance(plugin, Role):
            steps = plugin.facts.get("steps")
        if isinstance(steps, Count) and (known := steps.number.known()) is not None:
            self.learn("accelerator.gradient_accumulation_steps", known, node)
        deepspeed = keywords.get("deepspeed_plugin")
        if isinstance(deepspeed, Role) and isinstance(deepspeed.facts.get("config"), Constant):
            self.references.append((deepspeed.facts["config"].value, deepspeed.source))
        engine = self.first_engine("accelerate") or self.engine("accelerate", node, "accelerator")
        return Role("accelerator", self.source(node), engine)

    def plugin(self, name: str, arguments: Values, keywords: Named, node: ast.Call) -> Value:
        """``DeepSpeedPlugin(...)`` and ``GradientAccumulationPlugin(...)``."""
        if name == "GradientAccumulationPlugin":
            return Role("plugin", self.source(node), steps=first_of(arguments, keywords, "num_steps"))
        self.learn("accelerate.use_deepspeed", True, node)
        for key in ("gradient_accumulation_steps", "gradient_clipping", "zero_stage"):
            value = keywords.get(key)
            if isinstance(value, Count) and (known := value.number.known()) is not None:
                self.learn(f"plugin.{key}", known, node)
        config = first_of(arguments, keywords, "hf_ds_config")
        if isinstance(config, Mapping) and not config.name:
            self.made_configs.append(self.config_of(config))
        return Role("plugin", self.source(node), config=config)

    def _on_accelerator(
        self, role: Role, name: str, arguments: Values, keywords: Named, node: ast.Call
    ) -> Value | None:
        engine = role.engine
        assert engine is not None
        if name == "prepare":
            made = [self._prepared(value, engine, node) for value in arguments]
            return made[0] if len(made) == 1 else Sequence(made)
        if name in ("prepare_model", "prepare_optimizer", "prepare_scheduler", "prepare_data_loader") and arguments:
            return self._prepared(arguments[0], engine, node)
        if name == "backward":
            return self.engine_backward(engine, arguments, keywords, node)
        if name == "accumulate":
            self.learn("accelerator.accumulate", True, node)
            return Role("context", self.source(node), kind="accumulate")
        if name == "no_sync":
            self.emit("no-sync", engine, node)
            return Role("context", self.source(node), kind="no_sync")
        if name in ("clip_grad_norm_", "clip_grad_value_"):
            self.emit("clip", engine, node, by=name)
            return Unknown(name)
        return arguments[0] if name == "unwrap_model" and arguments else Unknown(name)

    def _prepared(self, value: Value, engine: Engine, node: ast.Call) -> Value:
        made = self._prepared_as(value, engine, node)
        if isinstance(made, Role):
            self.prepared_loaders += made.role == "loader"
            if made.role == "engine":
                self.prepared_models.append(made.source)
        else:
            self.prepared_loaders += 1  # something unknown may be a loader
        return made

    def _prepared_as(self, value: Value, engine: Engine, node: ast.Call) -> Value:
        if isinstance(value, Role) and value.role in ("optimizer", "scheduler", "loader"):
            value.engine = engine
            value.facts.update({"owner": "prepared"} if value.role == "scheduler" else {"prepared": True})
            return value
        if looks_like(value, "optim", "opt"):
            return Role("optimizer", self.source(node), engine, prepared=True)
        if looks_like(value, "sched"):
            return Role("scheduler", self.source(node), engine, owner="prepared")
        if looks_like(value, "loader", "data", "_dl", "batches"):
            return Role("loader", self.source(node), engine)
        if isinstance(value, Instance | Unknown | Reference | Role | Sequence):
            return Role("engine", self.source(node), engine)
        return value

    def lightning_trainer(self, keywords: Named, node: ast.Call) -> Value:
        """``lightning.Trainer(...)``."""
        self.speakers.append(("lightning", self.source(node)))
        for key, value in keywords.items():
            known = self.plain(value)
            if known is not None:
                self.learn(f"trainer.{key}", known, node)
        self._lightning_processes(keywords, node)
        strategy = keywords.get("strategy")
        if isinstance(strategy, Role) and strategy.facts.get("stage") is not None:
            self.learn("trainer.strategy", f"deepspeed_stage_{strategy.facts['stage']}", node)
        if isinstance(strategy, Role) and (config := strategy.facts.get("config")) is not None:
            if isinstance(config, Constant) and isinstance(config.value, str):
                self.references.append((config.value, strategy.source))
            elif isinstance(config, Mapping) and not config.name:
                self.made_configs.append(self.config_of(config))
        return Role("trainer", self.source(node), kind="lightning")

    def _lightning_processes(self, keywords: Named, node: ast.Call) -> None:
        devices, nodes = keywords.get("devices", keywords.get("gpus")), self.plain(keywords.get("num_nodes")) or 1
        count = len(devices.items) if isinstance(devices, Sequence) else self.plain(devices)
        if isinstance(count, int) and count >= 1 and isinstance(nodes, int):
            self.learn("processes", count * nodes, node)

    def training_arguments(self, name: str, keywords: Named, node: ast.Call) -> Value:
        """``TrainingArguments(...)`` and the configs of TRL's trainers."""
        trl = not name.endswith("TrainingArguments")
        self.speakers.append(("trl" if trl else "transformers", self.source(node)))
        made = Unknown(name)
        for key, value in keywords.items():
            known = self.plain(value)
            made.attributes[key] = value
            if known is None:
                continue
            self.learn(f"trainer.{key}", known, node)
            if key == "num_generations":
                self.learn("generation.num_generations", known, node)
            if key == "deepspeed" and isinstance(known, str):
                self.references.append((known, self.source(node)))
        if keywords and not any(key.arg is None for key in node.keywords) and len(node.args) <= 1:
            absent = [key for key in _WITH_DEFAULT if key not in keywords]
            self.learn("trainer.defaults", absent, node)
        config = keywords.get("deepspeed")
        if isinstance(config, Mapping) and not config.name:
            self.made_configs.append(self.config_of(config))
        return made

    def plain(self, value: Value | None) -> Any:
        """The plain value, None where it is not known."""
        if isinstance(value, Count):
            return value.number.known()
        if isinstance(value, Constant):
            return value.value
        return None

    def base_names(self, kind: Class) -> set[str]:
        """The last parts of the names of all classes that a class derives from."""
        return {base.name.rsplit(".", 1)[-1] for base in lineage(kind)[1:]}
