"""Files that hold several: a question with fenced blocks, as people post it, and the cells of a notebook."""

from __future__ import annotations

import json
import os
import re

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from dsaccum_helpers.readers.files import Document

_FENCE = re.compile(r"^[ \t]*(```+|~~~+)[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]*\1[`~]*[ \t]*$|\Z)", re.M | re.S)
_ENDINGS = {"json": ".json", "yaml": ".yaml", "yml": ".yaml", "python": ".py", "py": ".py", "bash": ".sh", "sh": ".sh"}
_WRITTEN = re.compile(r"\s*%%(?:writefile|file)\s+(?:-a\s+)?[\"']?([^\s\"']+)[\"']?[ \t]*\n")
_SHELL_CELL = re.compile(r"\s*%%(?:bash|sh|!|script[ \t]+(?:ba)?sh)[^\n]*\n")
_SHELL_LINE = re.compile(r"^[ \t]*[!%](?!%)(?:(?:env|set_env)[ \t]+)?", re.M)


def blocks(document: Document) -> list[Document]:
    """The fenced blocks, each with the line numbers of the whole text, then the prose; itself without blocks."""
    found, prose, end = [], [], 0
    for fence in _FENCE.finditer(document.text):
        prose.append(document.text[end : fence.start()] + "\n" * fence.group().count("\n"))
        end = fence.end()
        if fence[3].strip():
            # Blank lines in front keep the numbers; the name stays that of the file, whatever the block holds.
            text = "\n" * document.text.count("\n", 0, fence.start(3)) + fence[3]
            found.append(document._replace(text=text, ending=_ENDINGS.get(fence[2].lower(), "")))
    rest = "".join(prose) + document.text[end:]
    return [*found, *([document._replace(text=rest)] if rest.strip() else [])] or [document]


def cells(document: Document) -> list[Document]:
    """What a notebook writes into files and what it runs in a shell, then the notebook itself; lines are the cell's."""
    found = []
    for source in _sources(document.text):
        written, shell = _WRITTEN.match(source), _SHELL_CELL.match(source)
        if written:
            ending = os.path.splitext(written[1])[1].lower()
            if ending in (".json", ".yaml", ".yml", ".sh"):
                found.append((source[written.end() :], written.end(), source, ending))
        elif shell:
            found.append((source[shell.end() :], shell.end(), source, ".sh"))
        elif _SHELL_LINE.search(source):
            kept = _commands(source)
            found.append((kept, 0, source, ".sh"))
    parts = [
        document._replace(text="\n" * source.count("\n", 0, start) + text, ending=ending)
        for text, start, source, ending in found
        if text.strip()
    ]
    return [*parts, document]


def _sources(text: str) -> list[str]:
    """The text of each code cell; none where this is no notebook."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError):
        return []
    found = values.get("cells") if isinstance(values, dict) else None
    sources = []
    for cell in found if isinstance(found, list) else []:
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            source = cell.get("source")
            sources.append("".join(map(str, source)) if isinstance(source, list) else str(source or ""))
    return sources


def _commands(source: str) -> str:
    """The lines that go to the shell, with those that continue them; all others empty."""
    kept, going = [], False
    for line in source.split("\n"):
        command = _SHELL_LINE.match(line)
        kept.append(line[command.end() :] if command else line if going else "")
        going = bool(kept[-1]) and line.rstrip().endswith("\\")
    return "\n".join(kept)
