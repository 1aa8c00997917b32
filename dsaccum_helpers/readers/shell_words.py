"""The words of shell text: where they end, and what they become when variables are filled in (pure)."""

from __future__ import annotations

import re
from collections import namedtuple

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["UNKNOWN", "Simple", "Words", "assignment", "simple_commands"]

#: Stands in a word for what only a running shell could fill in. A character that no text file uses.
UNKNOWN = "\ue000"

Simple = namedtuple("Simple", "words line text before heredoc target")
Simple.__doc__ = "One command as raw words, the operator before it, its here-document and where its output goes."

_BLANK = re.compile(r"(?:[ \t\f\v\xa0]+|\\\r?\n|\^\n|`\n)+")
_REDIRECTION = re.compile(r"(?:\d*(?:<<<|<<-?|>>|>&|<&|>\||<>|[<>])|&>>?)")
_OPERATOR = re.compile(r"&&|\|\|?&?|;;?&?|&|[()]")
_PLAIN = re.compile(r"[^\s'\"\\$`;&|<>()]+")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*")
_IN_QUOTES = re.compile(r'[\\"]|\$\(')
_BRACE = re.compile(r"[{}]")
_IN_PARENS = re.compile(r"[()'\"\\]")
#: How far a bracket may be from its partner.
_FAR = 8000
#: Steps that looking for partners of brackets may take in all.
_STEPS = 200_000


def assignment(word: str) -> tuple[str, str, str] | None:
    """(name, "+" or "", raw value) of a word such as ``NGPU=8`` or ``ARGS+=" -x"``; None for any other word."""
    match = _ASSIGNMENT.fullmatch(word)
    return (match[1], match[2], match[3]) if match else None


class Lexer:
    """Walks through shell text once."""

    def __init__(self, text: str, line: int, budget: list[int] | None = None) -> None:
        self.text, self.at, self.line = text, 0, line
        self.budget = budget or [_STEPS]

    def move(self, end: int) -> str:
        """Go on to ``end``; the text passed over."""
        passed = self.text[self.at : end]
        self.line += passed.count("\n")
        self.at = end
        return passed

    def balanced(self, at: int) -> int:
        """Behind the partner of the round bracket at ``at``; ``at`` + 1 where it has none."""
        depth, place, limit = 0, at, min(len(self.text), at + _FAR)
        while self.budget[0] > 0:
            self.budget[0] -= 1
            match = _IN_PARENS.search(self.text, place, limit)
            if not match:
                break
            place = match.end()
            char = match[0]
            if char == "\\":
                place += 1
            elif char in "'\"":
                end = self.text.find(char, place, limit)
                place = end + 1 if end >= 0 else place
            else:
                depth += 1 if char == "(" else -1
                if depth == 0:
                    return place
        return at + 1

    def quoted(self, at: int) -> int:
        """Behind the double quote that closes the one at ``at``; ``at`` + 1 where none does."""
        place = at + 1
        while match := _IN_QUOTES.search(self.text, place):
            if match[0] == '"':
                return match.end()
            place = match.end() + 1 if match[0] == "\\" else self.balanced(match.end() - 1)
        return at + 1

    def piece(self, at: int) -> int:
        """Behind the piece of a word that begins at ``at``."""
        char, following = self.text[at], self.text[at + 1 : at + 2]
        if char == "\\":
            return at + 2
        if char == "'" or (char == "$" and following == "'"):
            end = self.text.find("'", at + (1 if char == "'" else 2))
            return end + 1 if end >= 0 else at + 1
        if char == '"':
            return self.quoted(at)
        if char == "`":
            end = self.text.find("`", at + 1, at + _FAR)
            return end + 1 if end >= 0 else at + 1
        if char == "$" and following == "(":
            return self.balanced(at + 1)
        if char == "$" and following == "{":
            return brace_end(self.text, at + 1)
        match = _PLAIN.match(self.text, at)
        return match.end() if match else at + 1

    def word(self) -> str:
        """The raw word that begins here, quotes and all."""
        end, text = self.at, self.text
        while end < len(text):
            char = text[end]
            if char == "(" and end > self.at and text[end - 1] == "=":
                end = self.balanced(end)
            elif char in " \t\n\f\v\r;&|<>()":
                break
            else:
                end = min(self.piece(end), len(text))
        return self.move(max(end, self.at + 1))

    def heredoc(self, mark: str, dash: bool) -> str:
        """The lines up to the mark; the lexer stands behind the mark."""
        match = re.compile(rf"^{'[ ]*' if dash else ''}{re.escape(mark)}[ ]*$", re.MULTILINE).search(self.text, self.at)
        body = self.text[self.at : match.start()] if match else self.text[self.at :]
        self.move(match.end() if match else len(self.text))
        return body


