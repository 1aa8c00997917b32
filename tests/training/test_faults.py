"""What goes wrong with processes, memory, disk and ports: one clear sentence, the next press works, nothing is left."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from dsaccum_helpers.setting import Setting
from dsaccum_helpers.training import Run, Runner, RunResult

Finish = Callable[..., list[RunResult]]

SHORT = Setting(task="regression", optimizer_steps=3, processes=2, train_micro_batch_size_per_gpu=4)
ENDLESS = Setting(optimizer_steps=10_000, train_micro_batch_size_per_gpu=4, processes=2)
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def first_press() -> Iterator[tuple[Runner, Run, float]]:
    """A runner whose template may be killed, its first run, cancelled at once, and the seconds until that was over."""
    made = Runner()
    run = made.start(ENDLESS)
    pressed: list[float] = []

    def cancel() -> None:
        pressed.append(time.monotonic())
        run.cancel()

    threading.Timer(0.05, cancel).start()
    for _ in made.stream([run]):
        pass
    yield made, run, time.monotonic() - pressed[0]
    made.close()


@pytest.fixture(scope="module")
def own(first_press: tuple[Runner, Run, float]) -> Runner:
    """It notices within two seconds that a run hangs."""
    made, _, _ = first_press
    for _ in made.stream([made.start(SHORT)]):
        pass
    made.stall_seconds = 2.0
    return made


@pytest.fixture
def healthy(own: Runner, finish: Finish, watch: object) -> Iterator[None]:
    """After each fault: the next press works and gives what it always gives, and only template and spare are left."""
    others = watch.children()
    mine = [one for one in others if one.pid == own.ready().process.pid or one.ppid() == own.ready().process.pid]
    others = [one for one in others if one not in mine]
    yield
    own.stall_seconds = 60.0
    (result,), (expected,) = finish(SHORT, by=own), finish(SHORT)
    own.stall_seconds = 2.0
    assert result.points == expected.points
    assert len([one for one in watch.children() if one not in others and one.pid != own.ready().process.pid]) <= 4
    folders = [path.name for path in own.ready().folder.glob("run*")]
    assert len(folders) <= 1, "the folder of the spare set alone"


def spoil(runner: Runner, act: Callable[[Run], object], setting: Setting = ENDLESS) -> tuple[RunResult, float]:
    """Let a run begin, do something to it at its tenth step; gives what became of it, and after how many seconds."""
    run = runner.start(setting)
    acted = 0.0
    for _, point in runner.stream([run]):
        if point is not None and point.step == 10:
            acted = time.monotonic()
            act(run)
    took = time.monotonic() - acted
    assert acted, run.result.sentence
    assert len(run.set.pids) == setting.processes
    if run.set.template.alive:
        assert not any(psutil.pid_exists(pid) for pid in run.set.pids)
    else:  # nobody can tell the stream that they are gone: they go within a moment, and another process collects them
        limit = time.monotonic() + 1
        while any(map(lives, run.set.pids)) and time.monotonic() < limit:
            time.sleep(0.01)
        assert not any(map(lives, run.set.pids))
    assert not run.set.folder.exists()
    return run.result, took


def lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def assert_clear(result: RunResult, *parts: str) -> None:
    assert result.ended == "failed"
    for part in (*parts, "Smallest fix: "):
        assert part in result.sentence
    assert "\n" not in result.sentence
    assert "Traceback" not in result.sentence


def test_cancel_right_after_the_first_press_answers_at_once(first_press: tuple[Runner, Run, float]) -> None:
    """The template still has much to import when it says hello."""
    _, run, seconds = first_press
    assert run.result.ended == "cancelled"
    assert seconds < 0.5


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_is_named(own: Runner, rank: int) -> None:
    result, took = spoil(own, lambda run: os.kill(run.set.pids[rank], signal.SIGKILL))
    assert_clear(result, f"Process {rank} of 2 was killed from outside (SIGKILL)", "memory ran out")
    assert took < 2


@pytest.mark.usefixtures("healthy")
def test_a_rank_that_notices_nothing_is_not_waited_for(own: Runner) -> None:
    """One rank dies while the other is stopped, and so can neither notice nor explain it."""

    def stop_and_kill(run: Run) -> None:
        os.kill(run.set.pids[1], signal.SIGSTOP)
        os.kill(run.set.pids[0], signal.SIGKILL)

    result, took = spoil(own, stop_and_kill)
    assert_clear(result, "Process 0 of 2 was killed from outside (SIGKILL)")
    assert took < own.stall_seconds


@pytest.mark.usefixtures("healthy")
def test_a_rank_that_crashes_is_named_with_its_signal(own: Runner) -> None:
    result, _ = spoil(own, lambda run: os.kill(run.set.pids[1], signal.SIGSEGV))
    assert_clear(result, "Process 1 of 2 was killed from outside (SIGSEGV)")
    assert "memory" not in result.sentence


@pytest.mark.usefixtures("healthy")
def test_a_hung_rank_is_noticed_and_named(own: Runner) -> None:
    result, took = spoil(own, lambda run: os.kill(run.set.pids[1], signal.SIGSTOP))
    assert_clear(result, "gave no sign of life and was ended", "stopped processes: 1")
    assert own.stall_seconds <= took < own.stall_seconds + 1


@pytest.mark.usefixtures("healthy")
def test_cancelling_a_hung_run_answers_at_once(own: Runner) -> None:
    def stop_and_cancel(run: Run) -> None:
        for pid in run.set.pids:
            os.kill(pid, signal.SIGSTOP)
        run.cancel()

    result, took = spoil(own, stop_and_cancel)
    assert result.ended == "cancelled"
    assert took < 0.5


@pytest.mark.usefixtures("healthy")
@pytest.mark.parametrize("rank", [0, 1])
def test_a_rank_out_of_memory_is_named(own: Runner, rank: int) -> None:
    """From its tenth step on the operating system gives this rank no more memory."""

    def starve(run: Run) -> None:
        pid = run.set.pids[rank]
        most = psutil.Process(pid).memory_info().vms
        resource.prlimit(pid, resource.RLIMIT_AS, (most, most))

    # Each micro-batch needs 32 MB at once, so that the shortage is met at the next one.
    result, _ = spoil(own, starve, Setting(train_micro_batch_size_per_gpu=1024, processes=2, optimizer_steps=1000))
    assert_clear(result, f"Process {rank} ran out of memory", "a smaller micro-batch and more accumulation steps")


@pytest.mark.usefixtures("healthy")
def test_the_template_killed_in_mid_run(own: Runner) -> None:
    before = own.ready().process.pid
    folder = own.ready().folder
    result, took = spoil(own, lambda _: os.kill(before, signal.SIGKILL))
    assert_clear(result)
    assert took < 2
    assert own.ready().process.pid != before
    assert not folder.exists()


@pytest.mark.usefixtures("healthy")
def test_the_template_killed_between_two_presses(own: Runner, watch: object) -> None:
    template = own.ready()
    os.kill(template.process.pid, signal.SIGKILL)
    watch.until(lambda: not template.alive, 5)


@pytest.mark.usefixtures("healthy")
def test_a_spare_rank_killed_between_two_presses(own: Runner, finish: Finish, watch: object) -> None:
    finish(SHORT, by=own)
    template = own.ready().process.pid
    watch.until(lambda: len(psutil.Process(template).children()) == 2, 5)
    spare = psutil.Process(template).children()
    spare[1].kill()
    watch.until(lambda: not psutil.pid_exists(spare[1].pid), 5)
    time.sleep(0.1)  # nobody presses sooner


def small_disk(folder: Path, megabytes: int) -> list[str]:
    """A command that runs another one where this folder is a real file system of that size, and no other one for
    temporary files can be written (Python would quietly take that one instead).

    As root by ``unshare``; as a user in a name space of its own, or by ``sudo`` where the system forbids that.
    """
    user, group = os.getuid(), os.getgid()
    closed = "for other in /tmp /var/tmp /usr/tmp; do if [ -d $other ] && [ ! -L $other ]; then "
    closed += "mount --bind $other $other && mount -o remount,bind,ro $other; fi; done"
    mount = f"{closed}; mount -t tmpfs -o size={megabytes}m,mode=700"
    here = f'{mount} tmpfs "{folder}" && cd "{folder}" && exec "$@"'
    as_user = (
        f'{mount},uid={user},gid={group} tmpfs "{folder}" && cd "{folder}" && '
        f'exec setpriv --reuid {user} --regid {group} --clear-groups -- "$@"'
    )
    ways = [
        ["unshare", "--mount", "--", "sh", "-c", here, "sh"],
        ["unshare", "--user", "--map-root-user", "--mount", "--", "sh", "-c", here, "sh"],
        ["sudo", "-n", "-E", "unshare", "--mount", "--", "sh", "-c", as_user, "sh"],
    ]
    tried = []
    for way in ways:
        if shutil.which(way[0]) is None:
            tried.append(f"no {way[0]}")
            continue
        done = subprocess.run([*way, "df", "--output=fstype,size", "."], capture_output=True, text=True, timeout=30)
        if done.returncode == 0 and done.stdout.split()[-2:] == ["tmpfs", str(megabytes * 1024)]:
            return way
        tried.append(f"{way[0]}: {done.stderr.strip()}")
    raise AssertionError(f"this machine lets nobody mount a small disk, so a full one cannot be tested: {tried}")


FULL_DISK = """
import json, os, sys, warnings
warnings.simplefilter("error")
from pathlib import Path
from dsaccum_helpers.setting import Setting
from dsaccum_helpers.training import RunError, Runner

