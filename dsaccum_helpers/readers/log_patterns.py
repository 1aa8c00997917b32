"""The words by which DeepSpeed, Accelerate, Transformers, Lightning and TRL say that something is off (pure data).

Each kind of event has telling words, one of which stands in every message of the kind however it is broken over
lines, and a pattern in which blanks and line ends do not count.
"""

from __future__ import annotations

import re
from collections import namedtuple

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["PATTERNS", "Pattern", "number"]

Pattern = namedtuple("Pattern", "kind words pattern values speaks ahead", defaults=(None, 6))
Pattern.__doc__ = """``words``: what the log is searched for. ``pattern``: see ``loose``. ``values``: match to the
event's values, None where it is none. ``speaks``: the framework whose message it is. ``ahead``: how many lines a
message may have."""

_NUMBER = r"(-?\d+(?:\.\d+)?|True|False|None)"
_TIMES = r"(?:\s*\\?[*x\u00d7]\s*|\s+)"
_QUOTED = re.compile(r"['\"`]([^'\"`\n]{1,200})['\"`]")
_KEYS = {
    "train batch size": "train_batch_size",
    "micro batch size per gpu": "train_micro_batch_size_per_gpu",
    "gradient accumulation steps": "gradient_accumulation_steps",
}
_ROW = re.compile(
    r"ds\s+([\w.]+)\s*=\s*(\S[^\n]*?)\s+vs\s+hf\s+([^\s=]+)(\s*\(calculated\))?\s*=\s*(\S.*?)(?=\s+-\s*ds\s|\s*\n|\s*\Z)"
)


def number(text: str | None) -> Any:
    """A number, truth or nothing as it was printed; else the text itself."""
    words = {"True": True, "False": False, "None": None, "true": True, "false": False, "null": None}
    text = (text or "").strip().rstrip(",;")
    if text in words:
        return words[text]
    if re.fullmatch(r"[-+]?\d{1,18}", text.replace(",", "")):
        return int(text.replace(",", ""))
    if re.fullmatch(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d{1,3})?", text):
        value = float(text)
        return int(value) if re.fullmatch(r"[-+]?\d{1,15}\.0*", text) else value
    return text.strip("'\"")


def loose(text: str) -> str:
    """A pattern for a text in which blanks and line ends may stand anywhere, or be missing."""
    return r"\s*".join(re.escape(letter) for letter in text if letter != " ")


def _product(match: re.Match[str]) -> dict[str, Any]:
    return dict(zip(("train", "micro", "steps", "world"), map(number, match.groups()), strict=True))


def _positive(match: re.Match[str]) -> dict[str, Any]:
    words = re.sub(r"\s", "", match[1]).lower()
    key = next(key for said, key in _KEYS.items() if said.replace(" ", "") == words)
    return {"key": key, "value": number(match[2])}


def _rows(match: re.Match[str]) -> dict[str, Any] | None:
    rows = [
        [key, number(value), argument + (" (calculated)" if calculated else ""), number(wanted)]
        for key, value, argument, calculated, wanted in _ROW.findall(match[0])
    ]
    return {"rows": rows} if rows else None


def _names(match: re.Match[str]) -> list[str]:
    return _QUOTED.findall(match[1])


def _generations(match: re.Match[str]) -> dict[str, Any]:
    factors = [int(text) for text in re.findall(r"\d+", match[2])]
    product = 1
    for factor in factors:
        product *= factor
    values: dict[str, Any] = {"factors": factors, "generations": int(match[3]), "product": product}
    return {**values, "eval": True} if match[1].startswith("eval") else values


def _words(match: re.Match[str]) -> dict[str, Any]:
    return {"words": " ".join(match[0].split())[:300]}


def _received(match: re.Match[str]) -> dict[str, Any]:
    received = match[1].strip()
    return {"received": received[:300] if received.startswith("{") else received.split()[0].strip("'\"`,;")}


def _of(*names: str) -> Callable[[re.Match[str]], dict[str, Any]]:
    """The groups of the match under these names."""
    return lambda match: {name: number(text) for name, text in zip(names, match.groups(), strict=True)}


