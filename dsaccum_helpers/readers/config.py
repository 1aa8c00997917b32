"""A DeepSpeed config: strict JSON, the HJSON that DeepSpeed itself reads, or a printed Python dict.

The strict reader comes first: it is what Transformers and Accelerate use, and what nearly every file is written for.
``hjson`` is loaded only for a text that the strict reader refuses or that has the same key twice.
"""

from __future__ import annotations

import json
import re

from dsaccum_helpers.job import Config, JobError, Source, Unreadable
from dsaccum_helpers.readers.positions import scan
from dsaccum_helpers.readers.vocabulary import KEYS, OTHERS, knows

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import Any

    from dsaccum_helpers.job import Job
    from dsaccum_helpers.readers.files import Document

#: Keys of which a DeepSpeed config holds blocks where arguments of a trainer hold a word or a truth.
_BLOCKS = ("fp16", "bf16", "optimizer", "scheduler", "amp", "aio", "tensorboard", "wandb", "csv_monitor")
# Patterns for what is rare are compiled when first used: a plain JSON config needs none of them.
_SIGN = (
    r"train_batch_size|train_micro_batch|gradient_accumulation_|zero_optimization|gradient_clipping|steps_per_print"
    r"|micro_batch_size|\"(?:fp16|bf16)\"\s*:\s*\{"
)
_PYTHON_WORD = r":\s*(?:True|False|None)\b"
_ENDINGS = (".json", ".jsonc", ".json5", ".hjson")
_CONFIG_NAME = r"(?i)(?:^|[^a-z])(?:ds|deepspeed|zero)(?![a-z])|zero[\d_]"
_RESEMBLES = r"(?i)batch|accum|zero|micro|fp16|bf16|grad|offload|optimi[sz]er|scheduler|steps?.?per|deep.?speed"
_START = re.compile(r"(?:\s+|#[^\n]*\n|//[^\n]*\n|/\*.*?\*/)*", re.S)
_LARGEST = 4_000_000  # letters; no config is longer, but data are and logs
_LARGEST_HJSON = 1_000_000  # its reader takes a second for a million letters


class Parsed:
    """What the readers make of a text: see Config for ``strict``, ``hjson``, ``duplicates`` and ``places``.

    ``values`` is what the first reader that succeeds gives, None where none does. ``python``: it is a printed dict.
    ``end``: where the root object ends in the text, None where it is not closed.
    """

    def __init__(self, text: str) -> None:
        self.values: Any = None
        self.python = False
        self.strict: tuple[str, int, int] | None = None
        self.hjson: tuple[str, int, int] | None = None
        found, self.end = scan(text)
        self.places: dict[tuple[str, ...], tuple[int, int]] = {}
        self.duplicates: list[tuple[tuple[str, ...], int, int]] = []
        for key in found:
            if key.path in self.places:
                self.duplicates.append(tuple(key))
            self.places[key.path] = (key.line, key.column)  # the last one counts, as it does for both readers


