"""Processes of framework runs: one that hangs is ended, nothing outlives its parent, nothing leaks in from outside."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from dsaccum_helpers.frameworks import host, run_program
from dsaccum_helpers.mismatches.framework_runs import AUTO, FrameworkRun, accelerate
from dsaccum_helpers.training import RunError

TWO = accelerate(AUTO)._replace(processes=2)


def ranks() -> list[psutil.Process]:
    """The training processes that run now."""
    if not host._HOSTS:
        return []
    try:
        return psutil.Process(host._HOSTS[0].process.pid).children()
    except psutil.NoSuchProcess:
        return []


@pytest.fixture
def meanwhile() -> Iterator[Callable[[Callable[[], None]], None]]:
    """Do something as soon as both processes of the run are there."""
    threads = []

    def start(act: Callable[[], None]) -> None:
        def wait() -> None:
            limit = time.monotonic() + 60
            while len(ranks()) < 2 and time.monotonic() < limit:
                time.sleep(0.005)
            act()

        threads.append(threading.Thread(target=wait))
        threads[-1].start()

    yield start
    for thread in threads:
        thread.join()


def test_unknown_program_starts_nothing() -> None:
    with pytest.raises(RunError, match=r"There is no program 'fairscale'\. Smallest fix: one of accelerate_loop, "):
        run_program(FrameworkRun("fairscale", {}, {}))


def test_process_that_hangs_is_ended(meanwhile) -> None:
    run_program(TWO)
    meanwhile(lambda: ranks()[1].send_signal(signal.SIGSTOP))
    began = time.monotonic()
    with pytest.raises(RunError, match=r"accelerate_loop hung: it has not ended after 3 seconds\."):
        run_program(TWO, seconds=3)
    assert time.monotonic() - began < 10
    assert ranks() == []


def test_process_that_is_killed_is_named(meanwhile) -> None:
    meanwhile(lambda: ranks()[1].kill())
    with pytest.raises(RunError, match=r"Process \d of accelerate_loop (was ended by signal 9|ended with status 1)"):
        run_program(TWO)
    assert ranks() == []


def test_interrupt_ends_all_processes_and_the_next_run_starts_anew(meanwhile) -> None:
    assert run_program(TWO).ended == "finished"
    process, folder = host._HOSTS[0].process, host._HOSTS[0].folder
    seen: list[psutil.Process] = []

    def interrupt() -> None:
        seen.extend(ranks())
        os.kill(os.getpid(), signal.SIGINT)

    meanwhile(interrupt)
    with pytest.raises(KeyboardInterrupt):
        run_program(TWO)
    assert process.poll() is not None
    assert not folder.exists()
    assert len(seen) == 2
    _, alive = psutil.wait_procs(seen, timeout=5)
    assert alive == []


PROGRAM = """
from dsaccum_helpers.frameworks import run_program
from dsaccum_helpers.mismatches.framework_runs import AUTO, accelerate, lightning

result = run_program(accelerate(AUTO))
print(result.ended, result.optimizer_steps, result.weight_difference < 5e-7)
try:
    run_program(lightning({}))
except ValueError as error:
    print(error, flush=True)
run_program(accelerate(AUTO)._replace(processes=2), seconds=600)
"""


def test_nothing_leaks_in_and_nothing_outlives_a_parent_that_is_killed(tmp_path: Path) -> None:
    """In the environment of another job, with a package that is broken, and killed in a run that hangs."""
    (tmp_path / "pytorch_lightning.py").write_text("raise ModuleNotFoundError('gone', name='pytorch_lightning')")
    foreign = {"RANK": "3", "WORLD_SIZE": "7", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": "8"}
    environment = os.environ | foreign | {"TMPDIR": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    parent = subprocess.Popen([sys.executable, "-c", PROGRAM], env=environment, stdout=subprocess.PIPE, text=True)
    below: list[psutil.Process] = []
    try:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "finished 6 True\n"
        assert parent.stdout.readline() == (
            "lightning_module needs pytorch_lightning, which is not installed. "
            'Smallest fix: pip install "dsaccum-helpers[frameworks]".\n'
        )
        limit = time.monotonic() + 30
        while len(below) < 3 and time.monotonic() < limit:
            below = psutil.Process(parent.pid).children(recursive=True)
            time.sleep(0.005)
        assert len(below) == 3
        below[-1].send_signal(signal.SIGSTOP)
    finally:
        parent.kill()
        parent.communicate()
    _, alive = psutil.wait_procs(below, timeout=10)
    assert alive == []
    assert list(tmp_path.glob("dsaccum-frameworks-*")) == []
