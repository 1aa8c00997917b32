"""``dsaccum compare`` as a person types it, in a process of its own."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from dsaccum_helpers import Setting
from dsaccum_helpers.commands.compare import every
from dsaccum_helpers.exports import FILES
from dsaccum_helpers.mismatches import RUNNABLE

COMMAND = [sys.executable, "-m", "dsaccum_helpers.commands", "compare"]
SHORT = ["--task", "regression", "--steps", "6", "--stage", "1", "--processes", "2"]


def dsaccum_compare(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *words], cwd=folder, capture_output=True, text=True, timeout=300)


def test_json_has_the_setting_the_points_and_the_oracle(tmp_path: Path) -> None:
    words = ("--oracle", "--format", "json", "--accumulation-steps", "2", "--micro-batch", "8", "--clipping", "0.5")
    done = dsaccum_compare(tmp_path, "scheduler-unit", *SHORT, *words)
    answer = json.loads(done.stdout)
    assert done.returncode == 0, done.stderr
    assert [run["code"] for run in answer["runs"]] == ["oracle", "matched", "scheduler-unit"]
    setting = {"train_micro_batch_size_per_gpu": 8, "gradient_accumulation_steps": 2, "gradient_clipping": 0.5}
    assert setting.items() <= answer["setting"].items()
    assert all(run["points"] for run in answer["runs"])
    assert json.loads((tmp_path / "dsaccum-export-1" / "comparison.json").read_text())["rows"] == answer["rows"]


def test_all_prints_predicted_beside_measured_and_draws_a_small_picture_for_each(tmp_path: Path) -> None:
    done = dsaccum_compare(tmp_path, "--all", *SHORT, "--output", "seen")
    *left_out, last = done.stderr.splitlines()
    assert (done.returncode, last) == (0, f"Written to {tmp_path / 'seen'}")
    missing = {line.partition(" is left out: ")[0] for line in left_out}
    # The regression has no layer to normalise, and fp32 neither 16-bit sums nor their faults.
    assert missing == {"accumulation-dtype", "known-bad-version", "batch-norm-per-micro-batch"}
    shown = [code for code in RUNNABLE if code not in missing]
    rows = [line.split() for line in done.stdout.splitlines() if "× first gradient norm" in line]
    # Four accumulation steps, divided by once more.
    assert next(row for row in rows if row[0] == "loss-divided-twice")[-3:] == ["0.25", "0.25", "yes"]
    assert ["matched", "Finished:", "6", "optimizer", "steps."] in [line.split() for line in done.stdout.splitlines()]
    assert {path.name for path in (tmp_path / "seen").iterdir()} == set(FILES)
    points = (tmp_path / "seen" / "points.csv").read_text().splitlines()[1:]
    # Where the loop is stopped there is the point before the first update, and no curve.
    refused = {code for code in shown if RUNNABLE[code].refused}
    stopped = {code for code in shown if RUNNABLE[code].stops(Setting(zero_stage=1, processes=2))}
    assert {line.partition(",")[0] for line in points} == {*shown, "matched"} - refused
    assert stopped == {"optimizer-step-bypasses-engine"}
    picture = (tmp_path / "seen" / "curves.svg").read_text()
    assert all(f"<!-- {code} -->" in picture for code in shown)
    assert picture.count("no curve: refused") == len(refused) + len(stopped) > 1


def test_all_says_what_it_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    codes = every(Setting(gradient_accumulation_steps=1))
    assert "loader-batch-differs" in codes
    assert "loss-divided-twice" not in codes
    assert "loss-divided-twice is left out: With gradient_accumulation_steps 1" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "named", "fix"),
    [
        ([], "needs a code", "dsaccum compare batch-product-mismatch"),
        (["loss-divided-twce"], "loss-divided-twce", "use loss-divided-twice"),
        (["untagged-step"], "untagged-step", "use"),
        (["known-bad-version"], "known-bad-version: The fault that a run shows", "dtype 'bf16'"),
        (["generation-batch"], "generation-batch: It needs TRL", "one of batch-product-mismatch"),
        (["loss-divided-twice", "--stage", "4"], "zero_stage is 4", "0, 1, 2, 3"),
        (["loss-divided-twice", "--stage", "two"], "--stage", "--help"),
        (["loss-divided-twice", "--stag", "2"], "--stag", "--help"),
        (["loss-divided-twice", "--accumulation-steps", "1"], "nothing to accumulate", "gradient_accumulation_steps 2"),
        (["loss-divided-twice:mended:mended"], "is not a mismatch", "use loss-divided-twice"),
        (["loss-divided-twice", "--output", "mine/comparison.json/x"], "lies below one", "another folder"),
        (["loss-divided-twice", "--output", "mine"], "comparison.json is there already", "another folder"),
    ],
)
def test_what_is_off_is_one_line_before_anything_starts(words: list[str], named: str, fix: str, tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "comparison.json").write_text("my own words")
    done = dsaccum_compare(tmp_path, *words)
    assert (done.returncode, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    said, _, remedy = done.stderr.partition("Smallest fix:")
    assert named in said
    assert fix in remedy
    assert (tmp_path / "mine" / "comparison.json").read_text() == "my own words"


def test_interrupting_ends_every_process(tmp_path: Path) -> None:
    words = ["loss-divided-twice", "--task", "language-large", "--steps", "2000"]
    with subprocess.Popen([*COMMAND, *words], cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        began, family = time.monotonic(), []
        while len(family) < 2:  # the template, and a process of the first run
            assert time.monotonic() - began < 120
            family = psutil.Process(process.pid).children(recursive=True)
            time.sleep(0.05)
        os.kill(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=60)
    assert process.returncode == 130
    assert b"Traceback" not in said
    _, alive = psutil.wait_procs(family, timeout=20)
    assert not alive
    assert not list(tmp_path.iterdir())
