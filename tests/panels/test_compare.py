"""The compare panel: pressed, stopped, given nonsense, exported from, and called without a front end."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from IPython.core.interactiveshell import InteractiveShell
from ipywidgets import Widget
from traitlets.config import Config

from dsaccum_helpers import Comparison, Setting, compare, plots
from dsaccum_helpers.mismatches import RUNNABLE
from dsaccum_helpers.panels import ComparePanel, pressing
from dsaccum_helpers.panels import compare as compare_module
from dsaccum_helpers.training import RecordedRunner, Runner

from .conftest import CODES, SETTING, MakePanel


class CountingRunner(RecordedRunner):
    """Counts what is started."""

    started = 0

    def start(self, *arguments: Any, **keywords: Any) -> Any:
        self.started += 1
        return super().start(*arguments, **keywords)


def finish(panel: ComparePanel) -> Comparison:
    """Wait for the end of the press."""
    assert panel.press is not None
    assert panel.press.wait(20.0)
    assert panel.comparison is not None
    return panel.comparison


def until(condition: Any, seconds: float = 10.0) -> None:
    limit = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.01)


def buttons(panel: ComparePanel) -> tuple[bool, bool, bool]:
    """Which of Run, Stop and Export can be pressed."""
    return not panel.run_button.disabled, not panel.stop_button.disabled, not panel.export_button.disabled


def test_a_press_of_run_with_the_real_runner(runner: Runner) -> None:
    panel = ComparePanel(SETTING, ("loss-divided-twice", "written-for-other-world-size"), runner)
    assert buttons(panel) == (True, False, False)
    panel.run_button.click()
    assert buttons(panel) == (False, True, False)
    comparison = finish(panel)
    assert buttons(panel) == (True, False, True)
    assert [result.ended for result in comparison.results] == ["finished", "refused", "finished"]
    assert comparison.results == compare(*panel.codes, setting=SETTING, runner=runner).results
    assert panel.picture.alt == plots.alt_text(comparison)
    assert panel.picture.png.startswith(b"\x89PNG")
    assert panel.progress.value == 1.0
    assert "All runs have ended." in panel.status.value
    assert all(row.agrees in (True, None) for row in comparison.rows())
    assert "0.25</td>" in panel.table.value
    assert "AssertionError: Check batch related parameters" in panel.table.value
    assert "these numbers fit 2 processes" in panel.table.value


def test_the_picture_grows_with_the_points(make_panel: MakePanel) -> None:
    panel = make_panel(delay=0.05)
    seen: list[int] = []

    def count(_: Any) -> None:
        seen.append(sum(len(lines["loss"].get_xdata()) for lines in panel._curves.lines.values()))

    panel.picture.observe(count, "png")
    panel.run_button.click()
    comparison = finish(panel)
    assert len(seen) >= 2
    assert seen == sorted(seen)
    assert seen[0] < seen[-1] <= sum(len(result.points) for result in comparison.results)
    assert panel.picture.alt.startswith("Loss on the evaluation set")


def test_it_is_drawn_at_most_five_times_a_second(make_panel: MakePanel) -> None:
    panel = make_panel(delay=0.06)
    times: list[float] = []
    panel.picture.observe(lambda _: times.append(time.monotonic()), "png")
    panel.run_button.click()
    finish(panel)
    assert len(times) >= 3
    # The first and the last picture come on top. Single gaps say little: encoding takes longer on a busy machine.
    assert len(times) - 2 <= 5 * (times[-1] - times[0]), "five times a second"


def test_the_kernel_is_free_while_runs_go_on(make_panel: MakePanel) -> None:
    panel = make_panel(delay=0.05)
    began = time.monotonic()
    panel.run_button.click()
    assert time.monotonic() - began < 0.5
    until(lambda: panel.comparison is not None)
    assert panel.running
    assert 0 < len(panel.comparison.results[0].points) < 13
    assert "Training matched, batch-product-mismatch, loss-divided-twice" in panel.status.value


def test_stop_and_run_again(make_panel: MakePanel) -> None:
    panel = make_panel(delay=0.05)
    panel.run_button.click()
    until(lambda: panel.comparison and len(panel.comparison.matched.points) > 2)
    began = time.monotonic()
    panel.stop_button.click()
    assert time.monotonic() - began < 0.3
    stopped = finish(panel)
    assert time.monotonic() - began < 2.0
    assert {result.ended for result in stopped.results} == {"cancelled"}
    assert "Stopped. What was measured so far is shown." in panel.status.value
    assert "<strong>matched:</strong> Stopped after" in panel.table.value
    assert panel.left.value == "stopped"
    assert panel.progress.value < 1.0
    assert buttons(panel) == (True, False, True)
    panel.runner.delay = 0.0
    panel.run_button.click()
    again = finish(panel)
    assert again is not stopped
    assert [result.ended for result in again.results] == ["finished", "refused", "finished", "finished"]
    assert "Stopped" not in panel.table.value


def test_stop_answers_at_once_while_processes_are_being_prepared(measured: Comparison) -> None:
    ready = threading.Event()

    class SlowRunner(CountingRunner):
        def start(self, *arguments: Any, **keywords: Any) -> Any:
            assert ready.wait(20.0)
            return super().start(*arguments, **keywords)

    panel = ComparePanel(SETTING, CODES, SlowRunner(measured.results))
    panel.run_button.click()
    first = panel.press
    assert "Preparing the training processes" in panel.status.value
    panel.stop_button.click()
    assert first is not None
    assert first.wait(1.0)
    assert "Stopped before anything began." in panel.status.value
    assert buttons(panel) == (True, False, False)
    ready.set()
    until(lambda: first.comparison is not None and first.comparison.done)
    assert [result.ended for result in first.comparison.results] == ["cancelled"] * 4
    assert sum(len(result.points) for result in first.comparison.results) == 0
    assert "Stopped before anything began." in panel.status.value, "the late end of the old press changes nothing"


def test_run_pressed_twice_runs_once(make_panel: MakePanel, measured: Comparison, capsys: Any) -> None:
    runner = CountingRunner(measured.results, 0.02)
    panel = make_panel(runner=runner)
    panel.run_button.click()
    panel.run_button.click()
    assert panel.run() is None
    assert "still going on" in capsys.readouterr().out
    finish(panel)
    assert runner.started == 4


BAD_SETTINGS = [
    ("train_micro_batch_size_per_gpu", 0),
    ("train_micro_batch_size_per_gpu", -4),
    ("gradient_accumulation_steps", "four"),
    ("optimizer_steps", 10**12),
    ("gradient_accumulation_steps", 2.5),
    ("processes", 1000),
    ("learning_rate", "fast"),
    ("gradient_clipping", -1),
    pytest.param("optimizer_steps", 10**5000, id="huge"),
]


@pytest.mark.parametrize(("name", "value"), BAD_SETTINGS)
def test_bad_input_by_keyboard(make_panel: MakePanel, measured: Comparison, name: str, value: Any) -> None:
    runner = CountingRunner(measured.results)
    panel = make_panel(runner=runner)
    panel.settings.fields[name].value = str(value) if value != 10**5000 else "9" * 5000
    panel.run_button.click()
    assert_refused(panel, runner, name)
    panel.settings.fields[name].value = "2"
    assert panel.status.value == "", "the message goes when its cause goes"


@pytest.mark.parametrize(
    ("name", "value"),
    [*BAD_SETTINGS[:-1], ("zero_stage", 7), ("task", "poetry"), ("dtype", "fp8"), ("optimizer", 1), ("colour", "red")],
)
def test_bad_input_by_a_plain_call(
    make_panel: MakePanel, measured: Comparison, capsys: Any, name: str, value: Any
) -> None:
    runner = CountingRunner(measured.results)
    panel = make_panel(runner=runner)
    before = panel.settings.setting
    assert panel.run(**{name: value}) is None
    printed = capsys.readouterr()
    assert (printed.out.count("\n"), printed.err) == (1, "")
    assert name in printed.out
    assert_refused(panel, runner, name)
    assert panel.settings.setting == before


@pytest.mark.parametrize(
    ("codes", "words"),
    [
        (("loss-divided-thrice",), "is not a mismatch of the catalogue. Smallest fix: use loss-divided-twice."),
        (tuple(RUNNABLE)[:6], "6 mismatches in one press. Smallest fix: choose at most 5."),
    ],
)
def test_bad_choice_of_mismatches(
    make_panel: MakePanel, measured: Comparison, capsys: Any, codes: tuple[str, ...], words: str
) -> None:
    runner = CountingRunner(measured.results)
    panel = make_panel(runner=runner, mismatches=codes)
    assert words in panel.status.value, "said at once"
    panel.run_button.click()
    assert_refused(panel, runner, words)
    panel = make_panel(runner=runner)
    assert panel.run(codes) is None
    assert words in capsys.readouterr().out
    assert_refused(panel, runner, words)


def test_a_mismatch_that_the_setting_cannot_show(make_panel: MakePanel, measured: Comparison) -> None:
    runner = CountingRunner(measured.results)
    panel = make_panel(runner=runner)
    panel.settings.fields["gradient_accumulation_steps"].value = "1"
    panel.run_button.click()
    assert_refused(panel, runner, "there is nothing to accumulate")


def assert_refused(panel: ComparePanel, runner: CountingRunner, words: str) -> None:
    """One message, and nothing started."""
    assert (panel.status.value + panel.settings.summary.value).count('role="alert"') == 1
    assert words in panel.status.value.replace("&#x27;", "'")
    assert runner.started == 0
    assert panel.press is None
    assert buttons(panel) == (True, False, False)


def test_a_fault_in_the_runner_ends_in_one_sentence(make_panel: MakePanel, measured: Comparison, capsys: Any) -> None:
    class Faulty(RecordedRunner):
        def stream(self, runs: Any) -> Iterator[Any]:
            yield from list(super().stream(runs))[:3]
            raise RuntimeError("boom\nand more")

    panel = make_panel(runner=Faulty(measured.results))
    panel.run_button.click()
    finish(panel)
    assert "Something unexpected went wrong (RuntimeError: boom and more)." in panel.status.value
    assert buttons(panel) == (True, False, True)
    assert panel.run() is None
    printed = capsys.readouterr()
    assert printed.out.startswith("Something unexpected went wrong (RuntimeError: boom and more).")
    assert "Traceback" not in printed.out + printed.err


def test_a_fault_in_drawing_ends_in_one_sentence(make_panel: MakePanel, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no font")

    monkeypatch.setattr(plots.Curves, "png", fail)
    panel = make_panel(delay=0.01)
    panel.run_button.click()
    assert None not in {result.ended for result in finish(panel).results}
    assert "Something unexpected went wrong (OSError: no font)." in panel.status.value
    assert buttons(panel) == (True, False, True)


def test_plain_call_returns_the_comparison(make_panel: MakePanel, measured: Comparison, capsys: Any) -> None:
    panel = make_panel(mismatches=())
    comparison = panel.run(mismatches="loss-divided-twice", learning_rate=0.2)
    assert comparison is panel.comparison
    assert [result.code for result in comparison.results] == ["matched", "loss-divided-twice"]
    assert comparison.setting == SETTING.change(learning_rate=0.2)
    assert panel.codes == ["loss-divided-twice"]
    assert panel.settings.fields["learning_rate"].value == "0.2"
    assert panel.text.startswith(plots.alt_text(comparison))
    assert capsys.readouterr().out == ""


def test_interrupting_a_plain_call_stops_the_runs(make_panel: MakePanel) -> None:
    panel = make_panel(delay=0.05)
    timer = threading.Timer(0.6, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt) as caught:
        panel.run()
    timer.join()
    assert {result.ended for result in finish(panel).results} == {"cancelled"}
    assert buttons(panel) == (True, False, True)
    assert caught.value._render_traceback_() == [
        "Interrupted: the runs were stopped, and nothing goes on in the background."
    ]


def test_an_interrupt_is_one_line_in_ipython(capsys: Any, tmp_path: Path) -> None:
    without_history = Config({"HistoryManager": {"enabled": False}})
    shell = InteractiveShell(config=without_history, ipython_dir=str(tmp_path))
    shell.user_ns["error"] = compare_module.Interrupted
    assert isinstance(shell.run_cell("raise error").error_in_exec, KeyboardInterrupt)
    printed = capsys.readouterr()
    assert "Interrupted: the runs were stopped" in printed.out
    assert "Traceback" not in printed.out + printed.err


def test_the_oracle_can_be_ticked(make_panel: MakePanel, measured: Comparison) -> None:
    panel = make_panel()
    panel.oracle_box.value = True
    panel.run_button.click()
    assert [result.code for result in finish(panel).results] == [result.code for result in measured.results]


def test_export_writes_and_says_where(make_panel: MakePanel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    panel = make_panel()
    panel.export_button.click()
    assert list(tmp_path.iterdir()) == [], "nothing is measured yet"
    panel.run_button.click()
    comparison = finish(panel)
    panel.export_button.click()
    folder = tmp_path / "dsaccum-export-1"
    assert str(folder) in panel.exported.value
    assert "&quot;train_batch_size&quot;: 64" in panel.exported.value
    content = json.loads((folder / "comparison.json").read_text())
    assert [run["code"] for run in content["runs"]] == [result.code for result in comparison.results]
    assert content["machine"]["accelerator"] == "cpu"


def test_export_that_fails_is_one_sentence(
    make_panel: MakePanel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    panel = make_panel()
    panel.run_button.click()
    finish(panel)
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    panel.export_button.click()
    assert 'role="alert"' in panel.exported.value
    assert "Cannot write to" in panel.exported.value
    assert "Smallest fix" in panel.exported.value


def test_tables_can_be_read_aloud(make_panel: MakePanel, measured: Comparison) -> None:
    panel = make_panel()
    panel.run_button.click()
    comparison = finish(panel)
    assert panel.table.value.count("<caption") == 2
    assert panel.table.value.count('scope="col"') == 8
    assert panel.table.value.count('<th scope="row"') == len(comparison.rows()) + 1


def test_every_control_has_a_label(make_panel: MakePanel) -> None:
    panel = make_panel()
    controls = [*panel.settings.fields.values(), *panel.boxes.values(), panel.oracle_box]
    controls += [panel.run_button, panel.stop_button, panel.export_button]
    assert [control for control in controls if not control.description] == []
    assert all(code in box.description for code, box in panel.boxes.items())


def test_the_train_batch_is_shown_as_a_product(make_panel: MakePanel) -> None:
    panel = make_panel()
    panel.settings.fields["processes"].value = "2"
    assert "128 samples per optimizer step = 16 samples per micro-batch x 4" in panel.settings.summary.value
    panel.settings.fields["task"].value = "language-large"
    assert "expect about" in panel.settings.summary.value


def test_the_learning_rate_follows_the_task_until_it_is_typed(make_panel: MakePanel) -> None:
    panel = make_panel()
    panel.settings.fields["task"].value = "regression"
    assert panel.settings.setting.learning_rate == Setting(task="regression").learning_rate
    panel.settings.fields["learning_rate"].value = "0.01"
    panel.settings.fields["task"].value = "digits"
    assert panel.settings.setting.learning_rate == 0.01


def test_a_setting_survives_the_controls() -> None:
    setting = Setting("regression", 8, 2, 2, 1, "bf16", "Adam", 0.02, 0.5, 30, "constant", 7)
    assert ComparePanel(setting, ()).settings.setting == setting


def test_a_slow_setting_is_warned_of(make_panel: MakePanel, measured: Comparison) -> None:
    panel = make_panel(delay=0.02)
    panel.settings.fields["processes"].value = "4"
    panel.run_button.click()
    until(lambda: "Training" in panel.status.value)
    assert "4 processes share 2 processor cores" in panel.status.value


def test_opening_a_panel_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse() -> None:
        raise AssertionError("opened")

    monkeypatch.setattr(pressing, "default_runner", refuse)
    panel = ComparePanel()
    bundle = panel._repr_mimebundle_()
    assert bundle["text/plain"] == compare_module.NOTHING_YET
    assert "application/vnd.jupyter.widget-view+json" in bundle
    assert isinstance(panel.widget, Widget)
