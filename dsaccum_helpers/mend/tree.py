"""Where each key and value of a JSON, HJSON or YAML text begins and ends, so that one can be changed and the rest kept.

The readers know where keys stand; a change must know where values end, and what separates them.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import Any

__all__ = ["GAP", "Block", "Member", "Unmendable", "tree"]

DEEPEST = 100
GAP = re.compile(r"(?:\s|#[^\n]*|//[^\n]*|/\*.*?\*/)*", re.S)
_STRING = re.compile(r"'''.*?'''|\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'", re.S)
_BARE_KEY = re.compile(r"[^\s:,{}\[\]\"']+")
#: A number or word that ends at a separator; all other text without quotes goes on to the line's end.
_WORD = re.compile(r"[-+\w.]+(?=[ \t\r]*(?:[,\]}\n]|#|//|/\*|\Z))")
_LINE = re.compile(r"[^\n]*")


class Unmendable(Exception):
    """The text is not such that one value can be changed safely."""


class Member:
    """One key with its value: text[start:named] is the key, text[value:end] the value; ``block``: what is inside."""

    def __init__(self, key: str, start: int, named: int, value: int, end: int, block: Block | None) -> None:
        self.key, self.start, self.named = key, start, named
        self.value, self.end, self.block = value, end, block


class Block:
    """A mapping: text[start:end] lies between its braces. ``flow``: it has braces and may have commas."""

    def __init__(self, members: list[Member], start: int, end: int, flow: bool = True) -> None:
        self.members, self.start, self.end, self.flow = members, start, end, flow

    def find(self, *path: str) -> Member | None:
        """The member under a key path; the last one where a key stands twice, as both readers take it."""
        block: Block | None = self
        found = None
        for key in path:
            if block is None:
                return None
            found = next((member for member in reversed(block.members) if member.key == key), None)
            block = found.block if found else None
        return found

    def walk(self, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Member]]:
        """Every member below, with its key path."""
        for member in self.members:
            yield (*above, member.key), member
            if member.block:
                yield from member.block.walk((*above, member.key))


def tree(text: str, name: str) -> Block:
    """The root mapping of a text. Raises ``Unmendable`` where it is none that can be changed safely."""
    if text.lstrip()[:1] == "{" or name.lower().endswith((".json", ".hjson", ".json5")):
        return _Reader(text).root()
    if name.lower().endswith((".yaml", ".yml")):
        return _yaml(text)
    raise Unmendable(f"{name} is neither JSON nor YAML")


class _Reader:
    """JSON and HJSON."""

    def __init__(self, text: str) -> None:
        self.text, self.at = text, 0

    def root(self) -> Block:
        self.gap()
        closed = self.text[self.at : self.at + 1] == "{"
        self.at += closed
        return self.block(closed, 0)

    def gap(self) -> None:
        found = GAP.match(self.text, self.at)
        self.at = found.end() if found else self.at

    def block(self, closed: bool, depth: int) -> Block:
        """The members from here to the closing brace; to the end for a root without braces."""
        members: list[Member] = []
        start = self.at
        while True:
            self.gap()
            letter = self.text[self.at : self.at + 1]
            if letter == "}" if closed else not letter:
                self.at += closed
                return Block(members, start, self.at - closed)
            if letter == ",":
                self.at += 1
            else:
                members.append(self.member(depth))

    def member(self, depth: int) -> Member:
        start = self.at
        found = _STRING.match(self.text, start) or _BARE_KEY.match(self.text, start)
        if not found:
            raise Unmendable(f"no key at character {start}")
        named = self.at = found.end()
        self.gap()
        if self.text[self.at : self.at + 1] != ":":
            raise Unmendable(f"no colon after {found[0]}")
        self.at += 1
        self.gap()
        value = self.at
        block = self.value(depth)
        return Member(_unquoted(found[0]), start, named, value, self.at, block)

    def value(self, depth: int) -> Block | None:
        """Step over one value."""
        if depth > DEEPEST:
            raise Unmendable("nested too deeply")
        letter = self.text[self.at : self.at + 1]
        if letter == "{":
            self.at += 1
            return self.block(True, depth + 1)
        if letter == "[":
            self.at += 1
            self.items(depth)
            return None
        found = _STRING.match(self.text, self.at) or _WORD.match(self.text, self.at) or _LINE.match(self.text, self.at)
        if not found or not found[0].strip():
            raise Unmendable(f"no value at character {self.at}")
        self.at += len(found[0].rstrip())
        return None

    def items(self, depth: int) -> None:
        """Step over a list."""
        while True:
            self.gap()
            letter = self.text[self.at : self.at + 1]
            if letter == "]":
                self.at += 1
                return
            if letter == ",":
                self.at += 1
            else:
                self.value(depth + 1)


def _unquoted(token: str) -> str:
    import json

    if token[0] not in "\"'":
        return token
    try:
        return str(json.loads(f'"{token[1:-1]}"'))
    except ValueError:
        return token[1:-1]


def _yaml(text: str) -> Block:
    import yaml

    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except (yaml.YAMLError, RecursionError) as error:
        raise Unmendable(str(error)) from None
    if not isinstance(root, yaml.MappingNode):
        raise Unmendable("no mapping")
    return _yaml_block(root, text, 0)


def _yaml_block(node: Any, text: str, depth: int) -> Block:
    if depth > DEEPEST:
        raise Unmendable("nested too deeply")
    members = []
    for key, value in node.value:
        named, start, end = key.end_mark.index, value.start_mark.index, value.end_mark.index
        if not isinstance(key.value, str) or start < named or text[start : start + 1] in ("&", "!"):
            continue  # an alias or anchor: a change here would change another place too
        block = _yaml_block(value, text, depth + 1) if isinstance(value.value, list) and value.id == "mapping" else None
        if block and not block.flow:
            end = block.end
        elif value.id != "mapping":
            end = start + len(text[start:end].rstrip())
        members.append(Member(key.value, key.start_mark.index, named, start, end, block))
    if node.flow_style:
        return Block(members, node.start_mark.index + 1, node.end_mark.index - 1)
    return Block(members, node.start_mark.index, max((member.end for member in members), default=0), flow=False)
