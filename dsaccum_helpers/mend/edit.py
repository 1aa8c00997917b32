"""Change one value of a JSON, HJSON or YAML text; comments, order, indentation and line ends stay as they are."""

from __future__ import annotations

import json
import re

from dsaccum_helpers.job import BATCH_KEYS
from dsaccum_helpers.mend.tree import GAP, Block, Member, Unmendable, tree

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

__all__ = ["changed"]

_SAFE_WORD = re.compile(r"(?!(?:true|false|null|yes|no|on|off|y|n)$)[a-z_][\w./-]*$", re.I)


def changed(text: str, name: str, changes: Iterable[tuple[tuple[str, ...], Any]]) -> str:
    """The text with each value set under its key path; None removes the key. Raises ``Unmendable``.

    A key that goes while one like it comes is renamed where it stands.
    """
    pending = list(changes)
    for gone, new in _renames(tree(text, name), pending):
        member = tree(text, name).find(*gone)
        if member:
            text = text[: member.start] + _key(text, member, new[-1]) + text[member.named :]
            pending.remove((gone, None))
    for path, value in pending:
        text = _change(text, name, path, value)
    return text


def _renames(root: Block, changes: list[tuple[tuple[str, ...], Any]]) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
    """Pairs of paths, gone and new, in the same block, whose keys are alike."""
    from difflib import get_close_matches

    pairs = []
    new = [path for path, value in changes if value is not None and not root.find(*path)]
    for gone in [path for path, value in changes if value is None and root.find(*path)]:
        beside = {path[-1]: path for path in new if path[:-1] == gone[:-1]}
        near = get_close_matches(gone[-1].strip().lower(), beside, n=1, cutoff=0.5)
        if near:
            pairs.append((gone, beside[near[0]]))
            new.remove(beside[near[0]])
    return pairs


def _change(text: str, name: str, path: tuple[str, ...], value: Any) -> str:
    block = tree(text, name)
    for depth, key in enumerate(path[:-1]):
        member = block.find(key)
        if member is None or member.block is None:
            if value is None:
                return text
            for inner in reversed(path[depth + 1 :]):
                value = {inner: value}
            return _put(text, name, block, member, key, value)
        block = member.block
    members = [member for member in block.members if member.key == path[-1]]
    if len(members) > (value is not None):  # keys that stand twice: the last one stays, or none where the key goes
        return _change(_removed(text, block, members[0]), name, path, value)
    return text if value is None else _put(text, name, block, members[-1] if members else None, path[-1], value)


def _put(text: str, name: str, block: Block, member: Member | None, key: str, value: Any) -> str:
    """Replace the member's value, or insert the key."""
    words = _words(value, block.flow and not name.lower().endswith((".yaml", ".yml")))
    if member is None:
        return _inserted(text, block, key, words)
    if member.block and not member.block.flow:
        raise Unmendable(f"{key} is a block of several lines")
    space = " " if text[member.value - 1 : member.value] == ":" and member.value == member.end else ""
    return text[: member.value] + space + words + text[member.end :]


def _words(value: Any, as_json: bool) -> str:
    if not as_json and isinstance(value, str) and _SAFE_WORD.match(value):
        return value
    return json.dumps(value, ensure_ascii=False)


def _key(text: str, like: Member, key: str) -> str:
    """The key, with quotes if its neighbour has them."""
    mark = text[like.start]
    return f"{mark}{key}{mark}" if mark in "\"'" else key


def _inserted(text: str, block: Block, key: str, words: str) -> str:
    """A new key after the one it belongs to: a batch key after another one, all else at the end."""
    if not block.members:
        if not block.flow:
            raise Unmendable("an empty block")
        return text[: block.start] + f'"{key}": {words}' + text[block.start :]
    near = [member for name in BATCH_KEYS for member in block.members if member.key == name and key in BATCH_KEYS]
    beside = near[-1] if near else block.members[-1]
    between = text[beside.named : beside.value]
    between = between if re.fullmatch(r"[ \t]*:[ \t]*", between) and between.strip(" \t") != between else ": "
    new = _key(text, beside, key) + between + words
    line = _line_start(text, beside)
    comma = _comma(text, beside.end) if block.flow else None
    after = beside.end if comma is None else comma + 1
    rest = re.compile(r"[ \t\r]*(?:#[^\n]*|//[^\n]*)?(?=\n|\Z)").match(text, after)
    if line is None:
        return text[: beside.end] + ", " + new + text[beside.end :]
    start = ("\r\n" if "\r\n" in text else "\n") + text[line : beside.start]
    bare = not block.flow or (comma is None and _without_commas(text, block, beside))
    if rest is None:  # more follows on the same line
        return text[: beside.end] + "," + start + new + text[beside.end :]
    end = rest.end() - (text[rest.end() - 1] == "\r")
    if comma is not None or bare:
        return text[:end] + start + new + "," * (comma is not None) + text[end:]
    return text[: beside.end] + "," + text[beside.end : end] + start + new + text[end:]


def _without_commas(text: str, block: Block, member: Member) -> bool:
    """Is this HJSON that separates by lines alone, or a text without quotes, to which a comma would belong?"""
    others = [other for other in block.members if other is not block.members[-1]]
    if others:
        return all(_comma(text, other.end) is None for other in others)
    value = text[member.value : member.end]
    return value[0] not in "\"'{[" and not re.fullmatch(r"[-+\d.eE]+|true|false|null", value)


def _line_start(text: str, member: Member) -> int | None:
    """Where the member's line starts, None where something else stands before it on the line."""
    start = text.rfind("\n", 0, member.start) + 1
    return start if not text[start : member.start].strip() else None


def _comma(text: str, at: int) -> int | None:
    """Where the comma after a value stands, None where none comes."""
    found = GAP.match(text, at)
    end = found.end() if found else at
    return end if text[end : end + 1] == "," else None


def _removed(text: str, block: Block, member: Member) -> str:
    """The text without the member, its comma, and its line where nothing else stands on it."""
    place = block.members.index(member)
    before = block.members[place - 1] if place else None
    comma = _comma(text, member.end) if block.flow else None
    end = member.end if comma is None else comma + 1
    line = _line_start(text, member)
    rest = re.compile(r"[ \t\r]*(?:#[^\n]*|//[^\n]*)?(?:\n|\Z)").match(text, end)
    cut = (member.start, end)
    if line is not None and rest:
        cut = (line, rest.end())
    elif comma is not None:
        cut = (member.start, end + len(text[end:]) - len(text[end:].lstrip(" \t")))
    text_after = text[: cut[0]] + text[cut[1] :]
    if comma is None and before and block.flow and member is block.members[-1]:
        last = _comma(text, before.end)
        if last is not None:
            gap = cut[0] if line is None and not text[last + 1 : cut[0]].strip() else last + 1
            return text_after[:last] + text_after[gap:]
    return text_after
