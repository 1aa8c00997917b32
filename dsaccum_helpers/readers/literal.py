"""A dict as Python or JSON prints it, read without evaluating anything; what is no literal stays text (pure)."""

from __future__ import annotations

import re

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import Any

__all__ = ["parse"]

_GAP = re.compile(r"\s*")
_STRING = re.compile(r"[uUbBrR]?(?:'((?:[^'\\]|\\.)*)'|\"((?:[^\"\\]|\\.)*)\")", re.DOTALL)
_NUMBER = re.compile(r"[-+]?(?:\d+\.\d*|\.\d+|\d+)(?:[eE][-+]?\d+)?(?![\w.])")
_OTHER = re.compile(r"<[^<>\n]{0,200}>|[^\s,:{}\[\]()'\"][^,:{}\[\]\n]{0,200}")
_WORDS = {"true": True, "false": False, "null": None, "True": True, "False": False, "None": None}
_ENDS = {"{": "}", "[": "]", "(": ")"}
_DEEPEST = 30


class _NotALiteral(ValueError):
    """The text is cut off or something else than a printed dict."""


def parse(text: str) -> tuple[Any, dict[tuple[str, ...], int], int] | None:
    """The value with which the text begins, the place of each key, and where it ends; None where it is no literal."""
    places: dict[tuple[str, ...], int] = {}
    try:
        value, end = _value(text, 0, (), places)
    except _NotALiteral:
        return None
    return value, places, end


def _skip(text: str, at: int) -> int:
    match = _GAP.match(text, at)
    return match.end() if match else at


def _value(text: str, at: int, path: tuple[str, ...], places: dict[tuple[str, ...], int]) -> tuple[Any, int]:
    """One value and where it ends."""
    at = _skip(text, at)
    sign = text[at : at + 1]
    if len(path) > _DEEPEST or not sign:
        raise _NotALiteral(text[at : at + 20])
    if sign in _ENDS:
        return _dict(text, at, path, places) if sign == "{" else _list(text, at, path, places)
    if match := _STRING.match(text, at):
        return re.sub(r"\\(.)", r"\1", match[1] if match[1] is not None else match[2]), match.end()
    if (match := _NUMBER.match(text, at)) and len(match[0]) < 300:
        return (int(match[0]) if re.fullmatch(r"[-+]?\d+", match[0]) else float(match[0])), match.end()
    if match := _OTHER.match(text, at):
        word = match[0].rstrip()
        end = match.end()
        if text[end : end + 1] == "(" or word.endswith("("):
            raise _NotALiteral(word)
        return _WORDS.get(word, word), at + len(word)
    raise _NotALiteral(text[at : at + 20])


def _dict(text: str, at: int, path: tuple[str, ...], places: dict[tuple[str, ...], int]) -> tuple[dict[str, Any], int]:
    """``{"key": value, ...}``, a comma too many forgiven."""
    values: dict[str, Any] = {}
    at = _skip(text, at + 1)
    while text[at : at + 1] != "}":
        key, end = _value(text, at, (*path, ""), places)
        if isinstance(key, dict | list):
            raise _NotALiteral(text[at : at + 20])
        places[(*path, str(key))] = at
        at = _skip(text, end)
        if text[at : at + 1] != ":":
            raise _NotALiteral(text[at : at + 20])
        values[str(key)], at = _value(text, at + 1, (*path, str(key)), places)
        at = _comma(text, at, "}")
    return values, at + 1


def _list(text: str, at: int, path: tuple[str, ...], places: dict[tuple[str, ...], int]) -> tuple[list[Any], int]:
    """``[value, ...]`` or ``(value, ...)``."""
    values: list[Any] = []
    closing = _ENDS[text[at]]
    at = _skip(text, at + 1)
    while text[at : at + 1] != closing:
        value, at = _value(text, at, (*path, str(len(values))), places)
        values.append(value)
        at = _comma(text, at, closing)
    return values, at + 1


def _comma(text: str, at: int, closing: str) -> int:
    """Behind the comma between two members, or at the closing bracket."""
    at = _skip(text, at)
    if text[at : at + 1] == ",":
        return _skip(text, at + 1)
    if text[at : at + 1] != closing:
        raise _NotALiteral(text[at : at + 20])
    return at
