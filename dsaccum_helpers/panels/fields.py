"""Small parts that panels are made of: labelled fields, what is typed into them, messages, tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import ipywidgets as widgets

from dsaccum_helpers.panels.number_field import NumberField

_LONGEST = 40
_WIDE = {"description_width": "190px"}
_LAYOUT = {"width": "400px"}


def number_field(label: str, value: Any, stops: Sequence[float] = (), **traits: Any) -> NumberField:
    """A slider over ``stops`` and a field for any number; what is typed is kept as text."""
    return NumberField(typed(value), label, stops, layout=_LAYOUT, **traits)


def choice_field(label: str, options: Sequence[Any], value: Any) -> widgets.Dropdown:
    """A list to choose from."""
    return widgets.Dropdown(description=label, options=options, value=value, style=_WIDE, layout=_LAYOUT)


def typed(value: Any) -> str:
    """A value as a learner would type it; nothing for ``None``."""
    try:
        return "" if value is None else str(value)[: _LONGEST + 1]
    except ValueError:  # an integer of more than 4,300 digits
        return "9" * (_LONGEST + 1)


def read(text: str) -> int | float | str:
    """What was typed: a whole number, another number, or the text itself, which no setting accepts."""
    text = text.strip()
    if len(text) > _LONGEST:
        return text[:_LONGEST] + "…"
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def message(text: str, *, wrong: bool = False) -> str:
    """A line that screen readers speak when it comes; what is wrong is set apart by a word too, not by colour alone."""
    if not text:
        return ""
    if not wrong:
        return f'<div role="status">{escape(text)}</div>'
    look = "border-left: 4px solid #D55E00; padding-left: 8px"
    return f'<div role="alert" style="{look}"><strong>Problem:</strong> {escape(text)}</div>'


def table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table with a caption, column heads and row heads."""
    cell = "padding: 2px 10px; text-align: left; vertical-align: top"
    heads = "".join(f'<th scope="col" style="{cell}">{escape(text)}</th>' for text in head)
    lines = "".join(
        f'<tr><th scope="row" style="{cell}">{escape(str(first))}</th>'
        + "".join(f'<td style="{cell}">{escape(str(one))}</td>' for one in rest)
        + "</tr>"
        for first, *rest in rows
    )
    title = f'<caption style="text-align: left; font-weight: bold">{escape(caption)}</caption>'
    return f'<table style="border-collapse: collapse; line-height: 1.4">{title}<tr>{heads}</tr>{lines}</table>'


def mimebundle(widget: widgets.Widget, text: str, **keywords: Any) -> dict[str, Any]:
    """How a panel shows itself: the widget where there is a front end for it, otherwise the text."""
    bundle: dict[str, Any] = widget._repr_mimebundle_(**keywords)
    return bundle | {"text/plain": text}
