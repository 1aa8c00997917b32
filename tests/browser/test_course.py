"""The notebooks of the course, as shipped and run from top to bottom, in the browser; and what axe says of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pytest
from playwright.sync_api import expect

if TYPE_CHECKING:
    from tests.browser.conftest import Lab, Notebook, OpenNotebook

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NAMES = sorted(path.name for path in FOLDER.glob("[0-9]*.ipynb"))
SECONDS = 100.0  # for all cells of one notebook, with the start of its kernel's first run
# These train for minutes; tests/notebooks runs all of their cells, and here those that show something are run.
LONG = ("03_why_it_is_equal.ipynb", "04_loop_mistakes.ipynb", "05_frameworks.ipynb")
patient = pytest.mark.timeout(240)  # of their waits, several may be long on a busy machine
FIRST_RUN = 60.0  # seconds; the kernel's first run imports torch and DeepSpeed


@pytest.fixture(autouse=True)
def no_kernel_is_left(lab: Lab) -> Iterator[None]:
    """Each notebook's kernel takes hundreds of megabytes."""
    yield
    lab.end_kernels()


def pictures(notebook: Notebook) -> list[dict[str, Any]]:
    """The pictures in outputs and prose that can be seen."""
    return notebook.area.evaluate(
        """area => [...area.querySelectorAll(".jp-OutputArea-output img, .jp-MarkdownOutput img")]
            .filter(one => one.getClientRects().length)
            .map(one => ({alt: one.alt || one.title, width: one.naturalWidth}))"""
    )


def check_pictures(notebook: Notebook) -> None:
    shown = pictures(notebook)
    assert [picture for picture in shown if not picture["width"]] == [], "a picture is broken"
    assert [picture for picture in shown if not re.search(r"\d", picture["alt"])] == [], "no numbers in its text"


def cells(name: str) -> list[Any]:
    return list(nbformat.read(FOLDER / name, 4).cells)


def place(name: str, words: str) -> int:
    """The one code cell with these words in it, by its place."""
    (number,) = (i for i, cell in enumerate(cells(name)) if cell.cell_type == "code" and words in cell.source)
    return number


def saved_pictures(name: str) -> int:
    """How many pictures the saved outputs have."""
    data = [output.get("data", {}) for cell in cells(name) for output in cell.get("outputs", [])]
    return sum("".join(one.get("text/html", "")).count("<img") + ("image/png" in one) for one in data)


def open_whole(open_notebook: OpenNotebook, name: str, prefix: str = "") -> Notebook:
    """The notebook, once JupyterLab has laid out all of its cells; of a long one it shows the first few at first."""
    notebook = open_notebook(f"notebooks/{prefix}{name}")
    expect(notebook.area.locator(".jp-Cell")).to_have_count(len(cells(name)), timeout=60e3)
    return notebook


def check_output(notebook: Notebook) -> None:
    """No error, nothing on the error stream, and nothing that axe calls serious."""
    expect(notebook.area.locator("[data-mime-type='application/vnd.jupyter.error']")).to_have_count(0)
    expect(notebook.area.locator("[data-mime-type='application/vnd.jupyter.stderr']")).to_have_count(0)
    assert notebook.serious_findings() == []
    check_pictures(notebook)


def test_all_notebooks_are_here() -> None:
    assert len(NAMES) >= 7
    assert set(LONG) < set(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_as_shipped(open_notebook: OpenNotebook, name: str) -> None:
    """Before anything is run, the saved outputs speak for themselves."""
    notebook = open_whole(open_notebook, name)
    expect(notebook.area.locator(".jp-OutputArea-output").first).to_be_visible()
    expect(notebook.area.locator(".jp-OutputArea-output img")).to_have_count(saved_pictures(name))
    check_pictures(notebook)
    text = notebook.area.inner_text()
    assert "Error displaying widget" not in text
    assert "Loading widget" not in text
    notebook.keep_picture(f"{Path(name).stem}-as-shipped", 3000)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in LONG])
def test_run_all(open_notebook: OpenNotebook, name: str) -> None:
    notebook = open_notebook(f"notebooks/emptied-{name}")
    notebook.run_all(SECONDS)
    notebook.keep_picture(f"{Path(name).stem}-run", 4500)
    check_output(notebook)
    expect(notebook.area.locator(".jp-OutputArea-output > .jupyter-widgets").first).to_be_visible()
    expect(notebook.area.locator(".jp-OutputArea-output img:visible").first).to_be_visible()


@patient
def test_why_it_is_equal_draws_its_picture(open_notebook: OpenNotebook) -> None:
    name = LONG[0]
    notebook = open_whole(open_notebook, name, "emptied-")
    number = place(name, 'compare("loss-divided-twice"')
    notebook.run_cell(number)
    expect(notebook.output(number)).to_contain_text("gradient x 0.25, update x 1.00", timeout=1000 * FIRST_RUN)
    number = place(name, "plots.show(comparison)")
    notebook.run_cell(number)
    # In the words of the picture: both runs, and the update that Adam makes equal.
    both = re.compile(r"matched: loss .* in \d+ steps.*loss-divided-twice: loss .* in \d+ steps")
    expect(notebook.output(number).get_by_role("img", name=both)).to_be_visible(timeout=30e3)
    check_output(notebook)


@patient
def test_loop_mistakes_asks_and_answers(open_notebook: OpenNotebook) -> None:
    name = LONG[1]
    notebook = open_whole(open_notebook, name, "emptied-")
    notebook.run_cell(place(name, "import GuessPanel"))
    panel = notebook.panel(place(name, "panel = GuessPanel("))
    panel.says("8 samples per micro-batch, accumulation steps 4, optimizer steps 12.")
    panel.type("Optimizer steps", "3")
    panel.press(panel.button("Guess and run"))
    panel.says("guarded-engine-step at ZeRO-0 on 1 process: your guess is right.", FIRST_RUN)
    expect(panel.box.get_by_role("row", name="optimizer steps 3 3 3 right")).to_be_visible()
    expect(panel.box.get_by_role("img", name="guarded-engine-step:mended: loss")).to_be_visible()
    number = place(name, 'wrong("guarded-engine-step")')
    notebook.run_cell(number)
    expect(notebook.output(number)).to_contain_text("engine.step() is guarded by a counter")
    check_output(notebook)


@patient
def test_frameworks_doctor_names_the_conflict(open_notebook: OpenNotebook) -> None:
    name = LONG[2]
    notebook = open_whole(open_notebook, name, "emptied-")
    number = place(name, "panel = DoctorPanel(")
    panel = notebook.panel(number)
    panel.press(panel.button("Check"))
    expect(panel.box.get_by_role("heading", name="accumulation-owner-conflict")).to_be_visible(timeout=30e3)
    notebook.run_cell(number + 1)
    expect(notebook.output(number + 1)).to_have_text("mismatch accumulation-owner-conflict", timeout=30e3)
    check_output(notebook)
