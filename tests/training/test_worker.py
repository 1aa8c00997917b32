"""The worker as a script under a launcher, and the recorder that must not change what it records."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy
import pytest

from dsaccum_helpers.setting import Setting
from dsaccum_helpers.training import Point, RunResult, worker

Finish = Callable[..., list[RunResult]]

ROOT = Path(__file__).resolve().parents[2]
SETTING = Setting(optimizer_steps=4, train_micro_batch_size_per_gpu=4, processes=2, zero_stage=2)


def environment() -> dict[str, str]:
    """As in a terminal; one thread a process as everywhere here."""
    names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
    kept = {name: value for name, value in os.environ.items() if name not in names}
    return {**kept, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def free_port() -> int:
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


def points_of(lines: str) -> list[Point]:
    events = [json.loads(line) for line in lines.splitlines() if line.startswith("{")]
    assert events[-1]["event"] == "ended"
    points = [event for event in events if event.pop("event") == "point"]
    for point in points:
        del point["micro_batches"]
    return [Point(**point) for point in points]


def test_under_torchrun_it_gives_the_points_of_the_runner(finish: Finish, tmp_path: Path) -> None:
    code = "manual-accumulation"  # at stage 2 it depends on every detail
    launcher = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--nproc_per_node",
        "2",
        "--master_port",
        str(free_port()),
    ]
    output = tmp_path / "points.jsonl"
    # The processes are counted by the launcher, whatever the setting says.
    asked = json.dumps({**SETTING.to_dict(), "processes": 1})
    words = ["-m", "dsaccum_helpers.training.worker", "--setting", asked, "--mismatch", code, "--output", str(output)]
    done = subprocess.run([*launcher, *words], env=environment(), capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    (usual,) = finish((SETTING, code))
    assert points_of(output.read_text()) == usual.points


def test_without_a_launcher_it_is_one_process_and_writes_to_standard_output(finish: Finish) -> None:
    command = [sys.executable, "-m", "dsaccum_helpers.training.worker", "--setting", json.dumps({"optimizer_steps": 2})]
    done = subprocess.run(
        command,
        env={**environment(), "MASTER_PORT": str(free_port())},
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    (usual,) = finish(Setting(optimizer_steps=2))
    assert points_of(done.stdout) == usual.points


def test_what_goes_wrong_is_told_and_never_raised(capfd: pytest.CaptureFixture[str]) -> None:
    told: list[dict] = []
    worker.train({"setting": Setting().to_dict(), "mismatch": "nonsense"}, 0, None, told.append, None)
    (event,) = told
    assert (event["event"], event["how"], event["rank"], event["memory"]) == ("ended", "failed", 0, False)
    assert event["words"].startswith("UnknownMismatchError: 'nonsense' is not a mismatch of the catalogue.")
    assert "Traceback" in capfd.readouterr().err, "for the log of the run"


@pytest.mark.parametrize("processes", [1, 2])
def test_recording_changes_nothing(finish: Finish, tmp_path: Path, processes: int) -> None:
    """The same loop without the recorder, in processes of its own: the same weights to the bit at every stage."""
    settings = [
        Setting(
            optimizer_steps=5, train_micro_batch_size_per_gpu=4, processes=processes, zero_stage=stage, optimizer=name
        )
        for stage, name in ((0, "SGD"), (1, "Adam"), (2, "SGD"), (3, "Adam"))
    ]
    asked = json.dumps([setting.to_dict() for setting in settings])
    program = str(Path(__file__).with_name("unrecorded.py"))
    ranks = [
        subprocess.Popen(
            [sys.executable, program, str(rank), str(processes), str(tmp_path), asked],
            env={**environment(), "GLOO_SOCKET_IFNAME": "lo"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(processes)
    ]
    said = [rank.communicate(timeout=110)[1] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0] * processes, said
    for number, recorded in enumerate(finish(*settings)):
        alone = numpy.load(tmp_path / f"{number}.npy")
        assert (alone == recorded.weights).all(), recorded.setting
