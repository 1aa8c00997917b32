"""The optimizer and scheduler blocks of a person's config: for DeepSpeed, and for the oracle (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dsaccum_helpers.setting import SettingError
from dsaccum_helpers.verification.keys import no_auto, refuse
from dsaccum_helpers.verification.running import CONFIG_UPDATES
from dsaccum_helpers.verification.schedules import PARAMETERS, Schedule

#: Parameters of torch's own classes that decide an update, with the values they have unless given.
DEFAULTS: dict[str, dict[str, Any]] = {
    "SGD": {"lr": 1e-3, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False},
    "Adam": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.0, "amsgrad": False},
    "AdamW": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01, "amsgrad": False},
}
#: Parameters that say by which kernel, not what is computed.
_KERNEL = ("torch_adam", "foreach", "fused", "capturable", "set_grad_none", "fp32_optimizer_states", "adam_w_mode")
_STAND_IN = {"lr": 0.05}
_LONGEST_WARMUP = CONFIG_UPDATES // 2
#: No number of a config may be larger: that of fp32.
MOST_NUMBER = 3e38


@dataclass(frozen=True)
class Optimizer:
    """``name`` and ``parameters`` are those of a class of ``torch.optim``; ``block`` is what DeepSpeed is given."""

    name: str
    parameters: dict[str, Any]
    block: dict[str, Any]
    kept: str = ""
    notes: tuple[str, ...] = ()


def optimizer(block: Any) -> Optimizer:
    """Read the block; None where the config has none. Raises ``SettingError`` for what no oracle is written for."""
    if block is None:
        values = DEFAULTS["SGD"] | _STAND_IN
        note = f"No optimizer block: the script makes the optimizer. SGD with lr {_STAND_IN['lr']} stands in for it."
        return Optimizer("SGD", values, {"type": "SGD", "params": values}, "", (note,))
    if not isinstance(block, dict) or not isinstance(block.get("type"), str):
        raise SettingError('optimizer has no type. Smallest fix: {"type": "AdamW", "params": {"lr": 0.001}}.')
    kind, given = block["type"], block.get("params") or {}
    no_auto("optimizer", block)
    if not isinstance(given, dict):
        raise SettingError(f"optimizer.params is {given!r:.60}. Smallest fix: a block with lr and the rest.")
    adam = kind.lower() in ("adam", "adamw")
    if kind == "sgd":
        raise SettingError("DeepSpeed finds no optimizer by the name sgd. Smallest fix: SGD, in capital letters.")
    if not adam and kind != "SGD":
        raise refuse(f"optimizer {kind!r:.40}", "no oracle is written for it", "verify a copy with SGD, Adam or AdamW")
    decoupled = kind.lower() == "adamw" or given.get("adam_w_mode", True) is not False
    name = ("AdamW" if decoupled else "Adam") if adam else "SGD"
    parameters, notes = _parameters(name, kind, given)
    own = {"torch_adam": True, "adam_w_mode": decoupled} if adam else {}
    shown = ", ".join(f"{key} {value}" for key, value in parameters.items() if value not in (False, None))
    return Optimizer(name, parameters, {"type": kind, "params": parameters | own}, f"{kind}: {shown}.", notes)


def _parameters(name: str, kind: str, given: dict[str, Any]) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Every parameter, also those that DeepSpeed and torch would fill in, and what was changed about them."""
    defaults, notes = dict(DEFAULTS[name]), []
    if name != "SGD":
        if given.get("torch_adam") is not True:
            # DeepSpeed's own Adam has no decay unless asked; torch's AdamW, which stands in for it, would have 0.01.
            defaults["weight_decay"] = 0.0
            notes.append("torch_adam: DeepSpeed's own Adam is compiled for minutes; torch's computes the same.")
            if given.get("amsgrad"):
                raise refuse("optimizer.params.amsgrad", "DeepSpeed's own Adam has none", "torch_adam true")
        if given.get("bias_correction") is False:
            remedy = "verify a copy without it"
            raise refuse("optimizer.params.bias_correction", "torch's Adam always corrects its bias", remedy)
        if "adam_w_mode" not in given and kind.lower() == "adam":
            notes.append("Adam without adam_w_mode is AdamW in DeepSpeed; so it is for the oracle.")
    if "max_grad_norm" in given:
        raise SettingError(
            "DeepSpeed refuses optimizer.params.max_grad_norm. Smallest fix: gradient_clipping beside the block."
        )
    unknown = [key for key in given if key not in defaults and key not in (*_KERNEL, "bias_correction")]
    if unknown:
        known = ", ".join(defaults)
        raise refuse(f"optimizer.params.{unknown[0]}", f"no oracle is written for it (known: {known})", "leave it out")
    values = defaults | {key: value for key, value in given.items() if key in defaults}
    for key, value in values.items():
        _number(f"optimizer.params.{key}", value)
    if values.get("nesterov") and (not values["momentum"] or values["dampening"]):
        raise SettingError("optimizer.params.nesterov needs momentum, and no dampening. Smallest fix: momentum 0.9.")
    return values, tuple(notes)


