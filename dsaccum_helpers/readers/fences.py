"""A question as people post it: prose with fenced blocks. Each block becomes a document of its own."""

from __future__ import annotations

import re

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from dsaccum_helpers.readers.files import Document

_FENCE = re.compile(r"^[ \t]*(```+|~~~+)[ \t]*([\w+-]*)[^\n]*\n(.*?)(?:^[ \t]*\1[`~]*[ \t]*$|\Z)", re.M | re.S)
_ENDINGS = {"json": ".json", "yaml": ".yaml", "yml": ".yaml", "python": ".py", "py": ".py", "bash": ".sh", "sh": ".sh"}


def parts(document: Document) -> list[Document]:
    """The blocks, each with the line numbers of the whole text, then the prose; the document itself without blocks."""
    blocks, prose, end = [], [], 0
    for fence in _FENCE.finditer(document.text):
        before = document.text[end : fence.start()]
        prose.append(before + "\n" * fence.group().count("\n"))
        end = fence.end()
        if fence[3].strip():
            # Blank lines in front keep the numbers; the name stays that of the file, whatever the block holds.
            text = "\n" * document.text.count("\n", 0, fence.start(3)) + fence[3]
            blocks.append(document._replace(text=text, ending=_ENDINGS.get(fence[2].lower(), "")))
    if not blocks:
        return [document]
    rest = "".join(prose) + document.text[end:]
    return [*blocks, document._replace(text=rest)] if rest.strip() else blocks
