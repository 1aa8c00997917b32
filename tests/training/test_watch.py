"""The live observer: names each wrong loop, stays silent on right ones, and changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dsaccum_helpers.mismatches import RUNNABLE
from dsaccum_helpers.observer.hooks import Hooks
from tests.training.watch_right import LOOPS, SILENT

HERE = Path(__file__).parent
#: What these do is right: only what is printed, or when, is not what was meant. No call of the engine shows it.
REPORTING = {code for code, entry in RUNNABLE.items() if entry.severity == "note"}
CODES = [code for code, entry in RUNNABLE.items() if not entry.refused and code not in REPORTING]


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> dict[int, dict[str, Any]]:
    """What each case showed on rank 0, for one and two processes."""
    folder = tmp_path_factory.mktemp("watch")
    environment = {**os.environ, "DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1"}
    found = {}
    for processes in (1, 2):
        script, store = str(HERE / "watch_cases.py"), str(folder / f"store{processes}")
        words = [[sys.executable, script, str(rank), str(processes), store, str(folder)] for rank in range(processes)]
        logs = [(folder / f"log.{processes}.{rank}").open("w") for rank in range(processes)]
        running = [
            subprocess.Popen(one, stdout=log, stderr=log, env=environment) for one, log in zip(words, logs, strict=True)
        ]
        try:
            assert [one.wait(240) for one in running] == [0] * processes, Path(logs[0].name).read_text()[-3000:]
        finally:
            for one, log in zip(running, logs, strict=True):
                one.kill()
                log.close()
        found[processes] = json.loads((folder / f"{processes}.0.json").read_text())
    return found


def _loud(case: dict[str, Any]) -> list[str]:
    return [f"{one['code']}: {one['message']}" for one in case["findings"] if one["severity"] != "note"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("processes", [1, 2])
def test_the_matched_run_shows_nothing(seen: dict[int, Any], processes: int) -> None:
    for stage in range(4):
        case = seen[processes][f"wrong matched {stage}"]
        assert (case["raised"], case["findings"]) == ("", [])


@pytest.mark.timeout(300)
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("code", CODES)
def test_a_mistake_is_named_first(seen: dict[int, Any], code: str, processes: int) -> None:
    """At every stage at which the run differs from the right one; where it does not, nothing is called wrong."""
    shown = 0
    for stage in range(4):
        case = seen[processes][f"wrong {code} {stage}"]
        if "needs" in case:
            continue
        if not case["right"]:
            first = case["findings"][0]
            assert first["code"] == code, (stage, first)
            assert first["step"] >= 0
            assert first["rank"] == 0
            assert f"optimizer step {first['step']}, rank 0" in first["message"]
            shown += 1
        elif case["findings"]:
            assert case["findings"][0]["code"] == code
        if not case["stops"]:
            assert case["raised"] == "", stage
    assert shown or "needs" in seen[processes][f"wrong {code} 0"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize("code", ["loss-divided-twice", "guarded-engine-step", "several-backwards-per-step"])
def test_the_finding_points_at_the_persons_line(seen: dict[int, Any], code: str) -> None:
    where = seen[1][f"wrong {code} 1"]["findings"][0]["where"][0]
    assert Path(where["file"]).name == f"{code.replace('-', '_')}.py"
    line = Path(RUNNABLE[code].loop.__code__.co_filename).read_text().splitlines()[where["line"] - 1]
    assert "engine.backward(" in line or "engine.step(" in line


@pytest.mark.timeout(300)
@pytest.mark.parametrize("code", CODES)
def test_the_mended_run_shows_nothing(seen: dict[int, Any], code: str) -> None:
    cases = [seen[1][f"mended {code} {stage}"] for stage in (0, 2)]
    assert all((case["raised"], _loud(case)) == ("", []) for case in cases if "needs" not in case), cases


@pytest.mark.timeout(300)
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_right_loop_shows_nothing(seen: dict[int, Any], loop: str, processes: int) -> None:
    for stage in (0, 1, 2, 3) if processes == 1 else (0, 2):
        case = seen[processes][f"right {loop} {stage}"]
        assert (case["raised"], _loud(case)) == ("", []), stage
        assert not (loop in SILENT and case["findings"]), stage
        assert case["updates"] >= 3
        assert all(case["left"]), "a hook stayed behind"


@pytest.mark.timeout(300)
def test_watched_weights_are_equal_to_the_bit(seen: dict[int, Any]) -> None:
    cases = [(name, case) for cases in seen.values() for name, case in cases.items() if name.startswith("equal")]
    assert len(cases) == 26
    for name, case in cases:
        assert (case["raised"], case["same"]) == ("", [True, True]), name
        assert case["moved"] > 0.01


#: Per loop: stage to the code that is named first, None for nothing.
ODD: dict[str, dict[int, str | None]] = {
    "skips_backward": dict.fromkeys(range(4), "micro-batch-skipped"),
    "steps_twice_in_no_sync": {0: None, 2: "no-sync-with-partitioned-gradients"},
    "goes_around_the_engine": {0: None, 1: None, 2: None, 3: "known-bad-version"},
    "flag_kept_false": dict.fromkeys(range(4), "sticky-boundary-override"),
    "broken_off": dict.fromkeys(range(4), "leftover-micro-batches"),
    "halves": {0: None, 1: "several-backwards-per-step", 2: "several-backwards-per-step", 3: None},
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("loop", ODD)
def test_other_wrong_loops(seen: dict[int, Any], loop: str) -> None:
    for stage, code in ODD[loop].items():
        loud = [one["code"] for one in seen[1][f"odd {loop} {stage}"]["findings"] if one["severity"] != "note"]
        assert loud[:1] == ([code] if code else []), (stage, loud)


#: Per loop: stages, code and severity of the only finding, and what its message says.
JUDGED = {
    "divided_above_the_engine": ((0, 1, 2, 3), "loss-divided-twice", "error", "by 16 in all"),
    "tenth_of_a_loss": ((0, 1, 2, 3), "loss-divided-twice", "note", "sum to 0.1, not 1"),
    "half_by_division": ((0, 1, 2, 3), "loss-divided-twice", "warning", "the half of a squared error"),
    "quarter_by_factor": ((0, 1, 2, 3), "loss-divided-twice", "warning", "the weight of a task"),
    "gradients_changed": ((0,), "known-bad-version", "warning", "the script changed p.grad itself"),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("loop", JUDGED)
def test_what_can_be_meant_is_no_error(seen: dict[int, Any], loop: str) -> None:
    stages, code, severity, words = JUDGED[loop]
    for stage in stages:
        case = seen[1][f"odd {loop} {stage}"]
        (finding,) = case["findings"]
        assert (case["raised"], finding["code"], finding["severity"]) == ("", code, severity), stage
        assert words in finding["message"], stage


@pytest.mark.timeout(300)
def test_ranks_that_drift_apart(seen: dict[int, Any]) -> None:
    first = seen[2]["odd steps_twice_in_no_sync 0"]["findings"][0]
    assert (first["code"], first["title"]) == ("no-sync-with-partitioned-gradients", "The ranks drift apart")


@pytest.mark.timeout(300)
def test_what_another_rank_alone_does_wrong_is_in_the_summary(seen: dict[int, Any]) -> None:
    (finding,) = seen[2]["odd one_rank 0"]["findings"]
    assert (finding["code"], finding["severity"], finding["rank"]) == ("loss-divided-twice", "error", 1)


@pytest.mark.timeout(300)
def test_ranks_that_begin_differently_do_not_wait_for_each_other(seen: dict[int, Any]) -> None:
    case = seen[2]["odd begun 0"]
    assert (case["raised"], case["findings"], case["updates"]) == ("", [], 5)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("stage", [0, 1])
def test_two_stages_of_a_pipeline_show_nothing(seen: dict[int, Any], stage: int) -> None:
    """There the norm that ZeRO-1 gives is that of both stages."""
    case = seen[2][f"right pipeline {stage}"]
    assert (case["raised"], case["findings"], case["updates"]) == ("", [], 5)


def test_a_hook_under_another_wrapper_is_still_at_the_end() -> None:
    class Owner:
        def step(self) -> str:
            return "stepped"

    owner, hooks, calls = Owner(), Hooks(), []
    hooks.wrap(owner, "step", lambda step: lambda: (calls.append("seen"), step())[1])
    ours = owner.step
    owner.step = lambda: ours()  # type: ignore[method-assign]
    assert (owner.step(), calls) == ("stepped", ["seen"])
    hooks.remove()
    assert (owner.step(), calls) == ("stepped", ["seen"])


@pytest.mark.timeout(300)
def test_a_report_that_cannot_be_written_hides_no_exception(seen: dict[int, Any]) -> None:
    case = seen[1]["end unwritable"]
    assert (case["raised"], case["same"]) == ("", True)
    assert "cannot be written" in case["said"]


@pytest.mark.timeout(300)
def test_a_destroyed_engine_is_not_held_by_its_watch(seen: dict[int, Any]) -> None:
    case = seen[1]["end destroyed"]
    assert (case["raised"], case["running"], case["updates"]) == ("", False, 5)
    assert case["held"] == [False, False], "engine and parameters"
    assert (case["verdict"], case["gas"]["gradient_accumulation_steps"]) == ("ok", 4)
    assert "watch(engine) once more" in case["again"]


@pytest.mark.timeout(300)
def test_an_exception_in_training_passes_through(seen: dict[int, Any]) -> None:
    case = seen[1]["end exception"]
    assert (case["raised"], case["same"], case["left"]) == ("", True, True)
    assert (case["codes"], case["summaries"]) == ([], 1)


@pytest.mark.timeout(300)
def test_the_summary_is_printed_once_and_written_on_request(seen: dict[int, Any]) -> None:
    case = seen[1]["end report"]
    (finding,) = case["report"]["findings"]
    assert (case["raised"], case["summaries"], finding["code"]) == ("", 1, "batch-product-mismatch")
    assert "32 samples" in finding["message"]
    assert "64 are wanted" in finding["message"]
    assert case["report"]["batch"]["train_batch_size"] == 32
    assert "<" in case["html"]