PATTERNS = (
    Pattern(
        "product-assertion",
        ("gradient_acc_step", "micro_batch_per_gpu", "batch related", "Check batch"),
        r"(?:Check\s*batch[\s\S]{0,200}?)?"
        + loose("world_size")
        + rf"\s*:?\s*{_NUMBER}\s*!\s*=\s*{_NUMBER}{_TIMES}{_NUMBER}{_TIMES}{_NUMBER}",
        _product,
    ),
    Pattern(
        "positive-assertion",
        ("to be greater", "has to be", "greater than 0"),
        rf"({'|'.join(map(loose, _KEYS))})\s*:\s*{_NUMBER}\s*{loose('has to be greater than')}",
        _positive,
    ),
    Pattern(
        "batch-missing",
        ("Either train_batch", "needs to be provided", "be provided"),
        loose("Either train_batch_size or") + rf"\s*(?:{loose('train_')})?\s*{loose('micro_batch')}",
        _of(),
    ),
    Pattern(
        "duplicate-keys",
        ("Duplicate keys in", "keys in DeepSpeed"),
        loose("Duplicate keys in DeepSpeed config:") + r"\s*\[([^\]]{1,800})\]",
        lambda match: {"keys": _names(match)},
    ),
    Pattern(
        "config-path",
        ("path to an existing", "existing deepspeed config", "a string path"),
        loose("Expected a string path to an existing deepspeed config") + r"[\s\S]{0,120}?Received:\s*(\S.*)",
        _received,
    ),
    Pattern(
        "trainer-disagrees",
        ("mismatch TrainingArguments", "that mismatch", "following DeepSpeed config values"),
        loose("Please correct the following DeepSpeed config values that mismatch TrainingArguments values")
        + r"(?s:.*)",
        _rows,
        "transformers",
        24,
    ),
    Pattern(
        "accumulation-mismatch",
        ("GradientAccumulationPlugin has", "accumulation steps mismatch"),
        loose("GradientAccumulationPlugin has") + rf"\s*{_NUMBER}\s*,\s*{loose('DeepSpeed config has')}\s*{_NUMBER}",
        _of("plugin", "config"),
        "accelerate",
    ),
    Pattern(
        "accumulation-updated",
        ("gradient accumulation steps to", "Updating DeepSpeed"),
        loose("Updating DeepSpeed")
        + rf".?.?\s*{loose('gradient accumulation steps to')}\s*{_NUMBER}\s*from\s*{_NUMBER}",
        _of("to", "before"),
        "accelerate",
    ),
    Pattern(
        "fields-ignored",
        ("accelerate config variables", "config variables will be", "will be ignored"),
        loose("the following accelerate config variables will be ignored") + r"\s*:?\s*\[([^\]]{1,1500})",
        lambda match: {"names": [re.sub(r"\s", "", name) for name in re.findall(r"['\"]([\w\s.]+)['\"]", match[1])]},
        "accelerate",
        10,
    ),
    Pattern(
        "no-sync",
        ("no_sync context", "gradient partitioning", "partitioning logic"),
        loose("no_sync context manager is incompatible with gradient partitioning logic of ZeRO stage") + r"\s*(\d)",
        _of("stage"),
    ),
    Pattern(
        "world-sizes",
        ("MPI world size", "torch world size"),
        loose("MPI world size") + rf"\s*(\d+)\s*{loose('does not match torch world size')}\s*(\d+)",
        _of("MPI", "torch"),
    ),
    Pattern(
        "checkpoint-world",
        ("used a DP world", "current world size is"),
        loose("used a DP world size of") + rf"\s*(\d+)\s*{loose('but the current world size is')}\s*(\d+)",
        _of("checkpoint", "now"),
    ),
    Pattern(
        "init-alone",
        ("resolved a process group", "zero.Init resolved"),
        loose("resolved a process group of world_size=") + r"\s*(\d+)[\s\S]{0,120}?WORLD_SIZE\s*=\s*(\d+)",
        _of("world", "launched"),
    ),
    Pattern(
        "lightning-owns",
        ("in the DeepSpeed config as", "be set with the", "Do not set"),
        rf"{loose('Do not set')}\s*[`'\"]?\s*(\w+)\s*[`'\"]?\s*{loose('in the DeepSpeed config')}",
        _of("key"),
        "lightning",
    ),
    Pattern(
        "lightning-type",
        ("only int and dict", "int and dict types", "supports only int"),
        loose("supports only int and dict"),
        _of(),
        "lightning",
    ),
    Pattern(
        "loader-batch-needed",
        ("evaluation dataloader", "returning an integer value", "as batch size"),
        rf"(?:{loose('requires you to pass at least one of training or evaluation dataloaders')}"
        rf"|{loose('At least one of the dataloaders passed to `accelerate.prepare()` has `None` as batch size')}"
        rf"|{loose('must specify a training or evaluation dataloader')})",
        _of(),
        "accelerate",
    ),
    Pattern(
        "generation-batch",
        ("number of generations", "generations per prompt", "num_generations"),
        r"(train|eval)\w*\s*batch\s*size\s*\(\s*(\d{1,18}(?:\s*\\?[*x\u00d7]\s*\d{1,18})*)\s*\)\s*must\s*be\s*(?:evenly\s*)?divisible"
        r"\s*by\s*(?:the\s*)?(?:number\s*of\s*generations|num_generations)[^()]{0,60}\(\s*(\d{1,18})\s*\)",
        _generations,
        "trl",
    ),
    Pattern(
        "generation-batch",
        ("generation_batch_size", "num_generations"),
        r"(generation_batch_size|global_batch_size|batch_size)\s*\(\s*(\d{1,18}(?:\s*[*x]\s*\d{1,18})*)\s*\)\s*must\s*be\s*(?:evenly\s*)?"
        r"divisible\s*by\s*[`']?(?:num_generations|the\s*number\s*of\s*generations)[^()]{0,40}\(\s*(\d{1,18})\s*\)",
        _generations,
        "trl",
    ),
    Pattern(
        "elasticity",
        ("Elasticity", "elasticity", "Elastic training"),
        r"(?:Elasticity\w*(?:Error|IncompatibleWorldSize)\s*:\s*\S.{0,250}|Elastic\s*training\s*has\s*been\s*removed.{0,120}"
        r"|World\s*size\s*\(\d+\)\s*is\s*not\s*valid\s*with.{0,160}|'elasticity'\s*configuration\s*block\s*is\s*no\s*longer"
        r"|elasticity\s*(?:support|config)?\s*(?:is\s*)?enabled\b.{0,160}(?:batch|ignor|overrid).{0,80})",
        _words,
    ),
    Pattern(
        "kwargs-missing",
        ("not found in kwargs", "without `auto`", "found in kwargs"),
        rf"`\s*([\w.]+)\s*`\s*{loose('not found in kwargs')}",
        _of("key"),
        "accelerate",
    ),
    Pattern(
        "step-before-scheduler",
        ("lr_scheduler.step()` before", "Detected call of"),
        rf"{loose('Detected call of')}\s*`?\s*{loose('lr_scheduler.step()')}\s*`?\s*before",
        _of(),
    ),
)
