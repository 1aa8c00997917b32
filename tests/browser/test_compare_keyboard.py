"""Without a mouse: sliders, lists and tick boxes answer, Tab leads through, and no key reaches the notebook behind."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from dsaccum_helpers.mismatches import RUNNABLE

if TYPE_CHECKING:
    from tests.browser.conftest import Notebook, Panel

NOTEBOOK = "compare.ipynb"
LONG = "9000"  # optimizer steps: goes on until it is stopped
CELL_COMMANDS = ("a", "b", "m", "r", "y", "x", "d", "d", "Enter")  # what JupyterLab does to a cell in command mode


def test_sliders_and_fields(panel: Panel) -> None:
    panel.says("64 samples per optimizer step = 16 samples per micro-batch")
    slider = panel.slider("Accumulation steps")
    panel.press(slider, "ArrowRight")
    expect(panel.field("Accumulation steps")).to_have_value("8")
    expect(slider).to_have_attribute("aria-valuetext", "8")
    panel.says("128 samples per optimizer step")
    panel.press(slider, "Home")
    expect(panel.field("Accumulation steps")).to_have_value("1")
    panel.says("16 samples per optimizer step")
    expect(slider).to_be_focused()
    panel.type("Accumulation steps", "3")  # no stop of the slider
    panel.says("48 samples per optimizer step")
    panel.type("Processes (world size)", "2")
    panel.says("96 samples per optimizer step")


def test_lists_and_tick_boxes(panel: Panel) -> None:
    task = panel.field("Task")
    for key, chosen in (("ArrowDown", "language"), ("ArrowUp", "digits"), ("ArrowUp", "regression")):
        panel.press(task, key)
        expect(task).to_have_value(chosen)
        expect(task).to_be_focused()
    panel.says("diabetes measurements")
    panel.press(panel.field("scheduler-unit"), "Space")
    expect(panel.field("scheduler-unit")).to_be_checked()


def test_the_long_list_scrolls_in_itself(panel: Panel) -> None:
    """The list takes no more than its share, and Tab brings into view what is beyond either end of it."""
    ticks = panel.field("loss-divided-twice").locator("xpath=ancestor::*[contains(@class, 'widget-vbox')][1]")
    codes = ticks.get_by_role("checkbox")
    assert codes.count() == len(RUNNABLE)
    frame = ticks.bounding_box()
    assert frame is not None
    assert frame["height"] <= 300
    for start, key, wanted in ((codes.nth(-2), "Tab", codes.last), (codes.nth(1), "Shift+Tab", codes.first)):
        panel.press(start, key)
        expect(wanted).to_be_focused()
        box, frame = wanted.bounding_box(), ticks.bounding_box()
        assert box is not None
        assert frame is not None
        assert frame["y"] <= box["y"] <= box["y"] + box["height"] <= frame["y"] + frame["height"]
        panel.page.keyboard.press("Space")
        expect(wanted).to_be_checked()


@pytest.mark.parametrize("place", ["Task", "loss-divided-twice", "Accumulation steps, slider", "Optimizer steps"])
def test_no_key_reaches_the_notebook(notebook: Notebook, panel: Panel, place: str) -> None:
    """A learner who types the first letter of a choice must not delete the cell that holds the panel."""
    kinds = (
        "cells => cells.map(cell => [...cell.classList].filter(name => /jp-\\w+Cell|jp-mod-active/.test(name)).sort())"
    )
    before = notebook.area.locator(".jp-Cell").evaluate_all(kinds)
    target = panel.slider(place) if place.endswith("slider") else panel.field(place)
    for key in CELL_COMMANDS:
        target.focus(timeout=3000)
        panel.page.keyboard.press(key)
        assert notebook.area.locator(".jp-Cell").evaluate_all(kinds) == before, f"{key} reached the notebook"


def test_tab_leads_through_the_panel(panel: Panel) -> None:
    """From the first control to Run, on to Stop though Run is grey by then, and out again."""
    controls = panel.box.locator("input:visible:enabled, select:visible:enabled, button:visible:enabled").all()
    controls[0].focus()
    for control in controls[1:]:
        panel.page.keyboard.press("Tab")
        expect(control).to_be_focused()
    expect(panel.button("Run")).to_be_focused()
    panel.type("Optimizer steps", LONG)
    panel.press(panel.button("Run"), "Space")
    expect(panel.button("Stop")).to_be_enabled()
    expect(panel.button("Run")).to_be_disabled()
    panel.page.keyboard.press("Tab")
    expect(panel.button("Stop")).to_be_focused()
    panel.page.keyboard.press("Space")
    panel.says("Stopped", 30.0)
