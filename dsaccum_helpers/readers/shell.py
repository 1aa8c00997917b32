"""Shell text in, simple commands out, with variables and arithmetic filled in (pure; nothing is ever run).

What only a running shell could know, ``$(nproc)`` or a variable that is set elsewhere, stays ``UNKNOWN``.
"""

from __future__ import annotations

import re
from collections import namedtuple

from dsaccum_helpers.readers.shell_words import UNKNOWN, Words, assignment, simple_commands

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from dsaccum_helpers.readers.shell_words import Simple

__all__ = ["UNKNOWN", "Command", "Shell"]

Command = namedtuple("Command", "words environment line text heredoc target")
Command.__doc__ = """One simple command: its words, the variables set for it alone, the line (from 1), its text as
written, the here-document fed to it and the file its output goes to (None without)."""

_OPEN = {"if", "for", "while", "until", "case", "select"}
_CLOSE = {"fi", "done", "esac"}
_KEYWORDS = _OPEN | _CLOSE | {"then", "do", "else", "elif", "{", "}", "!", "time", "function", "in"}
_EXPORTING = {"export", "declare", "typeset", "local", "readonly", "set", "setenv"}
_POWERSHELL = re.compile(r"^\$env:(\w+)$", re.IGNORECASE)
_EMPTY = re.compile(r"-z\b|! -n\b|==? ?(?:\"\"|'')(?:\s|$)")
_DEEPEST = 6


class Shell:
    """The variables of one script while its commands are read in order.

    ``lookup``: what is known of a variable that the script does not set itself (another file, the batch system).
    """

    def __init__(self, lookup: Callable[[str], str | None] | None = None) -> None:
        self.words = Words(lookup)
        self.variables = self.words.variables
        #: Exported variables: name to (value, line).
        self.exported: dict[str, tuple[str, int]] = {}
        self._marked: dict[str, int] = {}
        self._depth = 0
        self._test = ""

    def commands(self, text: str, line: int = 1, deep: int = 0) -> Iterator[Command]:
        """The simple commands of a text in the order written; assignments and exports are carried out."""
        tested = False
        for simple in simple_commands(text, line):
            raw = self._without_keywords(simple)
            before: dict[str, str] = {}
            guarded = self._depth > 0 or (tested and simple.before in ("&&", "||"))
            while raw and (parts := assignment(raw[0])):
                if len(raw) == 1 and not before:
                    self._assign(*parts, guarded)
                else:
                    value = self.words.expand(parts[2])
                    before[parts[0]] = value[0] if len(value) == 1 else " ".join(value)
                raw = raw[1:]
            if not raw:
                for name, value_ in before.items():
                    self._assign(name, "", "'" + value_.replace("'", "") + "'", guarded)
                continue
            tested = raw[0] in ("[", "[[", "test", "((")
            if tested:
                self._test = " ".join(raw)
            if self._is_setting(raw, simple, guarded):
                continue
            words = [field for word in raw for field in self.words.expand(word)]
            if words:
                target = self.words.expand(simple.target)[0:1] if simple.target else []
                given = (words, before, simple.line, simple.text, simple.heredoc, target[0] if target else None)
                yield from self._nested(Command(*given), deep)

    def _nested(self, command: Command, deep: int) -> Iterator[Command]:
        """The command, or the commands of the script text that it hands to another shell."""
        words = command.words
        inner = None
        if words[0] == "eval":
            inner = " ".join(words[1:])
        elif words[0].split("/")[-1] in ("bash", "sh", "zsh"):
            if command.heredoc and len([w for w in words if not w.startswith("-")]) == 1:
                inner = command.heredoc
            for place, word in enumerate(words[1:-1], 1):
                if re.fullmatch(r"-[a-z]*c", word):
                    inner = words[place + 1]
                    break
        if inner is None or deep >= _DEEPEST:
            yield command
            return
        for one in self.commands(inner, command.line, deep + 1):
            yield one._replace(environment={**command.environment, **one.environment})

    def nested(self, script: str, command: Command) -> list[Command]:
        """The commands of ``bash -c 'script'`` behind another launcher."""
        return list(self.commands(script, command.line, 1))

    def _without_keywords(self, simple: Simple) -> list[str]:
        """The raw words behind ``then``, ``do``, ``{`` ...; counts how deep in conditions and loops we are."""
        raw = list(simple.words)
        while raw and raw[0] in _KEYWORDS:
            word = raw.pop(0)
            if word in ("for", "select") and raw:
                values = [field for one in raw[2:] for field in self.words.expand(one)]
                self.variables[raw[0]] = values[0] if len(values) == 1 else UNKNOWN
                raw = []
            if word in _OPEN:
                self._depth += 1
            elif word in _CLOSE:
                self._depth = max(0, self._depth - 1)
            elif word == "else":
                self._test = ""
            if word in ("case", "function"):
                raw = []
        return raw

    def _is_setting(self, raw: Sequence[str], simple: Simple, guarded: bool) -> bool:
        """Carries out ``export A=1``, ``set A=1`` of Windows, ``$env:A = 1``, ``let`` and ``: ${A:=1}``."""
        shell = _POWERSHELL.match(raw[0].split("=")[0])
        if shell:
            value = raw[0].partition("=")[2] or (raw[2] if len(raw) > 2 else "")
            self._assign(shell[1], "", value, guarded)
            self._export(shell[1], simple.line)
            return True
        if raw[0] in _EXPORTING:
            names = [word for word in raw[1:] if not word.startswith("-")]
            if raw[0] == "setenv" and len(names) == 2:
                names = [f"{names[0]}={names[1]}"]
            for word in names:
                if parts := assignment(word):
                    self._assign(*parts, guarded)
                    word = parts[0]
                if raw[0] in ("export", "set", "setenv") or "-x" in raw:
                    self._export(word, simple.line)
            return True
        if raw[0] == "let" and len(raw) > 1 and (parts := assignment(raw[1].strip("'\""))):
            self._assign(parts[0], "", f"$(({parts[2]}))", guarded)
            return True
        if raw[0] == "read" and simple.heredoc is not None:
            self.variables[raw[-1]] = " ".join(self.words.expand(f'"{simple.heredoc}"', split=False))
            return True
        if raw[0] == "unset":
            for name in raw[1:]:
                self.variables.pop(name, None)
                self.exported.pop(name, None)
                self._marked.pop(name, None)
            return True
        if raw[0] == ":":
            for word in raw[1:]:
                self.words.expand(word)
            return True
        return False

    def _export(self, name: str, line: int) -> None:
        """Remember a variable that the program will see."""
        value = self.variables.get(name)
        self._marked[name] = line
        if isinstance(value, str):
            self.exported[name] = (value, line)

    def _assign(self, name: str, plus: str, raw: str, guarded: bool) -> None:
        """One assignment; under a condition a second value makes the variable unknown."""
        old = self.variables.get(name)
        value: str | list[str]
        if raw.startswith("(") and raw.endswith(")"):
            value = self.words.array(raw[1:-1])
            if plus and old is not None:
                value = [*(old if isinstance(old, list) else [old]), *value]
        else:
            value = " ".join(self.words.expand(raw, split=False))
            if plus and isinstance(old, str):
                value = old + value
        if guarded and not plus and old is not None and old != value:
            if not _EMPTY.search(self._test):
                value = UNKNOWN
            elif UNKNOWN not in old:
                return
        self.variables[name] = value
        if name in self._marked and isinstance(value, str):
            self.exported[name] = (value, self._marked[name])
