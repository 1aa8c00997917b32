"""Write the table of ``docs/frameworks.md`` anew from real runs: ``python -m tools.make_framework_table``."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from dsaccum_helpers.frameworks import FrameworkRun, ProgramResult, Shown, check_arguments, run_program
from dsaccum_helpers.mismatches import CATALOGUE

OUT = Path(__file__).resolve().parents[1] / "docs" / "frameworks.md"
BEGIN, END = "<!-- framework table: begin -->\n", "<!-- framework table: end -->"
NAMES = {"accelerate_loop": "Accelerate", "transformers_trainer": "Trainer", "lightning_module": "Lightning"}
HEAD = "| framework | setting | what happens | steps | first gradient norm | `dsaccum watch` | `dsaccum check` |"


def table(train: Callable[[FrameworkRun], ProgramResult]) -> str:
    """All wrong settings of the catalogue as a Markdown table; the runs come from ``train``."""
    rows = [_row(shown, train(shown.wrong)) for entry in CATALOGUE.values() for shown in getattr(entry, "programs", ())]
    return "\n".join([HEAD, "|---" * 7 + "|", *rows]) + "\n"


def _row(shown: Shown, result: ProgramResult) -> str:
    said = f"“{shown.words}”" if shown.words else "silent"
    ratio = "" if result.norm_ratio is None else f"{result.norm_ratio:.3f}"
    seen = ", ".join(f"`{code}`" for code in result.codes) or ("nothing" if result.micro_batches else "no engine")
    how = f"{result.ended}: {said}"
    found = check_arguments(shown.wrong).codes[0]
    cells = (NAMES[shown.wrong.program], shown.what, how, result.optimizer_steps, ratio, seen, f"`{found}`")
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Train everything and put the table between its markers."""
    text = OUT.read_text(encoding="utf-8")
    pattern = re.escape(BEGIN) + ".*?" + re.escape(END)
    made = f"{BEGIN}{table(run_program)}{END}"
    OUT.write_text(re.sub(pattern, lambda _: made, text, flags=re.DOTALL), encoding="utf-8")


if __name__ == "__main__":
    main()
