"""Variables, quotes and arithmetic of raw shell words (pure; nothing is run, and no Python is evaluated)."""

from __future__ import annotations

import re

from dsaccum_helpers.readers.shell_words import UNKNOWN, Lexer, Words, brace_end

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["arithmetic", "expand"]

_NAME = re.compile(r"\$(?:env:)?([A-Za-z_]\w*)")
_SPECIAL = re.compile(r"\$[0-9@*#?$!-]")
_WINDOWS = re.compile(r"%([A-Za-z_]\w*)%")
_INSIDE = re.compile(r"([#!]?)([A-Za-z_]\w*|[0-9]+|[@*])(?:\[([^\]]*)\])?(.*)", re.DOTALL)
_NUMBER = re.compile(r"0[xX][0-9a-fA-F]+|[0-9]+")
_SIGN = re.compile(r"\*\*|//|<<|>>|[-+*/%()]")
_DEEPEST = 12
_LONGEST = 100_000


class _Fields:
    """The fields of one word as they grow."""

    def __init__(self, split: bool) -> None:
        self.done: list[str] = []
        self.open = ""
        self.started = False
        self.split = split

    def literal(self, text: str) -> None:
        """Text that is never split."""
        self.open += text
        self.started = True

    def value(self, text: str) -> None:
        """What an unquoted variable holds: split at blanks."""
        if not self.split:
            self.literal(text)
            return
        parts = text.split()
        if not parts:
            return
        if text[0].isspace():
            self.close()
        for part in parts[:-1]:
            self.literal(part)
            self.close()
        self.literal(parts[-1])
        if text[-1].isspace():
            self.close()

    def close(self) -> None:
        """End of a field."""
        if self.started:
            self.done.append(self.open[:_LONGEST])
        self.open, self.started = "", False


def expand(raw: str, words: Words, split: bool = True, deep: int = 0) -> list[str]:
    """The fields that a raw word becomes."""
    fields, at = _Fields(split), 0
    while at < len(raw):
        char = raw[at]
        end = Lexer(raw, 1, words.budget).piece(at) if char in "\\'\"`$" else _plain_end(raw, at)
        end = min(end, len(raw))
        piece = raw[at:end]
        if char == "\\":
            fields.literal("" if piece[1:] == "\n" else piece[1:] or "\\")
        elif char == "'" and len(piece) > 1:
            fields.literal(piece[1:-1])
        elif char == '"' and len(piece) > 1:
            _in_quotes(piece[1:-1], words, fields, deep)
        elif char in "$`":
            end = _variable(raw, at, end, words, fields, deep)
        elif "%" in piece:
            fields.literal(_WINDOWS.sub(lambda match: _text(words.value(match[1]), match[0]), piece))
        else:
            fields.literal(piece)
        at = end
    fields.close()
    return fields.done


def _plain_end(raw: str, at: int) -> int:
    match = re.compile(r"[^\\'\"`$]+").match(raw, at)
    return match.end() if match else at + 1


def _in_quotes(inner: str, words: Words, fields: _Fields, deep: int) -> None:
    """The text between double quotes: variables are filled in and not split, but for ``"${ARGS[@]}"``."""
    whole = re.fullmatch(r"\$\{(\w+)\[@\]\}", inner)
    if whole and isinstance(elements := words.value(whole[1]), list):
        for element in elements:
            fields.literal(element)
            fields.close()
        return
    fields.started = True
    at = 0
    while at < len(inner):
        char = inner[at]
        if char == "\\":
            following = inner[at + 1 : at + 2]
            fields.literal(
                following if following in ('"', "$", "`", "\\") else "" if following == "\n" else inner[at : at + 2]
            )
            at += 2
        elif char in "$`":
            end = min(Lexer(inner, 1, words.budget).piece(at), len(inner)) if inner[at : at + 2] != "$'" else at + 1
            quoted = _Fields(split=False)
            at = _variable(inner, at, end, words, quoted, deep)
            fields.literal(quoted.open)
        else:
            match = re.compile(r"[^\\$`]+").match(inner, at)
            end = match.end() if match else at + 1
            fields.literal(_WINDOWS.sub(lambda found: _text(words.value(found[1]), found[0]), inner[at:end]))
            at = end


