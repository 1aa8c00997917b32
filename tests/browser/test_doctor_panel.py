"""The doctor's panel in the browser: paste, check, read, choose a fix, keep the mended file; by keyboard alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from dsaccum_helpers import check

if TYPE_CHECKING:
    from tests.browser.conftest import Notebook, Panel

NOTEBOOK = "doctor.ipynb"
PROCESSES = "Processes (GPUs in all)"
CONFIG = """{
  // for eight cards
  "train_batch_size": 64,
  "train_micro_batch_size_per_gpu": 2,
  "gradient_accumulation_steps": 4
}
"""
LAUNCH = "deepspeed --num_gpus=4 train.py --deepspeed_config ds_config.json"
SCRIPT = """import deepspeed

engine, _, loader, _ = deepspeed.initialize(model=model, training_data=data, config="ds_config.json")
for inputs, targets in loader:
    loss = criterion(engine(inputs), targets) / engine.gradient_accumulation_steps()
    engine.backward(loss)
    engine.step()
"""
CODE = "written-for-other-world-size"


def paste(panel: Panel, label: str, text: str) -> None:
    """As from the clipboard: all at once."""
    panel.field(label).focus()
    panel.page.keyboard.press("Control+A")
    panel.page.keyboard.insert_text(text)


def press_check(panel: Panel) -> None:
    panel.press(panel.button("Check"))
    panel.notebook.wait_until_idle()


def keep(panel: Panel, name: str, folder: Path) -> str:
    """Follow the link as a learner does; the file that the browser keeps."""
    link = panel.box.get_by_role("link", name=f"Download the mended {name}")
    with panel.page.expect_download() as event:
        panel.press(link)
    assert event.value.suggested_filename == name
    event.value.save_as(folder / name)
    return (folder / name).read_text()


def test_paste_check_read_and_keep_the_mended_file(notebook: Notebook, panel: Panel, tmp_path: Path) -> None:
    assert notebook.serious_findings() == []
    paste(panel, "Configuration", CONFIG)
    paste(panel, "Launch command", LAUNCH)
    press_check(panel)
    expect(panel.box.get_by_role("status").filter(has_text="Mismatch: 1 error.")).to_be_visible()
    expect(panel.box.get_by_role("heading", name=CODE)).to_be_visible()
    expect(panel.box.get_by_role("row", name=re.compile(r"^data_parallel_size 4 launch.sh:1"))).to_be_visible()
    panel.says("64 / (2 x 4) = 8, so these numbers were written for 8 processes")
    panel.says('+  "gradient_accumulation_steps": 8')
    notebook.keep_picture("doctor", 2100)
    assert notebook.serious_findings() == []
    assert panel.clipped() == []
    text = keep(panel, "ds_config.json", tmp_path)
    assert text == CONFIG.replace('_steps": 4', '_steps": 8')
    assert check(tmp_path / "ds_config.json", processes=4).verdict == "ok"
    panel.page.set_viewport_size({"width": 900, "height": 1000})
    assert panel.clipped() == []
    notebook.keep_picture("doctor-900", 2600)


def test_another_fix_is_chosen_by_arrow_keys(notebook: Notebook, panel: Panel, tmp_path: Path) -> None:
    paste(panel, "Configuration", CONFIG)
    panel.type(PROCESSES, "4")
    press_check(panel)
    group = panel.box.get_by_role("group", name="Which fix to write into the file")
    first, second, third = (group.get_by_role("radio").nth(number) for number in range(3))
    expect(first).to_be_checked()
    panel.press(first, "ArrowDown")
    expect(second).to_be_checked()
    expect(second).to_be_focused()
    panel.says("Written: Set train_micro_batch_size_per_gpu 4")
    assert '_per_gpu": 4' in keep(panel, "ds_config.json", tmp_path)
    panel.press(second, "ArrowDown")
    expect(third).to_be_checked()
    panel.says("To be done by hand: Set processes 8")
    expect(panel.box.get_by_role("link")).to_have_count(0)
    assert notebook.serious_findings() == []


def test_files_are_chosen(notebook: Notebook, panel: Panel, tmp_path: Path) -> None:
    (tmp_path / "my_ds.json").write_bytes(CONFIG.encode("utf-16"))
    (tmp_path / "train.py").write_text(SCRIPT)
    with panel.page.expect_file_chooser() as event:
        panel.press(panel.box.get_by_role("button", name="Choose files"))
    event.value.set_files([tmp_path / "my_ds.json", tmp_path / "train.py"])
    panel.says("Chosen: my_ds.json, train.py")
    panel.type(PROCESSES, "8")
    press_check(panel)
    panel.says("train.py:5")
    expect(panel.box.get_by_role("heading", name="loss-divided-twice")).to_be_visible()
    panel.says("No configuration given here can be changed for that")
    assert notebook.serious_findings() == []
    notebook.keep_picture("doctor-loop", 2100)


def test_more_sizes_and_versions(panel: Panel) -> None:
    expect(panel.field("Tensor parallel size")).to_be_hidden()
    panel.press(panel.field("More"), "Space")
    expect(panel.field("Installed versions")).to_be_visible()
    paste(panel, "Configuration", CONFIG)
    panel.press(panel.field("Framework"), "End")
    expect(panel.field("Framework")).to_have_value("megatron")
    panel.type(PROCESSES, "16")
    panel.type("Tensor parallel size", "2")
    press_check(panel)
    expect(panel.box.get_by_role("row", name=re.compile("^data_parallel_size 8"))).to_be_visible()
    panel.says("OK: nothing wrong found.")


def test_errors_are_one_sentence_and_clear_begins_anew(notebook: Notebook, panel: Panel) -> None:
    alerts = panel.box.get_by_role("alert")
    press_check(panel)
    expect(alerts).to_contain_text("There is nothing to check yet")
    paste(panel, "Configuration", CONFIG)
    for text in ("2.5", "many", "0", "<b>bold</b>"):
        panel.type(PROCESSES, text)
        press_check(panel)
        expect(alerts).to_have_count(1)
        expect(alerts).to_contain_text("Smallest fix:")
        assert "Traceback" not in panel.box.inner_text()
    assert notebook.serious_findings() == []
    panel.type(PROCESSES, "4")
    press_check(panel)
    expect(alerts).to_have_count(0)
    panel.says(CODE)
    panel.type(PROCESSES, "8")
    panel.says("Something was changed since. Press Check again.")
    press_check(panel)
    panel.says("OK: nothing wrong found.")
    panel.press(panel.button("Clear"))
    expect(panel.field("Configuration")).to_have_value("")
    expect(panel.field(PROCESSES)).to_have_value("")
    expect(panel.box.get_by_role("heading")).to_have_count(0)


@pytest.mark.parametrize("key", ["a", "d", "Enter", "Shift+Enter", "Control+Enter", "ArrowDown"])
def test_no_key_in_a_text_reaches_the_notebook(notebook: Notebook, panel: Panel, key: str) -> None:
    """Shift+Enter, typed for a new line, must not run the cell again and lose what was pasted."""
    kinds = "cells => cells.map(cell => cell.className)"
    paste(panel, "Training script", "one\ntwo")
    before = notebook.area.locator(".jp-Cell").evaluate_all(kinds)
    panel.field("Training script").focus()
    for _ in range(2):
        panel.page.keyboard.press(key)
    notebook.wait_until_idle()
    assert notebook.area.locator(".jp-Cell").evaluate_all(kinds) == before
    expect(panel.field("Training script")).to_have_value(re.compile("one\ntwo"))


def test_tab_leads_through_the_panel(panel: Panel) -> None:
    controls = panel.box.locator(
        "textarea:visible, input:visible:enabled, select:visible:enabled, button:visible:enabled"
    ).all()
    controls[0].focus()
    for control in controls[1:]:
        panel.page.keyboard.press("Tab")
        expect(control).to_be_focused()
    expect(panel.button("Clear")).to_be_focused()