def brace_end(text: str, at: int) -> int:
    """Behind the partner of the curly bracket at ``at``; ``at`` + 1 where it has none."""
    depth = 0
    for match in _BRACE.finditer(text, at, at + 300):
        depth += 1 if match[0] == "{" else -1
        if depth == 0:
            return match.end()
    return at + 1


def simple_commands(text: str, line: int = 1) -> Iterator[Simple]:
    """The simple commands of a script: raw words between the operators, comments and here-documents set aside."""
    lexer = Lexer(text.replace("\r\n", "\n").replace("\r", "\n").replace("\t", " "), line)
    state = _Pending()
    while lexer.at < len(lexer.text):
        char = lexer.text[lexer.at]
        if char == "\n":
            lexer.move(lexer.at + 1)
            state.documents(lexer)
            yield from state.done()
            state = _Pending("\n")
        elif blank := _BLANK.match(lexer.text, lexer.at):
            lexer.move(blank.end())
        elif char == "#":
            end = lexer.text.find("\n", lexer.at)
            lexer.move(end if end >= 0 else len(lexer.text))
        elif redirection := _REDIRECTION.match(lexer.text, lexer.at):
            lexer.move(redirection.end())
            state.redirect(redirection[0], lexer)
        elif operator := _OPERATOR.match(lexer.text, lexer.at):
            lexer.move(operator.end())
            if not state.marks:  # else its here-document follows on the next line
                yield from state.done()
                state = _Pending(operator[0])
        elif char.isspace():
            lexer.move(lexer.at + 1)
        else:
            state.add(lexer)
    yield from state.done()


class _Pending:
    """The command that is being put together."""

    def __init__(self, before: str = "") -> None:
        self.words: list[str] = []
        self.line, self.before = 0, before
        self.marks: list[tuple[str, bool]] = []
        self.heredoc: str | None = None
        self.target: str | None = None

    def add(self, lexer: Lexer) -> None:
        """One more word."""
        self.line = self.line or lexer.line
        self.words.append(lexer.word())

    def redirect(self, sign: str, lexer: Lexer) -> None:
        """Take the word that belongs to a redirection."""
        if blank := _BLANK.match(lexer.text, lexer.at):
            lexer.move(blank.end())
        if lexer.at >= len(lexer.text) or lexer.text[lexer.at] in "\n;&|<>()":
            return
        word = lexer.word()
        if "<<" in sign and sign != "<<<":
            self.marks.append((word.strip("'\"\\"), sign.endswith("-")))
        elif sign in (">", ">>", "1>"):
            self.target = word

    def documents(self, lexer: Lexer) -> None:
        """Read the here-documents that this line has announced."""
        for mark, dash in self.marks:
            if mark:
                self.heredoc = lexer.heredoc(mark, dash)
        self.marks = []

    def done(self) -> Iterator[Simple]:
        """The command that is now complete, if there is one."""
        if self.words:
            yield Simple(self.words, self.line, " ".join(self.words), self.before, self.heredoc, self.target)


class Words:
    """Fills variables into raw words."""

    def __init__(self, lookup: Callable[[str], str | None] | None = None) -> None:
        self.variables: dict[str, str | list[str]] = {}
        self.lookup = lookup
        self.budget = [_STEPS]

    def expand(self, raw: str, split: bool = True) -> list[str]:
        """The fields that a raw word becomes; ``split`` is false on the right of an assignment."""
        from dsaccum_helpers.readers.shell_expansion import expand

        return expand(raw, self, split)

    def array(self, raw: str) -> list[str]:
        """The elements between the brackets of ``ARGS=( ... )``."""
        return [field for one in simple_commands(raw) for word in one.words for field in self.expand(word)]

    def value(self, name: str) -> str | list[str] | None:
        """What a variable holds, None where nobody has set it."""
        if name in self.variables:
            return self.variables[name]
        return self.lookup(name) if self.lookup else None