def _variable(raw: str, at: int, end: int, words: Words, fields: _Fields, deep: int) -> int:
    """Fill in what begins with ``$`` or a back quote at ``at``; where it ends."""
    piece = raw[at:end]
    if deep > _DEEPEST:
        fields.literal(UNKNOWN)
    elif piece.startswith("$((") and piece.endswith("))"):
        result = arithmetic(" ".join(expand(piece[3:-2], words, False, deep + 1)), words)
        fields.literal(UNKNOWN if result is None else str(result))
    elif piece.startswith("$(") and len(piece) > 2:
        fields.value(_substitution(piece[2:-1], words, deep))
    elif piece.startswith("`") and len(piece) > 1:
        fields.value(_substitution(piece[1:-1], words, deep))
    elif piece.startswith("${"):
        end = brace_end(raw, at + 1)
        _braces(raw[at + 2 : end - 1], words, fields, deep)
    elif piece.startswith("$'") and len(piece) > 2:
        fields.literal(piece[2:-1].replace("\\n", "\n").replace("\\t", "\t"))
    elif match := _NAME.match(raw, at):
        fields.value(_text(words.value(match[1])))
        end = match.end()
    elif match := _SPECIAL.match(raw, at):
        fields.literal(UNKNOWN)
        end = match.end()
    else:
        fields.literal(raw[at])
        end = at + 1
    return end


def _text(value: str | list[str] | None, otherwise: str = UNKNOWN) -> str:
    """A variable's value as one text; the first element of an array."""
    if isinstance(value, list):
        return value[0] if value else ""
    return otherwise if value is None else value


def _braces(inner: str, words: Words, fields: _Fields, deep: int) -> None:
    """``${NAME}``, ``${NAME:-8}``, ``${#ARRAY[@]}`` and their kin."""
    match = _INSIDE.fullmatch(inner)
    if not match:
        fields.literal(UNKNOWN)
        return
    length, name, index, rest = match.groups()
    value = words.value(name) if not name.isdigit() and name not in "@*" else None
    if length == "#" and not rest:
        fields.literal(_length(value, index))
        return
    if index in ("@", "*") and isinstance(value, list) and not rest:
        fields.value(" ".join(value))
        return
    if index is not None and isinstance(value, list):
        place = arithmetic(index, words)
        value = value[place] if place is not None and -len(value) <= place < len(value) else None
    text = value[0] if isinstance(value, list) and value else value if isinstance(value, str) else None
    sign = re.match(r":?[-=+?]", rest)
    if sign:
        _with_default(sign[0], rest[sign.end() :], name, text, words, fields, deep)
    elif rest or length or text is None:
        fields.literal(UNKNOWN)
    else:
        fields.value(text)


def _length(value: str | list[str] | None, index: str | None) -> str:
    """``${#NAME}``: the number of characters, or of elements."""
    if value is None or UNKNOWN in value or (isinstance(value, list) and any(UNKNOWN in one for one in value)):
        return UNKNOWN
    return str(len(value) if isinstance(value, list) == (index in ("@", "*")) else len(value[0]) if value else 0)


def _with_default(
    sign: str, default: str, name: str, text: str | None, words: Words, fields: _Fields, deep: int
) -> None:
    """``:-`` gives the default where nothing is known, ``:=`` keeps it, ``:+`` stands in for a value."""
    missing = text is None or (sign[0] == ":" and text == "")
    if "+" in sign:
        for field in [] if missing else expand(default, words, True, deep + 1):
            fields.value(field)
        return
    if missing and "?" not in sign:
        text = " ".join(expand(default, words, False, deep + 1))
        if "=" in sign:
            words.variables[name] = text
    fields.value(UNKNOWN if text is None else text)


