"""Start, stream, cancel, repeat: what one press does, and what fifty presses leave behind."""

from __future__ import annotations

import functools
import os
import signal
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from dsaccum_helpers.mismatches import RUNNABLE, UnknownMismatchError
from dsaccum_helpers.setting import Setting, SettingError
from dsaccum_helpers.training import Run, Runner, RunResult, compare

Finish = Callable[..., list[RunResult]]

SHORT = Setting(task="regression", optimizer_steps=4, gradient_accumulation_steps=2)
ENDLESS = Setting(optimizer_steps=10_000, train_micro_batch_size_per_gpu=4)
CANCEL_SECONDS = 0.5  # a bar of the project


def until_step(runner: Runner, runs: list[Run], step: int, act: Callable[[Run], object]) -> list[Run]:
    """Stream to the end, and do something once for each run that reaches this step; gives the runs as they ended."""
    ended = []
    for run, point in runner.stream(runs):
        if point is None:
            ended.append(run)
        elif point.step == step:
            act(run)
    return ended


def test_points_come_while_the_run_goes_on(runner: Runner) -> None:
    run = runner.start(ENDLESS)
    assert (run.result.ended, run.result.points) == (None, [])
    seen = 0
    for one, point in runner.stream([run]):
        assert one is run
        if point is not None:
            assert run.result.points[-1] == point
            assert point.step == seen
            assert run.result.ended is None
            seen += 1
            if point.step == 30:
                run.cancel()
    assert 30 < seen < 10_000
    assert (run.result.ended, run.result.sentence) == ("cancelled", f"Stopped after {seen - 1} optimizer steps.")


@pytest.mark.parametrize("processes", [1, 2])
def test_cancel_in_mid_run_answers_at_once_and_frees_everything(runner: Runner, watch: object, processes: int) -> None:
    before = psutil.Process().num_fds()
    run = runner.start(ENDLESS.change(processes=processes, zero_stage=3))
    pressed: list[float] = []
    pids: list[int] = []
    folders: list[Path] = []

    def cancel(run: Run) -> None:
        pids.extend(run.set.pids)
        folders.append(run.set.folder)
        pressed.append(time.monotonic())
        run.cancel()

    until_step(runner, [run], 5, cancel)
    assert time.monotonic() - pressed[0] < CANCEL_SECONDS
    assert run.result.ended == "cancelled"
    assert len(pids) == processes
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert not folders[0].exists()
    run.cancel()  # again, after the end: nothing happens
    assert run.result.ended == "cancelled"
    # What is left is one template and the one spare set that waits for the next press.
    assert len(watch.children()) <= 1 + processes
    assert psutil.Process().num_fds() <= before + 3


def test_cancel_from_another_thread_ends_all_runs_of_a_press(runner: Runner) -> None:
    runs = [runner.start(ENDLESS) for _ in range(4)]
    began = threading.Event()
    pressed: list[float] = []

    def press() -> None:
        began.wait(30)
        pressed.append(time.monotonic())
        for run in runs:
            run.cancel()

    thread = threading.Thread(target=press)
    thread.start()
    until_step(runner, runs, 3, lambda _: began.set())
    took = time.monotonic() - pressed[0]
    thread.join()
    assert took < CANCEL_SECONDS
    assert [run.result.ended for run in runs] == ["cancelled"] * 4
    # No machine of this course runs four times ten thousand steps before the third step of the first.
    waiting = [run for run in runs if run.set is None]
    assert all(run.result.sentence == "Stopped before it began." for run in waiting)


def test_one_of_two_runs_is_cancelled_and_the_other_ends_as_if_alone(runner: Runner, finish: Finish) -> None:
    (alone,) = finish(SHORT.change(optimizer_steps=40))
    endless, short = runner.start(ENDLESS), runner.start(SHORT.change(optimizer_steps=40))
    ended = until_step(runner, [endless, short], 1, lambda run: run is endless and run.cancel())
    assert {run.result.code for run in ended} == {"matched"}
    assert len(ended) == 2
    assert endless.result.ended == "cancelled"
    assert short.result.points == alone.points


