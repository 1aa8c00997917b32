"""A report as HTML: a fragment for notebooks, a page of its own for the command. It loads nothing from elsewhere."""

from __future__ import annotations

from dsaccum_helpers.findings.text import NUMBERS, causes_first, headline, place, plain, short

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable

    from dsaccum_helpers.findings import Finding, Report

__all__ = ["as_html", "as_page"]

# Every colour also stands there as a word, and keeps a contrast of 4.5 on white and on a dark notebook's ground alike.
COLOURS = {"error": "#c4314b", "warning": "#9a6700", "note": "#0969a8"}
PAGE = """<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem }}
table {{ border-collapse: collapse }} th, td {{ text-align: left; padding: 0.2rem 0.8rem 0.2rem 0 }}
code {{ font-size: 0.95em }}</style></head>
<body><main><h1>dsaccum check</h1>
{body}
</main></body></html>
"""


def as_html(report: Report, name: str = "") -> str:
    """One report as a fragment; ``name`` stands before the verdict."""
    title = f"{name}{headline(report)}"
    parts = [f"<section aria-label={_quoted(title)}>", f"<h2>{_text(title)}</h2>", _table(report)]
    parts += [_finding(finding) for finding in causes_first(report.findings)]
    parts += _listed("Still needed", report.missing)
    parts += _listed("Why this is right", report.reasons)
    return "\n".join(filter(None, [*parts, "</section>"]))


def as_page(reports: dict[int, Report]) -> str:
    """The reports as one page; they stand under their number of processes, 0 for the job as it is."""
    names = {size: f"{size} process{'es' * (size != 1)}: " if size else "" for size in reports}
    title = "; ".join(f"{names[size]}{headline(report)}" for size, report in reports.items())
    body = "\n".join(as_html(report, names[size]) for size, report in reports.items())
    return PAGE.format(title=_text(f"dsaccum: {title}"), body=body)


def _text(words: object) -> str:
    from html import escape

    return escape(plain(str(words)))


def _quoted(words: str) -> str:
    return f'"{_text(words)}"'


def _table(report: Report) -> str:
    rows = [
        f"<tr><th scope='row'><code>{name}</code></th><td>{'?' if value is None else _text(value)}</td>"
        f"<td>{_text(report.sources.get(name, ''))}</td></tr>"
        for name in NUMBERS
        if (value := report.batch.get(name)) is not None or name in report.sources
    ]
    if not rows:
        return ""
    head = "<tr><th scope='col'>number</th><th scope='col'>value</th><th scope='col'>read in</th></tr>"
    caption = f"<caption>What the job will use ({_text(report.framework)})</caption>"
    return f"<table>{caption}<thead>{head}</thead><tbody>{''.join(rows)}</tbody></table>"


def _finding(finding: Finding) -> str:
    colour, indent = COLOURS[finding.severity], 2 * bool(finding.because_of)
    style = f"border-left: 0.25rem solid {colour}; margin: 1rem 0 1rem {indent}rem; padding-left: 0.8rem"
    heading = f"<strong>{finding.severity}</strong> <code>{_text(finding.code)}</code>: {_text(finding.title)}"
    parts = [f"<article style='{style}'>", f"<h3>{heading}</h3>"]
    if finding.because_of:
        parts.append(f"<p>Follows from <code>{_text(finding.because_of)}</code>.</p>")
    where = dict.fromkeys(filter(None, map(place, finding.where)))
    if where:
        parts.append(f"<p>At {', '.join(f'<code>{_text(one)}</code>' for one in where)}</p>")
    parts.append(f"<p>{_text(short(finding))}</p>")
    if finding.consequence:
        parts.append(f"<p>What it does: {_text(finding.consequence)}</p>")
    for number, fix in enumerate(finding.fixes):
        parts.append(f"<p><strong>{'or' if number else 'Smallest fix'}:</strong> {_text(fix.description)}</p>")
    return "\n".join([*parts, "</article>"])


def _listed(title: str, sentences: Iterable[str]) -> list[str]:
    items = "".join(f"<li>{_text(sentence)}</li>" for sentence in sentences)
    return [f"<h3>{title}</h3><ul>{items}</ul>"] if items else []
