"""The batch explorer in the browser, by keyboard alone."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from playwright.sync_api import expect

if TYPE_CHECKING:
    from tests.browser.conftest import Notebook, Panel

NOTEBOOK = "explorer.ipynb"
TRAIN = "Train batch (samples per optimizer step)"
MICRO = "Micro-batch (samples per process)"
STEPS = "Accumulation steps"
WORLD = "World size (processes)"


def test_the_third_number_follows_and_the_picture_says_it(notebook: Notebook, panel: Panel) -> None:
    expect(panel.field(MICRO)).to_have_value("8")
    expect(panel.field(MICRO)).to_be_disabled()
    panel.type(STEPS, "8")
    expect(panel.field(MICRO)).to_have_value("4")
    alt = "64 samples per optimizer step, drawn as a grid of 2 processes (rows) by 8 accumulation steps (columns)"
    expect(panel.box.get_by_role("img", name=re.compile(re.escape(alt)))).to_be_visible()
    panel.press(panel.box.get_by_label("Let DeepSpeed derive"), "ArrowUp")
    expect(panel.field(TRAIN)).to_be_disabled()
    expect(panel.field(MICRO)).to_be_enabled()
    panel.type(MICRO, "16")
    expect(panel.field(TRAIN)).to_have_value("256")
    expect(panel.box.get_by_role("table").get_by_role("row", name="4 512 samples")).to_be_visible()
    notebook.keep_picture("explorer", 1200)
    panel.page.set_viewport_size({"width": 900, "height": 1000})
    notebook.keep_picture("explorer-900", 1300)


def test_impossible_numbers_say_why_and_a_button_mends_them(notebook: Notebook, panel: Panel) -> None:
    panel.type(STEPS, "3")
    alerts = panel.box.get_by_role("alert")
    expect(alerts).to_have_count(1)
    expect(alerts).to_contain_text("64")
    expect(alerts).to_contain_text("Smallest fix:")
    remedy = panel.box.get_by_role("button", name=re.compile("^Use ")).first
    notebook.keep_picture("explorer-impossible", 1200)
    panel.field(WORLD).focus()
    panel.page.keyboard.press("Tab")
    expect(remedy).to_be_focused()
    words = remedy.inner_text()
    panel.page.keyboard.press("Enter")
    expect(alerts).to_have_count(0)
    panel.says("samples per optimizer step =")
    expect(panel.box.get_by_role("img")).to_be_visible()
    for name, value in re.findall(r"(\w+) (\d+)", words):
        label = {"train_batch_size": TRAIN, "gradient_accumulation_steps": STEPS, "processes": WORLD}.get(name, MICRO)
        expect(panel.field(label)).to_have_value(value)


def test_bad_input_gives_one_message(panel: Panel) -> None:
    alerts = panel.box.get_by_role("alert")
    for text in ("abc", "2.5", "0", "<b>bold</b>"):
        panel.type(STEPS, text)
        expect(alerts).to_have_count(1)
        expect(alerts).to_contain_text("Smallest fix:")
        assert "Traceback" not in panel.box.inner_text()
    panel.type(STEPS, "4")
    expect(alerts).to_have_count(0)
    expect(panel.field(MICRO)).to_have_value("8")
