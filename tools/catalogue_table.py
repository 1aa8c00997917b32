"""What is done for each entry of the catalogue, as a table: ``python -m tools.catalogue_table`` writes it into docs/.

A cell says yes, or has a number under which the reason stands why not. Nothing is written by hand: *explained* looks at
the entry's texts, *detected* at its fixtures, *reproduced*, *watched* and *mended* at what the entry says of its runs
(which the tests of real runs go through one by one), *taught* at the notebooks.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
import yaml

from dsaccum_helpers.mismatches import CATALOGUE, GROUPS, RUNNABLE, Mismatch

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "docs" / "catalogue.md"
FACES = ("explained", "detected", "reproduced", "watched", "mended", "taught")
YES = "yes"
REFUSED = "`deepspeed.initialize` refuses, so there is never an engine to watch: `dsaccum check` says it"

IN_WORDS = (
    "The mend is how the job is started, which no key or number holds: the fix says it in words, and the mended start "
    "is a near miss of the fixtures that stays silent"
)

HEAD = """\
# What is done for each mismatch

Made by `make catalogue`; a test compares it with the code. *Explained*: symptom, cause, consequence and remedy stand
in `dsaccum explain`. *Detected*: `dsaccum check` finds it in its fixtures, and stays silent on their near misses.
*Reproduced*: `dsaccum compare` makes it happen with real DeepSpeed, or a program of `dsaccum_helpers.frameworks` with
the real framework, and what was predicted is measured. *Watched*: `dsaccum watch` names it in the live run. *Mended*:
the mended run ends at the weights of the full batch in plain PyTorch; where nothing runs, the mended job is checked
again. *Taught*: a notebook shows it. That each run does what is said here is asserted for every entry in
`tests/training/test_reproductions.py` and `tests/training/test_frameworks.py`.
"""


def faces(code: str) -> dict[str, str]:
    """For each of ``FACES``: yes, or the reason why not; an empty text is a gap."""
    entry = CATALOGUE[code]
    explained = all((entry.symptom, entry.cause, entry.consequence, entry.remedy))
    reproduced = YES if code in RUNNABLE or getattr(entry, "programs", ()) else entry.not_reproduced
    return {
        "explained": YES if explained else "",
        "detected": YES if _has_fixtures(code) else "",
        "reproduced": reproduced,
        "watched": _watched(entry, reproduced),
        "mended": _mended(entry, code),
        "taught": YES if taught_in(code) else "",
    }


def _watched(entry: Mismatch, reproduced: str) -> str:
    if entry.not_watched:
        return entry.not_watched
    if entry.refused:
        return REFUSED
    return reproduced


def _mended(entry: Mismatch, code: str) -> str:
    """By running again where a run shows the entry, else by checking again what a fix of its fixtures gives."""
    if code in RUNNABLE or getattr(entry, "programs", ()):
        return YES
    return YES if any("set" in case.get("expect", {}) for case in _fixtures(code).get("found", [])) else IN_WORDS


def _has_fixtures(code: str) -> bool:
    cases = _fixtures(code)
    return bool(cases.get("found")) and len(cases.get("silent", [])) >= 2


def _fixtures(code: str) -> dict[str, Any]:
    path = ROOT / "tests" / "mismatches" / f"{code.replace('-', '_')}.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else {}


def taught_in(code: str) -> list[str]:
    """The notebooks that name the entry."""
    return [name for name, text in _notebooks().items() if f"`{code}`" in text or f'"{code}"' in text]


def _notebooks() -> dict[str, str]:
    if not _texts:
        for path in sorted((ROOT / "notebooks").glob("*.ipynb")):
            cells = nbformat.read(path, as_version=4).cells
            _texts[path.stem] = "\n".join(cell.source for cell in cells)
    return _texts


_texts: dict[str, str] = {}


def table() -> str:
    """The whole page."""
    reasons: dict[str, int] = {}
    lines = [HEAD]
    for group, codes in GROUPS.items():
        lines += [f"## {group}", "", f"| code | {' | '.join(FACES)} |", "|---" * (len(FACES) + 1) + "|"]
        for code in codes:
            cells = faces(code)
            shown = [
                text if text == YES else f"no ({reasons.setdefault(text, len(reasons) + 1)})" for text in cells.values()
            ]
            shown[-1] = ", ".join(f"[{name[:2]}](../notebooks/{name}.ipynb)" for name in taught_in(code)) or shown[-1]
            lines.append(f"| `{code}` | {' | '.join(shown)} |")
        lines.append("")
    lines += ["## Why not", "", *(f"{number}. {text.rstrip('.')}." for text, number in reasons.items())]
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    TABLE.write_text(table(), encoding="utf-8")
    sys.exit(0)
