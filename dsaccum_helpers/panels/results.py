"""What a comparison has to say beside its curves, as HTML: tables, endings, the ready configuration."""

from __future__ import annotations

from html import escape
from pathlib import Path

from dsaccum_helpers.exports import FILES, config_json
from dsaccum_helpers.mismatches import RUNNABLE
from dsaccum_helpers.panels.fields import table
from dsaccum_helpers.training.comparison import Comparison, agreement, number


def tables(comparison: Comparison) -> str:
    """Predicted beside measured; where DeepSpeed refused, its words beside ours; how every other run ended."""
    return rows_table(comparison) + refusals_table(comparison) + endings(comparison) + stories(comparison)


def rows_table(comparison: Comparison) -> str:
    """Predicted beside measured."""
    rows = [
        (row.code, row.quantity, number(row.predicted), number(row.measured), agreement(row))
        for row in comparison.rows()
    ]
    if not rows:
        return ""
    return table("Predicted beside measured", ("Run", "Quantity", "Predicted", "Measured", "Within 1 %"), rows)


def refusals_table(comparison: Comparison) -> str:
    """The engine's own words and ours, side by side."""
    rows = [(r.code, r.engine_words, r.our_words) for r in comparison.results if r.ended == "refused"]
    return table("Refused by DeepSpeed", ("Run", "What DeepSpeed says", "What it means"), rows) if rows else ""


def endings(comparison: Comparison) -> str:
    """A line for each run that neither finished nor was refused, and the log of one that failed."""
    parts = []
    for result in comparison.results:
        if result.ended in ("failed", "cancelled"):
            parts.append(f"<p><strong>{escape(result.code)}:</strong> {escape(result.sentence)}</p>")
        if result.ended == "failed" and result.log:
            parts.append(f"<details><summary>Log of the processes</summary><pre>{escape(result.log)}</pre></details>")
    return "".join(parts)


def stories(comparison: Comparison) -> str:
    """For each mismatch that was run: how it shows, why it happens, what it does, how it is mended, and the loop."""
    parts = []
    for result in comparison.results:
        entry = RUNNABLE.get(result.code)
        if entry is not None:
            words = (("How it shows", entry.symptom), ("Why", entry.cause), ("What it does", entry.consequence))
            lines = "".join(
                f"<dt>{name}</dt><dd>{escape(text)}</dd>" for name, text in (*words, ("Mend", entry.remedy))
            )
            loops = entry.loop_source(), entry.mended_source()
            loop = "".join(f"<pre>{escape(source)}</pre>" for source in loops if source)
            head = f"<summary>{escape(entry.code)}: {escape(entry.title)}</summary>"
            parts.append(f"<details>{head}<dl>{lines}</dl>{loop}</details>")
    return "".join(parts)


def exported(comparison: Comparison, folder: Path) -> str:
    """Where the files are, and the configuration of the right run."""
    names = ", ".join(FILES)
    return (
        f'<div role="status">Exported to <code>{escape(str(folder))}</code>: {names}.</div>'
        f"<details open><summary>ds_config.json of the right run (the script makes the schedule)</summary>"
        f"<pre>{escape(config_json(comparison))}</pre></details>"
    )