def test_a_run_cancelled_before_it_begins_starts_nothing(runner: Runner) -> None:
    run = runner.start(ENDLESS)
    run.cancel()
    assert [(one, point) for one, point in runner.stream([run])] == [(run, None)]
    assert (run.result.ended, run.result.sentence) == ("cancelled", "Stopped before it began.")
    assert run.set is None


def test_leaving_the_loop_early_ends_the_processes(runner: Runner) -> None:
    run = runner.start(ENDLESS.change(processes=2))
    events = runner.stream([run])
    for _, point in events:
        if point.step == 3:
            break
    pids = run.set.pids
    assert all(psutil.pid_exists(pid) for pid in pids)
    events.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)
    assert run.result.ended == "cancelled"


def test_runs_end_in_any_order_and_are_told_one_by_one(runner: Runner) -> None:
    wanted = [(SHORT, None), (SHORT, "batch-product-mismatch"), (SHORT, "oracle"), (SHORT, "guarded-engine-step")]
    runs = [runner.start(*one) for one in wanted]
    ended = []
    for run, point in runner.stream(runs):
        assert run not in ended, "nothing comes behind the end"
        ended += [run] if point is None else []
    assert sorted(map(runs.index, ended)) == [0, 1, 2, 3]
    assert [run.result.ended for run in runs] == ["finished", "refused", "finished", "finished"]


