"""The live observer: names each wrong loop, stays silent on right ones, and changes nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from watch_right import LOOPS

from dsaccum_helpers.mismatches import RUNNABLE

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
    cases = [
        found
        for name, found in {**seen[1], **{f"2 {n}": c for n, c in seen[2].items()}}.items()
        if f"mended {code} " in name and "needs" not in found
    ]
    assert all((case["raised"], _loud(case)) == ("", []) for case in cases), cases


@pytest.mark.timeout(300)
@pytest.mark.parametrize("processes", [1, 2])
@pytest.mark.parametrize("loop", LOOPS)
def test_a_right_loop_shows_nothing(seen: dict[int, Any], loop: str, processes: int) -> None:
    for stage in (0, 1, 2, 3) if processes == 1 else (0, 2):
        case = seen[processes][f"right {loop} {stage}"]
        assert (case["raised"], _loud(case)) == ("", []), stage
        assert case["updates"] >= 3
        assert all(case["left"]), "a hook stayed behind"


@pytest.mark.timeout(300)
def test_watched_weights_are_equal_to_the_bit(seen: dict[int, Any]) -> None:
    cases = {name: case for cases in seen.values() for name, case in cases.items() if name.startswith("equal")}
    assert len(cases) == 24
    for name, case in cases.items():
        assert (case["raised"], case["same"]) == ("", [True, True]), name
        assert case["moved"] > 0.01