def parse(text: str) -> Parsed:
    """Read a text with the strict reader, then with DeepSpeed's own, then as a printed dict. Never raises."""
    parsed = Parsed(text)
    odd: list[str] = []  # constants such as NaN, and keys that stand twice: the strict reader takes them silently

    def pairs(items: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(items)
        if len(values) != len(items):
            odd.append("twice")
        return values

    def constant(name: str) -> float:
        odd.append(name)
        return float(name)

    def number(digits: str) -> float:
        value = float(digits)
        if value in (float("inf"), float("-inf")):
            odd.append(digits)
        return value

    try:
        parsed.values = json.loads(text, object_pairs_hook=pairs, parse_constant=constant, parse_float=number)
    except (ValueError, RecursionError) as error:
        parsed.strict = _words(error)
    if (parsed.strict or odd) and len(text) <= _LARGEST_HJSON:
        values, parsed.hjson = _as_hjson(text, parsed)
        parsed.values = values if parsed.strict else parsed.values
        if parsed.values is None:
            parsed.values = _as_python(text)
            parsed.python = parsed.values is not None
    return parsed


def read(document: Document, job: Job) -> bool | Parsed:
    """Read a document that is a DeepSpeed config.

    A Parsed comes back where it is an object of another kind (arguments, Accelerate), False where it is no object.
    """
    text = document.text
    start = _START.match(text)
    braced = text.startswith("{", start.end() if start else 0)
    named = document.ending in _ENDINGS
    if (not braced and not named) or (len(text) > _LARGEST and (_is_lines(text) or not named)):
        return False
    if len(text) > _LARGEST:
        raise JobError(f"{document.name} is too long for a config. Smallest fix: leave it out, or name the right file.")
    parsed = parse(text)
    if isinstance(parsed.values, dict):
        return _put(document, parsed, job) if is_config(parsed.values, document.name) else parsed
    followed = parsed.end is not None and bool(text[parsed.end :].strip())
    signed = bool(re.search(_SIGN, text[:100_000]))
    if (_is_lines(text) and not signed) or (not named and (followed or not signed)):
        return False
    if isinstance(parsed.values, list) and not signed and not _is_named(document.name):
        return False  # a data set
    job.unreadable.append(_unreadable(document, parsed))
    return True


def is_config(values: dict[str, Any], name: str) -> bool:
    """Is a mapping a DeepSpeed config rather than arguments, or a file in which one is embedded?"""
    keys = len(values.keys() & KEYS) + sum(isinstance(values.get(block), dict) for block in _BLOCKS)
    others = len(values.keys() & OTHERS)
    if "log_history" in values:
        return False
    if keys:
        return keys >= others or bool(re.search(_CONFIG_NAME, name))
    if others or knows(values):
        return False
    # None of the keys: a config with misspelt ones, or one of the many other JSON files beside a model.
    return not (values and name) or _is_named(name) or any(re.search(_RESEMBLES, str(key)) for key in values)


def _is_named(name: str) -> bool:
    """Is it called as configs are?"""
    return bool(re.search(_CONFIG_NAME, name.replace("\\", "/").rsplit("/", 1)[-1]))


def _is_lines(text: str) -> bool:
    """Is it JSON Lines, an object a line, as logs of metrics are?"""
    lines = text.lstrip().split("\n", 2)[:2]
    return len(lines) == 2 and all(line.startswith("{") and line.rstrip().endswith("}") for line in lines)


def add(
    job: Job,
    values: dict[str, Any],
    file: str | None,
    places: dict[tuple[str, ...], tuple[int, int]] | None = None,
    kind: str = "embedded",
    below: tuple[str, ...] = (),
) -> Config:
    """Add a config that stands in another file under the key path ``below``; ``places`` are those of the whole file."""
    size = len(below)
    inner = {path[size:]: place for path, place in (places or {}).items() if path[:size] == below and path[size:]}
    config = Config(values, file, inner, kind)
    job.configs.append(config)
    return config


def _put(document: Document, parsed: Parsed, job: Job) -> bool:
    """Put a config into the job, with what each of its readers says."""
    if parsed.python and document.ending in _ENDINGS:  # no reader of configs takes a printed dict
        job.unreadable.append(_unreadable(document, parsed))
        return True
    config = Config(parsed.values, document.name, parsed.places, "log" if parsed.python else "file", document.text)
    config.strict, config.hjson, config.duplicates = parsed.strict, parsed.hjson, parsed.duplicates
    if parsed.python:
        config.strict = config.hjson = config.text = None
    elif document.encoding == "utf-8-sig":
        config.strict = config.strict or ("Unexpected UTF-8 BOM (decode using utf-8-sig)", 1, 1)
    elif document.encoding != "utf-8":
        found = "not UTF-8" if document.encoding == "unknown" else document.encoding.upper()
        config.strict = config.hjson = (f"the file is {found}, both readers expect UTF-8", 1, 1)
    job.configs.append(config)
    return True


def _unreadable(document: Document, parsed: Parsed) -> Unreadable:
    """Why no reader takes it, where, and the smallest remedy."""
    text = document.text
    kind = {list: "a list", str: "a text", type(None): "null"}.get(type(parsed.values), "a number")
    words, line, column = parsed.strict or (f"it is {kind}, a config is an object", 1, 1)
    content = text.split("\n")[line - 1][column - 1 :] if parsed.strict else ""
    if parsed.strict and parsed.hjson and (content[:1] in ("#", "/", "}") or "property name" in words):
        words, line, column = parsed.hjson  # the first thing that strict JSON lacks is fine for HJSON
    remedy = f"mend line {line}, column {column}"
    bare = re.match(r"[A-Za-z_$][\w.$-]*", content)
    if parsed.strict is None:
        remedy = "give the object in braces that DeepSpeed is to read"
    elif parsed.python or re.search(_PYTHON_WORD, text):
        words, line, column = parsed.strict
        remedy = "write it as JSON: double quotes, true, false and null in place of True, False and None"
    elif _is_cut_off(text, parsed.strict):
        words, remedy = f"the text ends before the object is closed ({words})", "copy the whole file again"
    elif "Extra data" in words:
        remedy = f"take away what stands after the object, from line {line}, column {column}"
    elif not text.lstrip().startswith(("{", "#", "/")):
        remedy = "take away what stands before the object's first brace"
    elif bare and words == "Expecting value":
        remedy = f'write "{bare.group():.40}" in quotes on line {line}'
    return Unreadable(Source(document.name, line, column), f"{document.name}: {words}", remedy)


def _is_cut_off(text: str, strict: tuple[str, int, int]) -> bool:
    """Does the strict reader stop at the very end, or in a text that is never closed?"""
    words, line, column = strict
    lines = text.rstrip().split("\n")
    at_end = line > len(lines) or (line == len(lines) and column > len(lines[-1]))
    return at_end or (line == len(lines) and words.startswith("Unterminated string"))


def _words(error: Exception) -> tuple[str, int, int]:
    """What a reader says, and the line and column of it."""
    if isinstance(error, RecursionError):
        return "nested too deeply to be read", 1, 1
    words = str(getattr(error, "msg", "") or error).split("; use sys.")[0]
    return words[:200], getattr(error, "lineno", None) or 1, getattr(error, "colno", None) or 1


def _as_hjson(text: str, parsed: Parsed) -> tuple[Any, tuple[str, int, int] | None]:
    """Values and words of the reader that DeepSpeed uses, which refuses keys that stand twice."""
    import hjson

    try:
        values = hjson.loads(text, object_pairs_hook=dict)
    except (ValueError, ArithmeticError, RecursionError, IndexError, TypeError, AttributeError) as error:
        return None, _words(error)
    if parsed.duplicates:
        path, line, column = parsed.duplicates[0]
        return values, (f"Duplicate keys in DeepSpeed config: [{path[-1]!r}]", line, column)
    return values, None


def _as_python(text: str) -> Any:
    """The dict of a text that is its printed form, else None."""
    import ast
    import warnings

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an odd escape in a text is not our user's to mend
            values = ast.literal_eval(text.strip())
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
        return None
    return values if isinstance(values, dict) and all(isinstance(key, str) for key in values) else None
