"""The guess panel with real DeepSpeed, by keyboard alone: choose a mistake, guess, run, read the answer, stop."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Any

from playwright.sync_api import expect

if TYPE_CHECKING:
    from tests.browser.conftest import Notebook, Panel

NOTEBOOK = "guess.ipynb"
FIRST_RUN = 60.0  # seconds; the kernel's first run imports torch and DeepSpeed
RATIO, STEPS = "First gradient norm, × right", "Optimizer steps"
ASK = "Say what you expect first"
LONGEST = "no-sync-with-partitioned-gradients"
# In every frame: where all that stands above the answer is on the screen, and what is to be seen of the picture.
SAMPLER = """box => {
    const picture = box.querySelector(".dsaccum-picture");
    const above = [...box.children].filter(part => part.compareDocumentPosition(picture) & 4);
    window.samples = [];
    const look = () => {
        window.samples.push({
            tops: [...above, picture].map(part => Math.round(part.getBoundingClientRect().top)).join(),
            height: picture.getBoundingClientRect().height,
            empty: ![...picture.querySelectorAll("img")].some(one => one.naturalWidth > 0),
        });
        requestAnimationFrame(look);
    };
    requestAnimationFrame(look);
}"""
# What a learner would have to scroll sideways for, though "clipped" does not see it: long lines of code.
WIDER = """box => [box, ...box.querySelectorAll("pre, .widget-html-content, .widget-box")]
    .filter(one => one.scrollWidth > one.clientWidth + 1).map(one => `${one.className}: ${one.textContent}`)"""
# The place that a list has for its chosen word, less the width of the word and of the arrow.
ROOM = """list => {
    const pen = document.createElement("canvas").getContext("2d");
    pen.font = getComputedStyle(list).font;
    return list.clientWidth - 20 - pen.measureText(list.selectedOptions[0].text).width;
}"""


def press_and_wait(panel: Panel, verdict: str, key: str = "Enter", seconds: float = 30.0) -> None:
    """Press the button; the status says that a training goes on, and then the verdict."""
    status = panel.box.get_by_role("status")
    panel.press(panel.button("Guess and run"), key)
    expect(status).to_have_text("Training the right run, the mistake and the mended one.")
    expect(status).to_have_text(verdict, timeout=1000 * seconds)


def answers(panel: Panel) -> dict[str, list[str]]:
    """The table by its row heads: the guess, predicted, measured, and the word for the guess."""
    rows = panel.box.get_by_role("table", name="Guessed, predicted, measured").get_by_role("row").all()
    cells = [row.locator("th, td").all_inner_texts() for row in rows]
    assert cells[0] == ["Quantity", "Your guess", "Predicted", "Measured", "Your guess is"]
    return {name: rest for name, *rest in cells[1:]}


def sampled(panel: Panel) -> list[dict[str, Any]]:
    samples: list[dict[str, Any]] = panel.page.evaluate("window.samples")
    assert len(samples) > 10
    return samples


def test_guess_run_read_and_guess_again(notebook: Notebook, panel: Panel) -> None:
    assert notebook.serious_findings() == []
    panel.says(ASK)
    panel.press(panel.field("Mistake"), "g")  # the only one that begins so
    expect(panel.field("Mistake")).to_have_value("guarded-engine-step")
    panel.says("if (i + 1) % run.gradient_accumulation_steps == 0:")
    panel.type(RATIO, "1")
    panel.type(STEPS, "12")
    panel.box.evaluate(SAMPLER)
    press_and_wait(panel, "guarded-engine-step at ZeRO-0 on 1 process: not what you expected.", seconds=FIRST_RUN)
    answer = answers(panel)
    assert answer["optimizer steps"] == ["12", "3", "3", "not yet"]  # 12 calls of step(), an update for every 4
    assert (answer["× first gradient norm"][0], answer["× first gradient norm"][3]) == ("1", "not yet")
    shown = ("matched: loss .* in 12 steps", "guarded-engine-step: loss .* in 3 steps", ":mended: loss .* in 12 steps")
    expect(panel.box.get_by_role("img", name=re.compile(".*".join(shown)))).to_be_visible()
    panel.says("Mended:")
    assert {sample["tops"] for sample in sampled(panel)} == {sampled(panel)[0]["tops"]}, "something moved"
    expect(panel.button("Guess and run")).to_be_enabled()
    assert notebook.serious_findings() == []

    panel.press(panel.field("ZeRO stage"), "ArrowDown")
    expect(panel.field("ZeRO stage")).to_have_value("1")
    panel.press(panel.slider(STEPS), "Home")
    panel.press(panel.slider(STEPS), "ArrowRight")
    expect(panel.field(STEPS)).to_have_value("3")
    notebook.wait_until_idle()
    panel.box.evaluate(SAMPLER)
    press_and_wait(panel, "guarded-engine-step at ZeRO-1 on 1 process: not what you expected.", "Space")
    assert answers(panel)["optimizer steps"] == ["3", "3", "3", "right"]
    samples = sampled(panel)
    assert [number for number, sample in enumerate(samples) if sample["empty"]] == []
    assert len({(sample["tops"], sample["height"]) for sample in samples}) == 1, "something moved"
    notebook.keep_picture("guess", 1900)


def test_readable_in_a_narrow_window(notebook: Notebook, panel: Panel) -> None:
    """The longest code, long lines in its loop, and what DeepSpeed says where it stops."""
    panel.field("Mistake").focus()
    panel.page.keyboard.type("no-s")
    expect(panel.field("Mistake")).to_have_value(LONGEST)
    panel.press(panel.field("ZeRO stage"), "2")
    panel.type(STEPS, "0")
    press_and_wait(panel, f"{LONGEST} at ZeRO-2 on 1 process: your guess is right.", seconds=FIRST_RUN)
    assert answers(panel)["optimizer steps"] == ["0", "0", "0", "right"]
    panel.says("DeepSpeed: AssertionError: no_sync context manager is incompatible with gradient partitioning")
    for width in (1280, 900):
        panel.page.set_viewport_size({"width": width, "height": 1000})
        assert panel.clipped() == [], f"{width} pixels wide"
        assert panel.box.evaluate(WIDER) == [], f"{width} pixels wide"
        assert panel.field("Mistake").evaluate(ROOM) >= 0, f"{width} pixels wide"
    notebook.keep_picture("guess-900", 2200)
    assert notebook.serious_findings() == []


def test_stop(notebook: Notebook) -> None:
    """Tab leads from the grey button to Stop; then all is as before the press."""
    panel = notebook.panel(1)
    panel.press(panel.button("Guess and run"), "Space")
    panel.says("Training the right run")
    expect(panel.button("Guess and run")).to_be_disabled()
    expect(panel.field("Mistake")).to_be_disabled()  # the answer will be about this one
    panel.page.wait_for_timeout(1000)  # the processes are there by now, and train
    panel.page.keyboard.press("Tab")
    expect(panel.button("Stop")).to_be_focused()
    began = time.monotonic()
    panel.page.keyboard.press("Space")
    expect(panel.box.get_by_role("status")).to_have_text("Stopped.", timeout=10e3)
    assert time.monotonic() - began < 4.0
    expect(panel.button("Stop")).to_be_disabled()
    expect(panel.button("Guess and run")).to_be_enabled()
    expect(panel.field("Mistake")).to_be_enabled()
    expect(panel.box.get_by_role("table")).to_have_count(0)
    assert panel.pictures() == []


def test_nonsense_is_one_sentence(notebook: Notebook, panel: Panel) -> None:
    alerts = panel.box.get_by_role("alert")
    for label, name in ((RATIO, "the ratio of the first gradient norm"), (STEPS, "the number of optimizer steps")):
        for text in ("abc", "-1", "1e999", "<b>bold</b>", "9" * 60):
            panel.type(label, text)
            expect(alerts).to_have_count(1)
            expect(alerts).to_be_visible()
            expect(alerts).to_contain_text(f"Your guess of {name} is '")
            expect(alerts).to_contain_text("Smallest fix: a number from 0 on.")
            panel.press(panel.button("Guess and run"))
            notebook.wait_until_idle()
            expect(alerts).to_have_count(1)
            expect(panel.button("Stop")).to_be_disabled()
        panel.type(label, "1")
        expect(alerts).to_have_count(0)
    panel.says(ASK)
    assert "Traceback" not in panel.box.inner_text()


def test_tab_leads_through_and_no_key_reaches_the_notebook(notebook: Notebook, panel: Panel) -> None:
    kinds = "cells => cells.map(cell => [...cell.classList].filter(name => /jp-\\w+Cell/.test(name)).sort())"
    cells = notebook.area.locator(".jp-Cell")
    before = cells.evaluate_all(kinds)
    controls = panel.box.locator("input:visible:enabled, select:visible:enabled, button:visible:enabled").all()
    assert len(controls) == 8  # the mistake, two numbers with a slider each, two lists, the button
    controls[0].focus()
    for control in controls[1:]:
        for key in ("a", "b", "m", "r", "y", "x", "d", "d"):
            panel.page.keyboard.press(key)
        panel.page.keyboard.press("Tab")
        expect(control).to_be_focused()
    expect(panel.button("Guess and run")).to_be_focused()
    assert cells.evaluate_all(kinds) == before
