"""How a run ended, in one sentence: every way that reports, exit statuses and the watchdog can combine."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dsaccum_helpers.setting import Setting
from dsaccum_helpers.training import Point, Run, RunResult
from dsaccum_helpers.training.endings import conclude, conclude_unstarted, explains_more, stopped_note
from dsaccum_helpers.training.processes import ProcessSet, signal_name, wait_gone

SETTING = Setting(processes=2)
FINISHED = {"how": "finished", "rank": 0}
GLOO = {
    "how": "failed",
    "rank": 0,
    "words": "RuntimeError: [gloo/pair.cc:553] Connection closed by peer [127.0.0.1]:3821",
}
CAUSE = {"how": "failed", "rank": 1, "words": "ZeroDivisionError: division by zero"}
MEMORY = {"how": "failed", "rank": 1, "words": "RuntimeError: can't allocate memory", "memory": True}
DISK = {"how": "failed", "rank": 0, "words": "OSError: [Errno 28] No space left on device"}


def ending(
    tmp_path: Path,
    report: dict[str, Any] | None,
    exits: dict[int, int],
    *,
    cancelled: bool = False,
    hung: bool = False,
    code: str = "matched",
    note: str = "",
    steps: int = 2,
) -> RunResult:
    run = Run(SETTING, code, keep_weights=False)
    run.result.points += [Point(step, 1.0, None, None, None, step, step, 0.0) for step in range(steps + 1)]
    run.set = ProcessSet(None, "run1", tmp_path, 2, (-1, -1, -1))
    run.report, run.exits, run.hung, run.note = report, exits, hung, note
    if cancelled:
        run.cancelled.set()
    conclude(run)
    return run.result


@pytest.mark.parametrize(
    ("report", "exits", "ended", "sentence"),
    [
        (FINISHED, {0: 0, 1: 0}, "finished", "Finished: 2 optimizer steps."),
        # It had finished; what happened to a process after that changes nothing.
        (FINISHED, {0: 0, 1: -9}, "finished", "Finished: 2 optimizer steps."),
        (
            None,
            {0: -9, 1: -9},
            "failed",
            "Process 0 of 2 was killed from outside (SIGKILL); the usual reason is that memory",
        ),
        (None, {1: -9, 0: 1}, "failed", "Process 1 of 2 was killed from outside (SIGKILL)"),
        # Rank 0 only says that it lost the other one.
        (GLOO, {1: -9, 0: 1}, "failed", "Process 1 of 2 was killed from outside (SIGKILL)"),
        (GLOO, {1: -11, 0: 1}, "failed", "Process 1 of 2 was killed from outside (SIGSEGV). Smallest fix: "),
        (MEMORY, {1: 1, 0: -9}, "failed", "Process 1 ran out of memory. Smallest fix: a smaller micro-batch"),
        (DISK, {0: 1, 1: -9}, "failed", "The disk is full"),
        (CAUSE, {1: 1, 0: -9}, "failed", "A training process failed (ZeroDivisionError: division by zero)"),
        (None, {0: 1, 1: 1}, "failed", "A training process failed. Smallest fix: "),
        (None, {}, "failed", "The process that training starts from is gone. Smallest fix: press Run again"),
    ],
)
def test_the_cause_is_named_not_the_consequence(
    tmp_path: Path, report: dict[str, Any] | None, exits: dict[int, int], ended: str, sentence: str
) -> None:
    result = ending(tmp_path, report, exits)
    assert result.ended == ended
    assert result.sentence.startswith(sentence)
    assert result.sentence.endswith(".")
    assert "\n" not in result.sentence
    assert "Traceback" not in result.sentence


@pytest.mark.parametrize("report", [None, GLOO, CAUSE])
def test_a_cancelled_run_is_cancelled_whatever_its_processes_say(tmp_path: Path, report: dict[str, Any] | None) -> None:
    result = ending(tmp_path, report, {0: -9, 1: -9}, cancelled=True)
    assert (result.ended, result.sentence) == ("cancelled", "Stopped after 2 optimizer steps.")


def test_cancelling_what_has_finished_changes_nothing(tmp_path: Path) -> None:
    assert ending(tmp_path, FINISHED, {0: 0, 1: 0}, cancelled=True).ended == "finished"


def test_a_hung_run_says_who_hangs(tmp_path: Path) -> None:
    result = ending(tmp_path, None, {0: -9, 1: -9}, hung=True, note="stopped processes: 1")
    assert result.sentence == (
        "The run gave no sign of life and was ended (stopped processes: 1). Smallest fix: press Run again."
    )
    assert "()" not in ending(tmp_path, FINISHED, {0: -9, 1: -9}, hung=True).sentence


def test_a_run_that_never_began_says_so() -> None:
    result = RunResult("matched", SETTING)
    conclude_unstarted(result)
    assert (result.ended, result.sentence, result.points) == ("cancelled", "Stopped before it began.", [])


def test_a_refusal_gives_the_engines_words_and_ours(tmp_path: Path) -> None:
    words = "AssertionError: Check batch related parameters. 256 != 16 * 4 * 2"
    report = {"how": "refused", "rank": 0, "words": words}
    result = ending(tmp_path, report, {0: 0, 1: 0}, code="written-for-other-world-size", steps=0)
    assert (result.ended, result.engine_words) == ("refused", words)
    assert result.sentence == "DeepSpeed refused the configuration; nothing was trained."
    assert result.our_words.startswith(
        "train_batch_size 256 is not 16 samples per micro-batch x 4 accumulation steps x 2"
    )
    assert "these numbers fit 4 processes" in result.our_words


def test_the_log_keeps_the_end_of_what_each_process_wrote(tmp_path: Path) -> None:
    (tmp_path / "rank0.log").write_text("x" * 9000 + "the end of rank 0")
    (tmp_path / "rank1.log").write_bytes(b"\xff not text, and yet told")
    log = ending(tmp_path, CAUSE, {1: 1}).log
    assert log.startswith("process 0:\nxxx")
    assert "the end of rank 0\nprocess 1:\n" in log
    assert log.endswith("not text, and yet told")
    assert len(log) < 5000


@pytest.mark.parametrize(
    ("report", "other", "better"),
    [(CAUSE, GLOO, True), (GLOO, CAUSE, False), (CAUSE, CAUSE, False), (GLOO, GLOO, False)],
)
def test_a_cause_replaces_a_consequence_and_nothing_else(report: dict, other: dict, better: bool) -> None:
    assert explains_more(report, other) is better


def test_a_stopped_process_is_seen_and_a_running_one_is_not() -> None:
    sleep = [sys.executable, "-c", "print(1, flush=True); import time; time.sleep(60)"]
    processes = [subprocess.Popen(sleep, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for one in processes:
            one.stdout.readline()
        pids = [one.pid for one in processes]
        assert stopped_note(pids) == ""
        os.kill(pids[1], signal.SIGSTOP)
        os.waitpid(pids[1], os.WUNTRACED)
        assert stopped_note(pids) == "stopped processes: 1"
        assert not wait_gone(pids, 0.05)
    finally:
        for one in processes:
            one.kill()
            one.wait()
            one.stdout.close()
    assert stopped_note(pids) == ""
    assert wait_gone(pids, 1)


def test_signals_have_names() -> None:
    assert signal_name(9) == "SIGKILL"
    assert signal_name(250) == "signal 250"
