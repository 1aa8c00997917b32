"""Options by hand: argparse alone would take a quarter of the time that ``dsaccum check`` has."""

from __future__ import annotations

import json
import re

from dsaccum_helpers.job import CONFIG_FACTS, FACTS, FRAMEWORKS, OPEN_FACTS, JobError

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

__all__ = ["Options", "nearest", "parse"]

FORMATS = ("text", "json", "sarif", "github", "html")
FLAGS = ("--here", "--fix", "--write", "--help")
#: A version of a package, as in 2.3, v0.15.0, 2.1.0+cu118, 0.15.*
VERSION = re.compile(r"[vV]?\d[\w.+!*-]*$", re.ASCII)


class Options:
    """What was typed after ``dsaccum check``."""

    def __init__(self) -> None:
        self.paths: list[Any] = []
        self.framework: str | None = None
        self.sizes: dict[str, int] = {}
        self.have: dict[str, str] = {}
        self.set: dict[str, Any] = {}
        self.worlds: list[int] = []
        self.format = "text"
        self.select: list[str] = []
        self.ignore: list[str] = []
        self.here = self.fix = self.write = self.help = False


def parse(words: list[str]) -> Options:
    """The options of ``dsaccum check``. Raises ``JobError``, one line that names the option, for all that is off."""
    options, rest = Options(), list(words)
    while rest:
        word = rest.pop(0)
        if word == "--":
            options.paths += rest
            break
        if word == "-" or not word.startswith("-"):
            if word not in options.paths:  # what is given twice says nothing more, and standard input is read once
                options.paths.append(word)
            continue
        name, given, value = word.partition("=")
        name = {"-h": "--help"}.get(name, name)
        if name in FLAGS and given:
            raise JobError(f"{name} takes no value, but got {value!r:.60}. Smallest fix: {name}.")
        if name in FLAGS:
            setattr(options, name[2:], True)
        elif name in VALUED:
            if not given:
                if not rest or rest[0].startswith("--"):
                    raise JobError(f"{name} needs a value. Smallest fix: {name} {EXAMPLES[name]}.")
                value = rest.pop(0)
            VALUED[name](options, name, value)
        else:
            near = nearest(name, (*VALUED, *FLAGS))
            raise JobError(f"{name:.60} is no option. Smallest fix: {near or 'dsaccum check --help lists them'}.")
    return options


def nearest(word: str, names: Iterable[str]) -> str | None:
    """The name that is meant, None where none is near."""
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, list(names), n=1, cutoff=0.5)), None)


def _one_of(choices: tuple[str, ...]) -> Callable[[Options, str, str], None]:
    def put(options: Options, name: str, value: str) -> None:
        if value not in choices:
            near = nearest(value.lower(), choices)
            advice = f"{name} {near}" if near else f"one of {', '.join(choices)}"
            raise JobError(f"{name} {value!r:.60} is none of {', '.join(choices)}. Smallest fix: {advice}.")
        setattr(options, name[2:], value)

    return put


def _size(options: Options, name: str, value: str) -> None:
    options.sizes[name[2:].replace("-", "_")] = _count(name, value, value)


def _count(name: str, value: str, whole: str) -> int:
    text = value.strip()
    # int() alone would take 4_000 and digits of other scripts, and refuse numbers of thousands of digits.
    if not (text.isascii() and text.isdigit() and len(text) < 19 and int(text) >= 1):
        raise JobError(f"{name} {whole:.60} is no positive integer. Smallest fix: {name} {EXAMPLES[name]}.")
    return int(text)


def _worlds(options: Options, name: str, value: str) -> None:
    sizes = [_count(name, part, value) for part in value.split(",")]
    options.worlds = list(dict.fromkeys([*options.worlds, *sizes]))


def _have(options: Options, name: str, value: str) -> None:
    package, equal, version = (part.strip() for part in value.partition("=="))
    if not (package and equal and VERSION.match(version)):
        raise JobError(f"{name} {value!r:.60} is not NAME==VERSION. Smallest fix: {name} {EXAMPLES[name]}.")
    options.have[package] = version.lstrip("vV")


def _set(options: Options, name: str, value: str) -> None:
    fact, equal, text = value.partition("=")
    fact = fact.strip()
    if not (fact and equal):
        raise JobError(f"{name} {value!r:.60} is not NAME=VALUE. Smallest fix: {name} {EXAMPLES[name]}.")
    from dsaccum_helpers.known_keys import TOP_LEVEL

    known = [*FACTS, *CONFIG_FACTS, *sorted(TOP_LEVEL)]
    first, dot, second = fact.partition(".")
    if fact not in known and not (dot and second and (first in OPEN_FACTS or first in TOP_LEVEL)):
        near = nearest(fact, known)
        advice = f"{name} {near}={text:.40}" if near else f"{name} {EXAMPLES[name]}"
        raise JobError(f"{name} {fact:.60}: no fact and no DeepSpeed key has this name. Smallest fix: {advice}.")
    options.set[fact] = _value(text)


def _value(text: str) -> Any:
    """JSON where it is JSON, else the text itself."""
    try:
        return json.loads(text, parse_constant=str)
    except (ValueError, RecursionError):
        return {"True": True, "False": False, "None": None}.get(text, text)


def _codes(options: Options, name: str, value: str) -> None:
    from dsaccum_helpers.mismatches import GROUPS

    codes = [part.strip() for part in value.split(",") if part.strip()]
    if not codes:
        raise JobError(f"{name} names no code. Smallest fix: {name} {EXAMPLES[name]}.")
    known = [code for group in GROUPS.values() for code in group]
    for code in codes:
        if code not in known:
            near = nearest(code.lower(), known)
            advice = f"{name} {near}" if near else "dsaccum explain lists them"
            raise JobError(f"{name} {code!r:.60} is no code of the catalogue. Smallest fix: {advice}.")
    getattr(options, name[2:]).extend(codes)


VALUED: dict[str, Callable[[Options, str, str], None]] = {
    "--framework": _one_of(FRAMEWORKS),
    "--processes": _size,
    "--tensor-parallel": _size,
    "--pipeline-parallel": _size,
    "--sequence-parallel": _size,
    "--have": _have,
    "--set": _set,
    "--for": _worlds,
    "--format": _one_of(FORMATS),
    "--select": _codes,
    "--ignore": _codes,
}
EXAMPLES = {
    "--framework": "transformers",
    **dict.fromkeys(("--processes", "--tensor-parallel", "--pipeline-parallel", "--sequence-parallel"), "4"),
    "--have": "deepspeed==0.19.8",
    "--set": "loader.batch_size=8",
    "--for": "4,8",
    "--format": "json",
    "--select": "batch-not-divisible",
    "--ignore": "step-unit-confusion",
}
