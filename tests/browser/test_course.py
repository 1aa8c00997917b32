"""The notebooks of the course, as shipped and run from top to bottom, in the browser; and what axe says of them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

if TYPE_CHECKING:
    from tests.browser.conftest import Lab, Notebook, OpenNotebook

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
NAMES = sorted(path.name for path in FOLDER.glob("[0-9]*.ipynb"))
SECONDS = 100.0  # for all cells of one notebook, with the start of its kernel's first run
each = pytest.mark.parametrize("name", NAMES)


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


def test_three_notebooks_or_more() -> None:
    assert len(NAMES) >= 3


@each
def test_as_shipped(open_notebook: OpenNotebook, name: str) -> None:
    """Before anything is run, the saved outputs speak for themselves."""
    notebook = open_notebook(f"notebooks/{name}")
    expect(notebook.area.locator(".jp-OutputArea-output").first).to_be_visible()
    check_pictures(notebook)
    text = notebook.area.inner_text()
    assert "Error displaying widget" not in text
    assert "Loading widget" not in text
    notebook.keep_picture(f"{Path(name).stem}-as-shipped", 3000)


@each
def test_run_all(open_notebook: OpenNotebook, name: str) -> None:
    notebook = open_notebook(f"notebooks/emptied-{name}")
    notebook.run_all(SECONDS)
    expect(notebook.area.locator("[data-mime-type='application/vnd.jupyter.error']")).to_have_count(0)
    expect(notebook.area.locator("[data-mime-type='application/vnd.jupyter.stderr']")).to_have_count(0)
    notebook.keep_picture(f"{Path(name).stem}-run", 4500)
    assert notebook.serious_findings() == []
    check_pictures(notebook)
    expect(notebook.area.locator(".jp-OutputArea-output > .jupyter-widgets").first).to_be_visible()
    expect(notebook.area.locator(".jp-OutputArea-output img:visible").first).to_be_visible()
