"""The guess panel: pressed, called without clicks, stopped, and given nonsense."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from dsaccum_helpers import DsaccumError, Setting, SettingError
from dsaccum_helpers.panels import GuessPanel
from dsaccum_helpers.training import Runner

SETTING = Setting(optimizer_steps=6, train_micro_batch_size_per_gpu=4, gradient_accumulation_steps=2)


def test_a_guess_is_run_for_real_and_answered(runner: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    panel = GuessPanel("guarded-engine-step", SETTING, runner)
    assert "if (i + 1) % run.gradient_accumulation_steps == 0:" in panel.question.value
    panel.run(ratio=2, steps=3, zero_stage=1, processes=2)
    said = capsys.readouterr().out
    # One update for every 2 x 2 micro-batches of 12; at ZeRO-1 the last of four alone, divided by 2.
    assert "guarded-engine-step at ZeRO-1 on 2 processes: not what you expected." in said
    lines = {line.split("  ")[0]: line.split() for line in said.splitlines()}
    assert lines["optimizer steps"][2:] == ["3", "3", "3", "right"]
    assert lines["× first gradient norm"][4] == "2"
    assert lines["× first gradient norm"][5] == lines["× first gradient norm"][6] != "2"
    assert "Seen live: guarded-engine-step (error). At the mended run: nothing." in said
    assert "Mended. Measured: first gradient norm × 1, 6 optimizer steps, every weight at the end as in plain" in said
    assert panel.stage.value == 1
    assert panel.picture.png.startswith(b"\x89PNG")
    assert "guarded-engine-step:mended: loss" in panel.picture.alt
    assert "<caption" in panel.answer.value
    assert not panel.button.disabled
    assert panel.stop_button.disabled


def test_a_press_without_a_guess_runs_too(runner: Runner) -> None:
    panel = GuessPanel("written-for-other-world-size", SETTING, runner)
    assert "train_batch_size" in panel.question.value
    panel.button.click()
    assert panel.press is not None
    assert panel.press.wait(30.0)
    assert "nothing was guessed" in panel.status.value
    assert "AssertionError: Check batch related parameters" in panel.text
    assert "<strong>DeepSpeed:</strong> AssertionError: Check batch related parameters" in panel.answer.value


def test_nonsense_is_one_sentence_and_nothing_runs(runner: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    panel = GuessPanel("loss-divided-twice", SETTING, runner)
    panel.run(ratio="many")
    assert capsys.readouterr().out.startswith("Your guess of the ratio of the first gradient norm is 'many'")
    panel.ratio.value = "1e"
    assert 'role="alert"' in panel.status.value
    panel.button.click()
    assert "Smallest fix: a number from 0 on." in panel.status.value
    panel.ratio.value = "1"
    assert "Say what you expect first" in panel.status.value
    panel.run(zero_stage=7)
    assert "zero_stage is 7" in capsys.readouterr().out
    assert panel.press is None
    with pytest.raises(SettingError, match="gradient_accumulation_steps 2"):
        GuessPanel("loss-divided-twice", SETTING.change(gradient_accumulation_steps=1), runner)


def test_another_mistake_is_asked_about_when_it_is_chosen(runner: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    panel = GuessPanel("loss-divided-twice", SETTING, runner)
    panel.run(ratio=0.5, steps=6)
    assert "your guess is right" in capsys.readouterr().out
    panel.codes.value = "scheduler-unit"
    assert panel.answer.value == ""
    assert "run.scheduler.step()" in panel.question.value
    assert panel.text.startswith("scheduler-unit: ")
    panel.run("no-such-code")
    assert "is not a mismatch of the catalogue" in capsys.readouterr().out
    assert panel.codes.value == "scheduler-unit"
    panel.run(schedule="constant")
    assert "schedule 'linear'" in capsys.readouterr().out


def test_stopped_runs_are_said_to_be_stopped(runner: Runner) -> None:
    panel = GuessPanel("loss-divided-twice", SETTING.change(optimizer_steps=9000), runner)
    panel.button.click()
    assert panel.press is not None
    assert panel.codes.disabled  # the answer to come is about the mistake that was asked about
    panel.stop_button.click()
    assert panel.press.wait(30.0)
    assert "Stopped." in panel.status.value
    assert panel.answer.value == ""
    assert not panel.button.disabled
    assert not panel.codes.disabled


def test_an_interrupt_stops_the_runs_and_the_rest_of_the_cell(runner: Runner) -> None:
    panel = GuessPanel("loss-divided-twice", SETTING.change(optimizer_steps=9000), runner)
    seen: list[bool] = []

    def interrupt() -> None:
        seen.append(panel.stop_button.disabled)
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(1.0, interrupt)
    timer.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        panel.run(ratio=1)
    timer.join()
    assert seen == [True]  # the kernel cannot hear of the button while the cell waits
    assert not panel.running
    assert "nothing goes on in the background" in caught.value._render_traceback_()[0]  # type: ignore[attr-defined]


def test_a_run_that_breaks_is_one_sentence_and_no_verdict(runner: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    class Breaking:
        start, warning, machine = runner.start, runner.warning, runner.machine

        def stream(self, runs: Any) -> Iterator[Any]:
            yield from runner.stream(runs)
            runs[1].result.ended, runs[1].result.sentence = "failed", "Process 0 ran out of memory."

    panel = GuessPanel("loss-divided-twice", SETTING, Breaking())
    panel.run(ratio=0.5, steps=6)
    assert capsys.readouterr().out == "loss-divided-twice: Process 0 ran out of memory.\n"
    assert 'role="alert"' in panel.status.value
    assert "Process 0 ran out of memory." in panel.status.value
    assert panel.answer.value == ""


def test_what_the_lists_say_decides_what_can_be_run(runner: Runner) -> None:
    panel = GuessPanel("pipeline-train-batch", SETTING, runner)
    assert "4 samples per micro-batch, accumulation steps 2, optimizer steps 6." in panel.question.value
    panel.stage.value = 2
    assert "ZeRO-2 is refused by the pipeline engine" in panel.status.value
    assert "no field" not in panel.status.value
    panel.stage.value = 1
    assert "Say what you expect first" in panel.status.value
    panel.codes.value = "world-size-seen-as-one"
    assert "Smallest fix: processes 2." in panel.status.value
    panel.processes.value = 2
    assert "Say what you expect first" in panel.status.value
    panel.codes.value = "accumulation-dtype"  # no list of this panel chooses 16 bits
    assert "Smallest fix: dtype &#x27;bf16&#x27;. There is no field for that here; in a cell, " in panel.status.value


def test_more_processes_than_the_list_has(runner: Runner, capsys: pytest.CaptureFixture[str]) -> None:
    panel = GuessPanel("written-for-other-world-size", SETTING.change(processes=3), runner)
    assert (panel.processes.options, panel.processes.value) == ((1, 2, 3), 3)
    panel = GuessPanel("written-for-other-world-size", SETTING, runner)
    panel.run(steps=0, processes=3)
    assert "written-for-other-world-size at ZeRO-0 on 3 processes: your guess is right." in capsys.readouterr().out


@pytest.mark.parametrize("code", [None, "matched", "loss-divided-twice:mended"])
def test_what_is_right_is_nothing_to_guess(code: str | None) -> None:
    with pytest.raises(DsaccumError, match=r"is right, so there is nothing to guess\. Smallest fix"):
        GuessPanel(code)  # type: ignore[arg-type]
