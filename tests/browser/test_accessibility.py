"""What axe, the accessibility checker, says of the panels in each of their states."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect

if TYPE_CHECKING:
    from tests.browser.conftest import OpenNotebook


def test_compare_panel(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook("compare.ipynb")
    panel = notebook.panel()
    assert notebook.serious_findings() == []
    panel.type("Optimizer steps", "2000")
    panel.press(panel.button("Run"))
    expect(panel.box.locator("img:visible")).to_have_count(1, timeout=60e3)
    assert notebook.serious_findings() == []  # while a run goes on
    panel.press(panel.button("Stop"))
    panel.says("Stopped", 20.0)
    assert notebook.serious_findings() == []
    panel.press(panel.button("Export"))
    panel.says("Exported to", 20.0)
    panel.type("Accumulation steps", "abc")
    expect(panel.box.get_by_role("alert")).to_have_count(1)
    assert notebook.serious_findings() == []


def test_batch_explorer(open_notebook: OpenNotebook) -> None:
    notebook = open_notebook("explorer.ipynb")
    panel = notebook.panel()
    assert notebook.serious_findings() == []
    panel.type("Accumulation steps", "3")
    expect(panel.box.get_by_role("alert")).to_have_count(1)
    assert notebook.serious_findings() == []


def test_no_words_are_cut_off(open_notebook: OpenNotebook) -> None:
    for name in ("compare.ipynb", "doctor.ipynb", "explorer.ipynb"):
        notebook = open_notebook(name)
        panel = notebook.panel()
        for width in (1280, 900):
            notebook.page.set_viewport_size({"width": width, "height": 1000})
            assert panel.clipped() == [], f"{name}, {width} pixels wide"
