"""Notebooks as one script: code cells in order, magics and shell lines left out."""

from __future__ import annotations

import json
import re

from dsaccum_helpers.job import JobError

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import Any

    Places = list[tuple[int, str]]  # for each line of the script: the line in its cell, and the cell

_SHELL = re.compile(r"^(\s*)(?:[!%?]|\w+\s*=\s*[!%]).*$|^(\s*)[\w.]+\?{1,2}$")
_OTHER_LANGUAGE = (
    *("%%bash", "%%sh", "%%!", "%%cmd", "%%script", "%%writefile", "%%file", "%%html", "%%HTML", "%%svg", "%%SVG"),
    *("%%js", "%%javascript", "%%latex", "%%markdown", "%%perl", "%%ruby", "%%sql"),
)


def notebook_source(text: str, file: str) -> tuple[str, Places]:
    """The code of a notebook and where each of its lines stands. Raises ``JobError`` for what is no notebook."""
    try:
        cells = json.loads(text)["cells"]
        sources = [_joined(cell["source"]) for cell in cells if cell.get("cell_type") == "code"]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise JobError(f"{file} is no notebook that can be read. Smallest fix: save it anew from Jupyter.") from None
    lines: list[str] = []
    places: Places = []
    for number, source in enumerate(sources, 1):
        if source.lstrip().startswith(_OTHER_LANGUAGE):
            continue
        going = False  # a shell line that a backslash continues on the next one
        for line, content in enumerate(source.removesuffix("\n").split("\n"), 1):
            magic = None if going else _SHELL.match(content)
            lines.append("" if going else f"{magic[1] or magic[2] or ''}pass" if magic else content)
            places.append((line, f"cell {number}"))
            going = bool(going or magic) and content.endswith("\\")
    return "\n".join(lines) + "\n", places


def _joined(source: Any) -> str:
    return source if isinstance(source, str) else "".join(str(line) for line in source)
