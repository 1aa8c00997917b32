"""``dsaccum explain``: the catalogue as a list, or one entry of it."""

from __future__ import annotations

from dsaccum_helpers.job import JobError
from dsaccum_helpers.mismatches import GROUPS, find, load

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterator

    from dsaccum_helpers.findings.text import Piece
    from dsaccum_helpers.mismatches import Mismatch

__all__ = ["Explanation", "explain", "run"]

USAGE = """\
dsaccum explain          what can be wrong with batch and accumulation settings, as a list
dsaccum explain CODE     one entry: what you see, the cause, what it does to training, the fix, and its chapter
"""


class Explanation:
    """The catalogue, or one entry of it; prints as text and shows itself in a notebook.

    ``code``: the entry's code, None for the whole catalogue.
    """

    def __init__(self, code: str | None = None) -> None:
        self.code = None if code is None else find(code).code

    def pieces(self, width: int = 100) -> Iterator[Piece]:
        """The text as (text, style)."""
        return _list() if self.code is None else _entry(find(self.code), width)

    def __str__(self) -> str:
        return "".join(text for text, _ in self.pieces())

    __repr__ = __str__

    def _repr_html_(self) -> str:
        from html import escape

        if self.code is None:
            return f"<pre>{escape(str(self))}</pre>"
        entry = find(self.code)
        rows = "".join(f"<dt><strong>{name}</strong></dt><dd>{escape(words)}</dd>" for name, words in _parts(entry))
        return f"<section><h3><code>{entry.code}</code>: {escape(entry.title)}</h3><dl>{rows}</dl></section>"


def explain(code: str | None = None) -> Explanation:
    """One entry of the catalogue, or all of it as a list. Raises ``UnknownMismatchError`` for a code that is none."""
    return Explanation(code)


def run(words: list[str]) -> int:
    """The command, with the words after ``explain``; the exit status."""
    from dsaccum_helpers.commands import say
    from dsaccum_helpers.commands.answer import show_pieces, width

    if {"-h", "--help"} & {*words}:
        say(USAGE)
        return 0
    options = [word for word in words if word.startswith("-")]
    if options or len(words) > 1:
        raise JobError(f"explain takes one code, got {' '.join(words):.80}. Smallest fix: dsaccum explain CODE.")
    show_pieces(explain(*words).pieces(width()))
    return 0


def _list() -> Iterator[Piece]:
    wide = max(len(code) for group in GROUPS.values() for code in group)
    for name, group in GROUPS.items():
        yield f"{name}\n", "bold"
        for code in group:
            yield f"  {code:{wide}}", "cyan"
            yield f"  {load(code).title}\n", ""
        yield "\n", ""
    yield "More on one of them: dsaccum explain CODE\n", "dim"


def _parts(entry: Mismatch) -> list[tuple[str, str]]:
    return [
        ("What you see", entry.symptom),
        ("Cause", entry.cause),
        ("What it does", entry.consequence),
        ("Fix", entry.remedy),
        ("In the course", entry.learn),
    ]


def _entry(entry: Mismatch, width: int) -> Iterator[Piece]:
    from dsaccum_helpers.findings.text import wrapped

    yield entry.code, "bold"
    yield f": {entry.title}\n", ""
    for name, words in _parts(entry):
        yield f"\n{name}\n", "bold"
        yield from ((line, "") for line in wrapped(words, "  ", width))
    related = [*entry.explains, *entry.beside]
    if related:
        yield "\nSee also\n", "bold"
        yield from ((line, "") for line in wrapped(", ".join(related), "  ", width))