def test_no_more_processes_at_a_time_than_cores(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(runner.machine, "cores", 2)
    going: set[int] = set()
    most = 0
    for run, point in runner.stream([runner.start(SHORT) for _ in range(5)]):
        (going.discard if point is None else going.add)(id(run))
        most = max(most, len(going))
    assert most <= 2


def test_eight_processes_train_and_are_warned_of(
    runner: Runner, finish: Finish, monkeypatch: pytest.MonkeyPatch
) -> None:
    eight = Setting(task="regression", processes=8, train_micro_batch_size_per_gpu=2, optimizer_steps=2, zero_stage=1)
    monkeypatch.setitem(runner.machine, "cores", 4)
    assert runner.warning(eight) == "8 processes share 4 processor cores: the numbers stay right, the run is slower."
    assert runner.warning(eight.change(processes=4)) == ""
    assert runner.most_processes() == 8
    one, full = finish(eight, (eight, "oracle"))
    assert [point.samples for point in one.points] == [0, 64, 128]
    assert abs(one.weights - full.weights).max() <= 1e-6


def test_the_machine_is_described_as_it_is(runner: Runner) -> None:
    import deepspeed
    import torch

    assert runner.machine["versions"] == {"torch": torch.__version__, "deepspeed": deepspeed.__version__}
    assert runner.machine["cores"] == len(os.sched_getaffinity(0))
    assert runner.machine["accelerator"] == ("cuda" if torch.cuda.device_count() else "cpu")


BAD_NUMBERS = [0, -1, 10**12, 2.5, "four", None, True, float("nan"), [4]]


@pytest.mark.parametrize("value", BAD_NUMBERS, ids=repr)
def test_bad_input_is_one_message_and_starts_nothing(value: object) -> None:
    before = psutil.Process().children()
    for name in ("train_micro_batch_size_per_gpu", "gradient_accumulation_steps", "processes", "optimizer_steps"):
        with pytest.raises(SettingError) as caught:
            compare("loss-divided-twice", setting=Setting(**{name: value}))
        assert name in str(caught.value)
        assert str(caught.value).count("Smallest fix: ") == 1
        assert "\n" not in str(caught.value)
    assert psutil.Process().children() == before


@pytest.mark.parametrize("codes", [("loss-divided-twise",), ("matched", "nonsense"), ("loss-divided-twice", "")])
def test_an_unknown_mismatch_starts_nothing_not_even_a_template(codes: tuple[str, ...]) -> None:
    fresh, before = Runner(), psutil.Process().children()
    with pytest.raises(UnknownMismatchError, match=r"is not a mismatch of the catalogue\. Smallest fix: use "):
        compare(*codes, setting=SHORT, runner=fresh)
    assert psutil.Process().children() == before
    fresh.close()


def test_what_cannot_happen_is_refused_with_its_remedy(runner: Runner) -> None:
    before = psutil.Process().children()
    with pytest.raises(SettingError, match=r"nothing to accumulate.*Smallest fix: gradient_accumulation_steps 2"):
        compare("guarded-engine-step", setting=SHORT.change(gradient_accumulation_steps=1), runner=runner)
    with pytest.raises(SettingError, match=r"6 mismatches in one press\. Smallest fix: choose at most 5"):
        compare(*list(RUNNABLE)[:6], setting=SHORT, runner=runner)
    assert psutil.Process().children() == before


def test_files_lie_only_in_a_private_folder_that_disappears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    old = os.umask(0)
    try:
        own = Runner()
        run = own.start(SHORT)
        modes: list[int] = []

        def look(run: Run) -> None:
            modes.extend(stat.S_IMODE(place.stat().st_mode) for place in (run.set.folder, run.set.folder.parent))
            assert run.set.folder.parent.parent == tmp_path

        until_step(own, [run], 0, look)
        assert modes == [0o700, 0o700]
        assert len(list(tmp_path.iterdir())) == 1
        own.close()
    finally:
        os.umask(old)
    assert list(tmp_path.iterdir()) == []
    assert run.result.ended == "finished"


def test_closing_ends_what_is_going_on_and_a_press_after_it_works(watch: object) -> None:
    files = psutil.Process().num_fds()
    own = Runner()
    run = own.start(ENDLESS.change(processes=2))
    mine: list[psutil.Process] = []
    for _, point in own.stream([run]):
        if point is not None and point.step == 3:
            mine = watch.with_folder(own.ready().folder)
            own.close()
            watch.until(functools.partial(watch.gone, mine), 3)
    assert len(mine) == 3
    assert run.result.ended == "cancelled"
    again = own.start(SHORT)
    until_step(own, [again], 0, lambda _: None)
    assert again.result.ended == "finished"
    mine = watch.with_folder(own.ready().folder)
    own.close()
    watch.until(functools.partial(watch.gone, mine), 3)
    assert psutil.Process().num_fds() == files


# What fifty presses may add to the memory of the kernel or the template: allocators round, nothing may grow by the run.
GROWTH = 4 * 2**20


def disturb(runner: Runner, number: int) -> str:
    """A wrong run of another kind each time: silent, refused, crashing, cancelled."""
    kind = ("guarded-engine-step", "batch-product-mismatch", "killed", "manual-accumulation", "cancelled")[number % 5]
    if kind == "killed":
        run = runner.start(ENDLESS)
        until_step(runner, [run], 2, lambda run: os.kill(run.set.pids[0], signal.SIGKILL))
    elif kind == "cancelled":
        run = runner.start(ENDLESS)
        until_step(runner, [run], 2, lambda run: run.cancel())
    else:
        run = runner.start(SHORT, kind)
        until_step(runner, [run], 0, lambda _: None)
    return str(run.result.ended)


def settled_fds(process: psutil.Process) -> int:
    """Open files, while a spare set may just be being made."""
    counts = []
    for _ in range(20):
        counts.append(process.num_fds())
        time.sleep(0.02)
    return min(counts)


def test_the_fiftieth_run_is_the_first_to_the_bit_and_nothing_grows(runner: Runner, finish: Finish) -> None:
    setting = Setting(zero_stage=2, optimizer_steps=3, train_micro_batch_size_per_gpu=4)
    sizes: dict[int, tuple[int, int, int, int]] = {}
    results, endings = [], []
    for number in range(1, 51):
        results += finish(setting)
        endings.append(disturb(runner, number))
        if number in (10, 50):
            ours, template = psutil.Process(), psutil.Process(runner.ready().process.pid)
            sizes[number] = (
                ours.memory_info().rss,
                template.memory_info().rss,
                settled_fds(ours),
                settled_fds(template),
            )
    assert {kind: endings.count(kind) for kind in set(endings)} == {
        "finished": 20,
        "refused": 10,
        "failed": 10,
        "cancelled": 10,
    }
    first, last = results[0], results[-1]
    assert len(first.points) == 4
    assert last.points == first.points
    assert (last.weights == first.weights).all()
    assert all(result.points == first.points for result in results)
    assert sizes[50][0] - sizes[10][0] < GROWTH
    assert sizes[50][1] - sizes[10][1] < GROWTH
    assert sizes[50][2:] == sizes[10][2:]
