"""Run every notebook from top to bottom and save it with its outputs: ``python -m tools.run_notebooks [NAME ...]``."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import nbformat
from nbclient import NotebookClient

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def run(path: Path) -> float:
    """Run one notebook and write it back; returns the seconds it took. An error in a cell is raised."""
    notebook = nbformat.read(path, as_version=4)
    began = time.monotonic()
    # Widget state would store the live picture a second time; the still picture below each panel shows the same.
    client = NotebookClient(notebook, timeout=120, kernel_name="python3", store_widget_state=False)
    client.execute(cwd=str(path.parent))
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)  # the time of day, different in every run
    notebook.metadata["language_info"] = {"name": "python"}
    nbformat.validate(notebook)
    nbformat.write(notebook, path)
    return time.monotonic() - began


def main(names: list[str]) -> int:
    """Run the named notebooks, or all."""
    for path in [NOTEBOOKS / name for name in names] or sorted(NOTEBOOKS.glob("*.ipynb")):
        print(f"{path.name}: {run(path):.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
