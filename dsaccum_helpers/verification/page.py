"""The proof as HTML: a fragment for notebooks, a page of its own for the command. It loads nothing from elsewhere."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dsaccum_helpers.verification.rows import Verification

PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 75rem; margin: 2rem auto; padding: 0 1rem }}
.wide {{ overflow-x: auto }} table {{ border-collapse: collapse }} caption {{ text-align: left; font-weight: bold }}
th, td {{ text-align: left; padding: 0.2rem 0.8rem 0.2rem 0; vertical-align: top }} thead th {{ white-space: nowrap }}
tbody tr {{ border-top: 1px solid #8888 }}</style></head>
<body><main><h1>dsaccum verify</h1>
{body}
</main></body></html>
"""
MEANING = (
    "distance: how far the weights end from those of the full batch in plain PyTorch; in fp32 the largest difference "
    "of a weight, in bf16 a share of the way that the weights went. allowed: what rounding explains. norm off by: the "
    "largest difference of a gradient norm, as a share."
)


def as_html(proof: Verification) -> str:
    """The verdict, the versions, what was made of a config, and the table, as a fragment."""
    parts = [f'<section aria-label="{escape(proof.summary)}">', f"<p><strong>{escape(proof.summary)}</strong></p>"]
    parts.append(f"<p>{escape(proof.measured_on)}</p>")
    for name, sentences in proof.parts.items():
        items = "".join(f"<li>{escape(sentence)}</li>" for sentence in sentences)
        parts.append(f"<h2>{escape(name)}</h2><ul>{items}</ul>")
    if proof.rows:
        parts += [_table(proof), f"<p>{escape(MEANING)}</p>"]
    return "\n".join([*parts, "</section>"])


def as_page(proof: Verification) -> str:
    """The same as a page of its own."""
    return PAGE.format(title=escape(f"dsaccum verify: {proof.summary}"), body=as_html(proof))


def _table(proof: Verification) -> str:
    heads = "".join(f"<th scope='col'>{escape(head)}</th>" for head in proof.rows[0].cells())
    lines = []
    for row in proof.rows:
        first, *rest = row.cells().values()
        cells = "".join(f"<td>{escape(text)}</td>" for text in rest)
        lines.append(f"<tr><th scope='row'>{escape(first)}</th>{cells}</tr>")
    caption = f"<caption>{escape(proof.source or 'Every combination')} against the full batch</caption>"
    # A table that is wider than the page scrolls by itself, also from the keyboard.
    start = '<div class="wide" tabindex="0" role="region" aria-label="The rows">'
    return f"{start}<table>{caption}<thead><tr>{heads}</tr></thead><tbody>{''.join(lines)}</tbody></table></div>"
