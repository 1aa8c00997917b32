"""The compare panel with real DeepSpeed, by keyboard alone, in the browser: what a learner sees and how soon."""

from __future__ import annotations

import csv
import json
import re
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from playwright.sync_api import expect

if TYPE_CHECKING:
    from tests.browser.conftest import Notebook, Panel

NOTEBOOK = "compare.ipynb"
FIRST_RUN = 60.0  # seconds; the kernel's first run imports torch and DeepSpeed
LONG = "9000"  # optimizer steps: goes on until it is stopped
TICKED = ("loss-divided-twice", "scheduler-unit")
ENDED = "All runs have ended."
# What every frame shows while curves grow: a picture, and nothing below it moves.
SAMPLER = """box => {
    const place = [...box.children].find(part => part.querySelector("img"));
    const samples = [];
    window.samples = samples;
    const look = () => {
        const shown = [...place.querySelectorAll("img")].filter(one => one.getClientRects().length);
        samples.push({
            empty: !shown.some(one => one.naturalWidth > 0),
            height: place.getBoundingClientRect().height,
            sources: shown.map(one => one.src.slice(0, 100)),
        });
        requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
}"""


def wait_for_picture(panel: Panel, seen: set[str], seconds: float = FIRST_RUN) -> dict[str, Any]:
    """The next picture that is none of those seen; its source is added to them."""
    limit = time.monotonic() + seconds
    while time.monotonic() < limit:
        for picture in panel.pictures():
            if picture["width"] and picture["src"] not in seen:
                seen.add(picture["src"])
                return picture
        panel.page.wait_for_timeout(20)
    pytest.fail(f"no new picture within {seconds:.0f} s; the panel says: {panel.box.inner_text()[-500:]}")


def test_first_run_of_a_kernel(notebook: Notebook, panel: Panel) -> None:
    """A mismatch is ticked, Run pressed, the curves grow, and predicted stands beside measured."""
    panel.press(panel.field("scheduler-unit"), "Space")
    expect(panel.field("scheduler-unit")).to_be_checked()
    panel.type("Optimizer steps", "150")
    panel.press(panel.button("Run"), "Space")
    panel.says("Preparing the training processes")
    seen: set[str] = set()
    growing = [wait_for_picture(panel, seen) for _ in range(3)]
    notebook.keep_picture("compare-running", 1500)
    panel.says(ENDED, 30.0)
    texts = [picture["alt"] for picture in growing]
    assert len(set(texts)) == 3
    assert all(re.search(r"matched: loss [\d.]+ to [\d.]+ in \d+ step", text) for text in texts[1:])
    ran = [f"{code}: loss .* in 150 steps, first update norm [0-9.]+" for code in ("matched", *TICKED)]
    expect(panel.box.get_by_role("img", name=re.compile(".*".join(ran)))).to_be_visible()
    rows = panel.box.get_by_role("table").get_by_role("row")
    expect(rows).to_have_count(13)
    rows = rows.all_inner_texts()
    assert [row.split()[-1] for row in rows[1:]] == ["yes"] * 12
    assert any(
        row.split() == ["loss-divided-twice", "×", "first", "update", "norm", "0.25", "0.25", "yes"] for row in rows
    )
    notebook.keep_picture("compare-ended", 1700)
    panel.page.set_viewport_size({"width": 900, "height": 1000})
    notebook.keep_picture("compare-ended-900", 2200)


def test_nothing_flickers(panel: Panel) -> None:
    panel.type("Optimizer steps", "250")
    panel.press(panel.button("Run"))
    seen: set[str] = set()
    wait_for_picture(panel, seen)
    panel.box.evaluate(SAMPLER)
    panel.says(ENDED, 60.0)
    panel.press(panel.button("Run"))  # the second press begins with the first one's last picture
    panel.says("Training")
    panel.says(ENDED, 60.0)
    samples = panel.page.evaluate("window.samples")
    assert len(samples) > 20
    assert len({source for sample in samples for source in sample["sources"]}) >= 4
    assert [number for number, sample in enumerate(samples) if sample["empty"]] == []
    assert len({sample["height"] for sample in samples}) == 1


