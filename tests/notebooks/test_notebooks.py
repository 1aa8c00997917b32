"""Every notebook runs from top to bottom, and nbval compares what its cells print with what is saved.

nbval passes vacuously in three ways: it never compares a cell without an execution count, it skips pictures and
widgets, and a cell tagged to be ignored proves nothing. So the cells really compared are counted, twice.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import xml.etree.ElementTree
from pathlib import Path

import nbformat
import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SANITIZE = Path(__file__).with_name("sanitize.cfg")
# Notebook to the number of its pictures, and what the text of each of them says.
PICTURES = {
    "00_start_here": (1, ("matched: loss 2.3", "in 60 steps")),
    "01_three_numbers": (1, ("72 samples per optimizer step",)),
    "02_matched_or_mismatched": (2, ("matched: loss 2.3", "in 60 steps")),
    "03_why_it_is_equal": (1, ("matched: loss 2.3", "loss-divided-twice: loss 2.3", "in 60 steps")),
    "04_loop_mistakes": (0, ()),
    "05_frameworks": (0, ()),
    "06_your_own_job": (1, ("64 samples per optimizer step", "4 processes", "8 accumulation steps")),
}
IGNORED = {"nbval-ignore-output", "nbval-skip"}


def code_cells(path):
    return [
        cell for cell in nbformat.read(path, as_version=4).cells if cell.cell_type == "code" and cell.source.strip()
    ]


def problems(path):
    """What makes nbval compare less than the notebook seems to promise."""
    cells = code_cells(path)
    found = [f"cell {i} was never run" for i, cell in enumerate(cells) if cell.execution_count is None]
    found += [
        f"cell {i} has an error" for i, cell in enumerate(cells) for o in cell.outputs if o.output_type == "error"
    ]
    if [cell.execution_count for cell in cells] != list(range(1, len(cells) + 1)):
        found.append("the cells were not run once each from top to bottom")
    ignored = [cell for cell in cells if IGNORED & set(cell.metadata.get("tags", []))]
    if len(compared(cells)) < min(3, len(cells)) or len(ignored) > len(cells) / 2:
        found.append(f"{len(ignored)} of {len(cells)} cells are ignored, only {len(compared(cells))} texts compared")
    return found


def compared(cells):
    """The cells whose text output nbval compares."""
    return [
        cell
        for cell in cells
        if not IGNORED & set(cell.metadata.get("tags", []))
        and any(o.output_type == "stream" or "text/plain" in o.get("data", {}) for o in cell.outputs)
    ]


def run_nbval(path, folder):
    """Run nbval on a copy: (passed, failed, what it printed)."""
    copy = folder / path.name
    if copy != path:
        shutil.copy(path, copy)
    report = folder / "report.xml"
    process = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "--nbval", "--nbval-current-env", "--nbval-cell-timeout", "100"),
            *("--nbval-sanitize-with", str(SANITIZE), "--junitxml", str(report), "-p", "no:cacheprovider", "-q"),
            *("-c", str(folder / "none.ini"), "--rootdir", str(folder), str(copy)),
        ],
        capture_output=True,
        text=True,
        cwd=folder,
    )
    suite = xml.etree.ElementTree.parse(report).getroot().find("testsuite")
    bad = sum(int(suite.get(kind)) for kind in ("failures", "errors", "skipped"))
    return int(suite.get("tests")) - bad, bad, process.stdout + process.stderr


@pytest.fixture
def empty(tmp_path):
    (tmp_path / "none.ini").write_text("[pytest]\n")
    return tmp_path


def test_the_course_has_its_notebooks():
    assert [path.name for path in NOTEBOOKS][:3] == [
        "00_start_here.ipynb",
        "01_three_numbers.ipynb",
        "02_matched_or_mismatched.ipynb",
    ]
    assert [path.stem for path in NOTEBOOKS] == list(PICTURES)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_saved_outputs_are_complete(path):
    assert problems(path) == []


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_runs_and_prints_what_is_saved(path, empty):
    passed, bad, text = run_nbval(path, empty)
    assert bad == 0, text
    assert passed == len(code_cells(path)), "nbval did not run every code cell"


def small_notebook(folder, output):
    notebook = nbformat.v4.new_notebook()
    cell = nbformat.v4.new_code_cell("print(1 + 1)", execution_count=1)
    cell.outputs = [nbformat.v4.new_output("stream", name="stdout", text=output)]
    notebook.cells = [cell]
    path = folder / "small.ipynb"
    nbformat.write(notebook, path)
    return path


def test_a_wrong_output_fails(empty):
    assert run_nbval(small_notebook(empty, "2\n"), empty)[:2] == (1, 0)
    assert run_nbval(small_notebook(empty, "3\n"), empty)[:2] == (0, 1)


def test_a_cell_that_was_never_run_is_noticed(empty):
    path = small_notebook(empty, "2\n")
    assert problems(path) == []
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[0].execution_count, notebook.cells[0].outputs = None, []
    nbformat.write(notebook, path)
    assert "cell 0 was never run" in problems(path)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_pictures_are_real_and_described(path):
    """Each picture that is saved carries a text with numbers; the right number is there."""
    pictures = [
        output.data["text/html"]
        for cell in code_cells(path)
        for output in cell.outputs
        if "<img" in output.get("data", {}).get("text/html", "")
    ]
    number, words = PICTURES[path.stem]
    assert len(pictures) == number
    for picture in pictures:
        text = picture.split('alt="')[1].split('"')[0]
        assert [word for word in words if word not in text] == []