def scheduler(block: Any) -> tuple[Schedule, list[str], list[str]]:
    """Read the block: the schedule in 20 updates, what is kept of it, and what is scaled. Raises ``SettingError``."""
    if block is None:
        return Schedule(), ["No scheduler block: the learning rate stays as it is."], []
    no_auto("scheduler", block)
    name = block.get("type") if isinstance(block, dict) else None
    if not isinstance(name, str) or name not in PARAMETERS:
        known = ", ".join(PARAMETERS)
        what = f"scheduler {name!r:.40}"
        raise refuse(what, f"its rates are worked out for {known} only", "verify a copy without the scheduler block")
    given, defaults = block.get("params") or {}, PARAMETERS[name]
    if not isinstance(given, dict):
        raise SettingError(
            f"scheduler.params is {given!r:.60}. Smallest fix: a block with warmup_num_steps and the rest."
        )
    for key, value in given.items():
        if key not in defaults:
            known = ", ".join(defaults)
            raise SettingError(f"{name} has no parameter {key!r:.40}. Smallest fix: one of {known}.")
        if key == "warmup_type":
            if value not in ("log", "linear"):
                raise SettingError(f"warmup_type is {value!r:.40}. Smallest fix: log or linear.")
        elif value is not None:
            _number(f"scheduler.params.{key}", value, whole=key.endswith("_steps"))
    if "total_num_steps" in defaults and given.get("total_num_steps") is None:
        raise SettingError(f"{name} needs total_num_steps. Smallest fix: the optimizer steps of the whole training.")
    return _shorter(name, given)


def _shorter(name: str, given: dict[str, Any]) -> tuple[Schedule, list[str], list[str]]:
    """The same schedule with its whole course in the updates that are made here."""
    values = PARAMETERS[name] | given
    warmup, total = values["warmup_num_steps"], values.get("total_num_steps")
    if total is None:
        short = {"warmup_num_steps": min(warmup, _LONGEST_WARMUP)}
    elif total > CONFIG_UPDATES:
        short = {
            "warmup_num_steps": max(2, (warmup * CONFIG_UPDATES + total // 2) // total) if warmup > 2 else warmup,
            "total_num_steps": CONFIG_UPDATES,
        }
    else:
        short = {}
    changed = [f"{key} {values[key]} -> {new}" for key, new in short.items() if values[key] != new]
    words = f"{name} {', '.join(changed)}, so that its whole course is seen in {CONFIG_UPDATES} updates."
    kept = [f"{key} {value}" for key, value in values.items() if not key.endswith("_steps") and value is not None]
    parameters = {key: value for key, value in (values | short).items() if value is not None}
    return Schedule(name, parameters), [f"{name}: {', '.join(kept)}."], [words] if changed else []


def _number(name: str, value: Any, *, whole: bool = False) -> None:
    values = value if isinstance(value, list | tuple) and name.endswith("betas") else [value]
    if name.endswith(("nesterov", "amsgrad")):
        right = isinstance(value, bool)
    else:
        kinds = (int,) if whole else (int, float)
        most = 1 if name.endswith("betas") else MOST_NUMBER
        least = -MOST_NUMBER if name.endswith("dampening") else 0  # torch refuses what is below
        right = all(isinstance(one, kinds) and not isinstance(one, bool) and least <= one <= most for one in values)
        right = right and (not whole or value > 0) and (most > 1 or (len(values) == 2 and 1 not in values))
    if not right:
        needed = "a positive whole number" if whole else "true or false" if "lr" not in name else "a number from 0 on"
        if not whole and not name.endswith(("nesterov", "amsgrad")):
            needed = "two numbers from 0 on and below 1" if name.endswith("betas") else "a number from 0 on"
        raise SettingError(f"{name} is {value!r:.60}. Smallest fix: {needed}.")
