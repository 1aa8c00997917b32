"""What a repair has to say, as HTML: what was mended, the mended files to keep, and the lines that differ."""

from __future__ import annotations

from base64 import b64encode
from html import escape

from dsaccum_helpers.findings.text import headline, plain
from dsaccum_helpers.mend.repair import Repair

BY_HAND = "No configuration given here can be changed for that; what to do stands in the report."


def mended(repair: Repair) -> str:
    """The fixes that were written, and each mended file with a link to keep it; the link holds the file itself."""
    if not repair.texts:
        return f"<p>{BY_HAND}</p>"
    fixes = "".join(f"<li><code>{_text(code)}</code>: {_text(fix.description)}</li>" for code, fix in repair.done)
    parts = ['<section aria-label="Mended files">', "<h3>Mended for you</h3>", f"<ul>{fixes}</ul>"]
    for name in repair.texts:
        parts.append(_link(name, repair.content(name)))
        parts.append(f'<pre tabindex="0" role="group" aria-label="{_text(name)}: lines taken out (-) and put in (+)">')
        parts.append(f"{_text(repair.diff(name))}</pre>")
    return "".join([*parts, f"<p>The mended job, checked again: {_text(headline(repair.report))}</p></section>"])


def _link(name: str, content: bytes) -> str:
    kept = name.replace("\\", "/").rsplit("/", 1)[-1]
    address = f"data:application/octet-stream;base64,{b64encode(content).decode()}"
    look = "text-decoration: underline; font-weight: bold"
    return f'<p><a style="{look}" download="{_text(kept)}" href="{address}">Download the mended {_text(kept)}</a></p>'


def _text(words: str) -> str:
    return escape(plain(words))