def _substitution(command: str, words: Words, deep: int) -> str:
    """What ``$(command)`` prints, where that needs no running: echo, expr, and counting the commas of a list."""
    counted = re.fullmatch(r"\s*(?:echo|printf)\s+(?:-n\s+|%s\s+)?(\S+)\s*\|\s*(.*?)\s*", command, re.DOTALL)
    if counted:
        listed = "".join(expand(counted[1], words, False, deep + 1))
        if UNKNOWN not in listed and re.search(r"wc -l|wc -w|print NF", counted[2]) and re.search("[,:]", counted[2]):
            lines = listed.count(",") + 1
            only_commas = re.search(r"grep -o|tr -[cd]", counted[2])
            return str(lines - 1 if only_commas else lines) if listed else "0"
        return UNKNOWN
    document = re.fullmatch(r"\s*cat\s*<<-?\s*['\"]?(\w+)['\"]?\n(.*)\n\s*\1\s*", command, re.DOTALL)
    if document:
        return " ".join(expand(f'"{document[2]}"', words, False, deep + 1))
    said = re.fullmatch(r"\s*echo\s+([^|;&<>]*)", command)
    if said:
        return " ".join(field for word in said[1].split() for field in expand(word, words, True, deep + 1))
    reckoned = re.fullmatch(r"\s*expr\s+([^|;&<>]*)", command)
    if reckoned:
        result = arithmetic(" ".join(expand(reckoned[1], words, False, deep + 1)), words)
        return UNKNOWN if result is None else str(result)
    return UNKNOWN


def arithmetic(text: str, words: Words) -> int | None:
    """The value of shell arithmetic over whole numbers and variables; None where it cannot be known."""
    tokens: list[str] = []
    at = 0
    text = text.strip()
    while at < len(text):
        match = (
            _NUMBER.match(text, at) or re.compile(r"\$?\{?([A-Za-z_]\w*)\}?").match(text, at) or _SIGN.match(text, at)
        )
        if not match or len(tokens) > 60:
            return None
        tokens.append(match[0])
        at = match.end()
        while at < len(text) and text[at] in " \t\n\"'\\":
            at += 1
    try:
        value, rest = _sum(tokens, words, 0)
    except (ValueError, IndexError, ZeroDivisionError, OverflowError, RecursionError):
        return None
    return value if not rest and abs(value) < 10**15 else None


def _sum(tokens: Sequence[str], words: Words, deep: int) -> tuple[int, Sequence[str]]:
    """Terms joined by + and -."""
    value, tokens = _product(tokens, words, deep)
    while tokens and tokens[0] in "+-":
        other, rest = _product(tokens[1:], words, deep)
        value = value + other if tokens[0] == "+" else value - other
        tokens = rest
    return value, tokens


def _product(tokens: Sequence[str], words: Words, deep: int) -> tuple[int, Sequence[str]]:
    """Factors joined by ``*``, ``/`` (which drops the rest, as the shell does) and ``%``."""
    value, tokens = _factor(tokens, words, deep)
    while tokens and tokens[0] in ("*", "/", "%", "**"):
        other, rest = _factor(tokens[1:], words, deep)
        if tokens[0] == "**":
            value = value ** min(other, 60)
        elif tokens[0] == "*":
            value *= other
        else:
            whole = abs(value) // abs(other) * (1 if value * other >= 0 else -1)
            value = whole if tokens[0] == "/" else value - whole * other
        tokens = rest
    return value, tokens


def _factor(tokens: Sequence[str], words: Words, deep: int) -> tuple[int, Sequence[str]]:
    """A number, a variable, a sign or a bracket."""
    first = tokens[0]
    if deep > _DEEPEST:
        raise ValueError(first)
    if first == "(":
        value, rest = _sum(tokens[1:], words, deep + 1)
        if rest[0] != ")":
            raise ValueError(first)
        return value, rest[1:]
    if first in "+-":
        value, rest = _factor(tokens[1:], words, deep + 1)
        return (-value if first == "-" else value), rest
    if first[0].isdigit():
        return int(first, 0) if first.lower().startswith("0x") else int(first), tokens[1:]
    held = words.value(first.strip("${}"))
    if not isinstance(held, str):
        raise ValueError(first)
    inner = arithmetic(held, words) if not held.lstrip("-").isdigit() and deep < 3 and held != first else None
    return (inner if inner is not None else int(held)), tokens[1:]
