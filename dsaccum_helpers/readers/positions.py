"""Where each key of a JSON or HJSON text stands: a scanner that never fails and never recurses."""

from __future__ import annotations

import re
from collections import namedtuple

#: A deeper text is no config, and its paths alone would fill the memory.
DEEPEST = 200
_GAP = re.compile(r"(?:\s+|#[^\n]*|//[^\n]*|/\*.*?(?:\*/|\Z))+", re.S)
_STRING = re.compile(r"'''.*?(?:'''|\Z)|\"(?:[^\"\\\n]|\\.)*\"?|'(?:[^'\\\n]|\\.)*'?", re.S)
_BARE_KEY = re.compile(r"[^\s:,{}\[\]\"']+(?:[ \t]+(?=:))?")
#: A number or word that ends at a comma, bracket or line end; HJSON takes all else as text up to the line's end.
_WORD = re.compile(r"[-+\w.]+(?=\s*(?:[,\]}\n]|#|//|/\*|\Z))")
_LINE = re.compile(r"[^\n]*")

Key = namedtuple("Key", "path line column")
Key.__doc__ = "A key as it stands in the text: its path (a tuple of texts), line and column from 1."


class _Block:
    """An object or list that is open. ``name``: the key or index now read; ``in_key``: a key comes next."""

    def __init__(self, path: tuple[str, ...], is_list: bool) -> None:
        self.path, self.is_list, self.index, self.name, self.in_key = path, is_list, 0, "", not is_list

    def inner(self) -> tuple[str, ...]:
        """The path of the value that is now read."""
        return (*self.path, str(self.index) if self.is_list else self.name)


def scan(text: str) -> tuple[list[Key], int | None]:
    """Every key in the order of the text, and where the root ends (None where it is not closed).

    A key that stands twice comes twice; keys in lists have the index in their path.
    """
    found: list[tuple[tuple[str, ...], int]] = []  # path and offset of each key
    blocks: list[_Block] = []
    at, end = 0, len(text)
    while at < end:
        gap = _GAP.match(text, at)
        at = gap.end() if gap else at
        if at >= end:
            break
        if not blocks:  # HJSON may leave out the braces of the root
            blocks.append(_Block((), text[at] == "["))
            if text[at] in "{[":
                at += 1
                continue
        block, letter = blocks[-1], text[at]
        if letter in "{[":
            if len(blocks) >= DEEPEST:
                break
            blocks.append(_Block(block.inner(), letter == "["))
            at += 1
        elif letter in "}]":
            blocks.pop()
            at += 1
            if not blocks:
                return _placed(text, found), at
        elif letter in ",:":
            _separate(block, letter)
            at += 1
        else:
            start, (name, at) = at, _token(text, at, block.in_key)
            if block.in_key:
                block.name, block.in_key = name, False
                found.append((block.inner(), start))
            else:
                block.in_key = not block.is_list  # HJSON needs no comma at a line's end
    return _placed(text, found), None


def _placed(text: str, found: list[tuple[tuple[str, ...], int]]) -> list[Key]:
    """Offsets, in the order of the text, as lines and columns."""
    keys, line, line_start, counted = [], 1, 0, 0
    for path, offset in found:
        breaks = text.count("\n", counted, offset)
        if breaks:
            line, line_start = line + breaks, text.rindex("\n", counted, offset) + 1
        counted = offset
        keys.append(Key(path, line, offset - line_start + 1))
    return keys


def _separate(block: _Block, letter: str) -> None:
    """A comma starts the next key or element; a colon ends a key."""
    if letter == "," and block.is_list:
        block.index += 1
    block.in_key = letter == "," and not block.is_list


def _token(text: str, at: int, in_key: bool) -> tuple[str, int]:
    """A string, word or quoteless text from here on, and where it ends; always at least one letter further."""
    match = _STRING.match(text, at)
    if match:
        return _unquoted(match.group()), match.end()
    match = _BARE_KEY.match(text, at) if in_key else _WORD.match(text, at) or _LINE.match(text, at)
    return (match.group().strip(), max(match.end(), at + 1)) if match else ("", at + 1)


def _unquoted(token: str) -> str:
    """The text between the quotes."""
    mark = "'''" if token.startswith("'''") else token[0]
    inner = token[len(mark) : -len(mark)] if token.endswith(mark) and len(token) > len(mark) else token[len(mark) :]
    if "\\" not in inner:
        return inner
    import json

    try:
        return str(json.loads(f'"{inner}"'))
    except ValueError:
        return inner