disk, setting = Path(os.environ["TMPDIR"]), Setting(**json.loads(sys.argv[1]))

def fill():
    with open(disk / "full", "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"0" * 1024)
        except OSError as error:
            assert "No space left" in str(error)

def free():
    os.remove(disk / "full")

def press(act=lambda: None, keep_weights=False):
    run = runner.start(setting, keep_weights=keep_weights)
    for _, point in runner.stream([run]):
        if point is not None and point.step == 2:
            act()
    return [run.result.ended, run.result.sentence, len(run.result.steps)]

told = {}
fill()
try:
    Runner().ready()
except RunError as error:
    told["creation"] = ["failed", str(error), 0]
free()
runner = Runner()
runner.ready()
fill()
told["first press"] = press()
free()
told["after it"] = press()
fill()
told["next press"] = press()
free()
told["after that"] = press()
told["mid-run"] = press(fill, keep_weights=True)
free()
told["mid-run, with nothing to write"] = press(fill)
free()
told["at last"] = press()
told["lost"] = len(list(runner.ready().folder.glob("run*"))) - 1
runner.close()
told["left"] = os.listdir(disk)
print(json.dumps(told))
"""


def test_a_full_disk_is_said_and_a_press_after_it_works(tmp_path: Path, watch: object) -> None:
    command = [*small_disk(tmp_path, 1), sys.executable, "-c", FULL_DISK, json.dumps(SHORT.to_dict())]
    environment = {**os.environ, "TMPDIR": str(tmp_path), "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=110)
    assert (done.returncode, done.stderr) == (0, "")
    told = json.loads(done.stdout)
    for moment in ("after it", "after that", "mid-run, with nothing to write", "at last"):
        assert told[moment] == ["finished", "Finished: 3 optimizer steps.", 3], moment
    for moment in ("creation", "first press", "next press", "mid-run"):
        ended, sentence, steps = told[moment]
        assert ended == "failed", moment
        assert sentence.startswith(("The disk is full", "No folder for temporary files can be written")), (
            moment,
            sentence,
        )
        assert sentence.endswith("Smallest fix: free some space, or set TMPDIR."), (moment, sentence)
        assert "\n" not in sentence
        assert steps == (3 if moment == "mid-run" else 0)
    assert (told["lost"], told["left"]) == (0, [])
    assert watch.with_folder(tmp_path) == []
