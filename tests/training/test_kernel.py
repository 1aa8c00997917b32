"""A real Jupyter kernel is interrupted, restarted, killed and shut down: nothing stays behind, the next press works."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from jupyter_client.manager import KernelManager

ROOT = Path(__file__).resolve().parents[2]
AFTER_KILL_SECONDS = 3.0
SHUTDOWN_SECONDS = 1.5

IMPORT = f"import sys; sys.path.insert(0, {str(ROOT)!r})\nfrom dsaccum_helpers import Setting, compare"
PRESS = "compare('loss-divided-twice', setting=Setting(task='regression', optimizer_steps=3, processes=2))"
ENDLESS = "compare('manual-accumulation', setting=Setting(optimizer_steps=10_000, processes=2))"


class Notebook:
    """A kernel as a person uses it, and the processes below it."""

    def __init__(self, watch: object) -> None:
        self.watch = watch
        self.manager = KernelManager(kernel_name="python3")
        self.manager.start_kernel()
        self.client = self.manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=60)
        self.pid = self.manager.provisioner.pid
        assert self.run(IMPORT)["status"] == "ok"

    def run(self, code: str, timeout: float = 60) -> dict:
        limit = time.monotonic() + timeout
        while True:
            reply = self.client.execute_interactive(code, timeout=timeout, output_hook=lambda _: None)["content"]
            # ipykernel turns away what reaches it in the moment in which it clears its queue after an error.
            if reply["status"] != "aborted" or time.monotonic() > limit:
                return reply

    def run_endlessly(self) -> list[psutil.Process]:
        """Press and do not wait; gives template and ranks, as soon as the ranks compute."""
        self.client.execute(ENDLESS)
        self.watch.until(lambda: len(self.busy()) == 2, 60)
        return self.processes()

    def processes(self) -> list[psutil.Process]:
        return self.watch.children(self.pid)

    def ranks(self) -> list[psutil.Process]:
        direct = psutil.Process(self.pid).children()
        return [one for one in self.processes() if one not in direct]

    def busy(self) -> list[psutil.Process]:
        """Ranks that train: a spare one waits for its job and uses nothing."""
        found = []
        for one in self.ranks():
            with contextlib.suppress(psutil.NoSuchProcess):
                found += [one] if one.cpu_times().user > 0.3 else []
        return found

    def template(self) -> psutil.Process:
        (found,) = psutil.Process(self.pid).children()
        return found

    def reply(self) -> dict:
        return self.client.get_shell_msg(timeout=30)["content"]

    def check_press(self) -> None:
        assert self.run(f"done = {PRESS}")["status"] == "ok"
        assert self.run("assert [r.ended for r in done.results] == ['finished'] * 2, str(done)")["status"] == "ok"

    def close(self) -> None:
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


@pytest.fixture
def notebook(watch: object) -> Iterator[Notebook]:
    made = Notebook(watch)
    yield made
    made.close()


def test_interrupt_ends_the_ranks_and_a_clean_shutdown_everything(notebook: Notebook, watch: object) -> None:
    notebook.run_endlessly()
    ranks = notebook.ranks()
    began = time.monotonic()
    notebook.manager.interrupt_kernel()
    reply = notebook.reply()
    assert (reply["status"], reply["ename"]) == ("error", "KeyboardInterrupt")
    assert time.monotonic() - began < 2
    assert watch.gone(ranks)
    notebook.check_press()
    # The same template, one spare set, and nothing else.
    assert len(notebook.ranks()) <= 2
    everything, folder = notebook.processes(), watch.folder(notebook.template())
    assert folder.is_dir()
    began = time.monotonic()
    notebook.manager.shutdown_kernel()
    took = time.monotonic() - began
    assert watch.gone(everything)
    assert watch.with_folder(folder) == []
    assert not folder.exists()
    assert took < SHUTDOWN_SECONDS


def test_restarted_then_killed_in_mid_run_it_leaves_nothing(notebook: Notebook, watch: object) -> None:
    everything, folder = notebook.run_endlessly(), watch.folder(notebook.template())
    notebook.manager.restart_kernel()
    watch.until(lambda: watch.gone(everything), AFTER_KILL_SECONDS)
    watch.until(lambda: not folder.exists(), AFTER_KILL_SECONDS)
    notebook.client.wait_for_ready(timeout=60)
    notebook.pid = notebook.manager.provisioner.pid
    assert notebook.processes() == []
    assert notebook.run(IMPORT)["status"] == "ok"
    notebook.check_press()

    everything, folder = notebook.run_endlessly(), watch.folder(notebook.template())
    assert len(everything) >= 3
    os.kill(notebook.pid, signal.SIGKILL)
    watch.until(lambda: watch.gone(everything), AFTER_KILL_SECONDS)
    watch.until(lambda: not folder.exists(), AFTER_KILL_SECONDS)
    assert watch.with_folder(folder) == []