def test_kernel_answers_and_stop_stops_while_a_run_goes_on(notebook: Notebook, panel: Panel) -> None:
    panel.type("Optimizer steps", LONG)
    panel.press(panel.button("Run"), "Enter")
    seen: set[str] = set()
    wait_for_picture(panel, seen)
    began = time.monotonic()
    notebook.run_cell(1)
    expect(notebook.output(1)).to_contain_text("2", timeout=5e3)
    answered = time.monotonic() - began
    wait_for_picture(panel, seen)  # it still goes on
    panel.button("Stop").focus()
    began = time.monotonic()
    panel.page.keyboard.press("Space")
    panel.says("Stopped. What was measured so far is shown.", 10.0)
    stopped = time.monotonic() - began
    assert (answered < 1.5, stopped < 2.0) == (True, True), f"answered in {answered:.2f} s, stopped in {stopped:.2f} s"
    expect(panel.button("Stop")).to_be_disabled()
    cut_short = re.compile(r"matched: loss [\d.]+ to [\d.]+ in \d+ steps \(cancelled\)")
    expect(panel.box.get_by_role("img", name=cut_short)).to_be_visible()
    notebook.keep_picture("compare-stopped", 1700)
    panel.type("Optimizer steps", "20")
    panel.press(panel.button("Run"))
    panel.says(ENDED, 30.0)
    expect(panel.box.get_by_role("img", name="in 20 steps")).to_be_visible()


def test_the_mended_run_trains_beside_its_mismatch(panel: Panel) -> None:
    panel.press(panel.field("mended"), "Space")
    expect(panel.field("mended")).to_be_checked()
    panel.type("Optimizer steps", "12")
    panel.press(panel.button("Run"))
    panel.says(ENDED, FIRST_RUN)
    mended = re.compile(r"loss-divided-twice:mended: loss .* in 12 steps, first update norm [0-9.]+")
    expect(panel.box.get_by_role("img", name=mended)).to_be_visible()
    row = panel.box.get_by_role("row", name="loss-divided-twice:mended × first gradient norm 1 1 yes", exact=True)
    expect(row).to_be_visible()


def test_export_writes_files(notebook: Notebook, panel: Panel) -> None:
    panel.type("Optimizer steps", "12")
    panel.press(panel.button("Run"))
    panel.says(ENDED, FIRST_RUN)
    panel.press(panel.button("Export"))
    panel.says("Exported to", 20.0)
    folder = Path(panel.box.locator("code").first.inner_text())
    assert folder.parent == notebook.lab.root
    check_export(folder)
    config = json.loads(panel.box.locator("pre").last.inner_text())
    assert config == json.loads((folder / "ds_config.json").read_text())
    notebook.keep_picture("compare-exported", 2300)


def check_export(folder: Path) -> None:
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / "curves.svg").read_text()
    with (folder / "points.csv").open(newline="") as file:
        points = list(csv.DictReader(file))
    assert {point["run"] for point in points} == {"matched", "loss-divided-twice"}
    comparison = json.loads((folder / "comparison.json").read_text())
    assert comparison["setting"]["optimizer_steps"] == 12
    config = json.loads((folder / "ds_config.json").read_text())
    assert config["train_batch_size"] == 64


def test_bad_input_gives_one_message(notebook: Notebook, panel: Panel) -> None:
    alerts = panel.box.get_by_role("alert")
    for text in ("abc", "2.5", "0", "-3", "9" * 60, "<b>bold</b>", " "):
        panel.type("Accumulation steps", text)
        expect(alerts).to_have_count(1)
        expect(alerts).to_contain_text("gradient_accumulation_steps")
        expect(alerts).to_contain_text("Smallest fix:")
        panel.press(panel.button("Run"))
        expect(panel.button("Stop")).to_be_disabled()
        assert "Traceback" not in panel.box.inner_text()
    notebook.keep_picture("compare-bad-input")
    panel.type("Accumulation steps", "4")
    expect(alerts).to_have_count(0)
    panel.says("64 samples per optimizer step")
