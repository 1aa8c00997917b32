"""``dsaccum watch`` on a script of a person's own, and ``watch`` from Python: files, exit statuses, errors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from dsaccum_helpers import DsaccumError, watch
from dsaccum_helpers.commands import main

SCRIPT = """\
import sys
import deepspeed, torch
import beside
from torch import nn

deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
deepspeed.init_distributed(dist_backend="gloo", verbose=False)
torch.manual_seed(0)
model = nn.Linear(4, 2)
config = {"train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": beside.COUNT, "gradient_clipping": 0.0}
config["optimizer"] = {"type": "SGD", "params": {"lr": 0.1}}
engine, *_ = deepspeed.initialize(model=model, model_parameters=model.parameters(), config=config)
data = torch.utils.data.TensorDataset(torch.randn(96, 4), torch.randint(0, 2, (96,)))
for x, y in torch.utils.data.DataLoader(data, batch_size=8 if "sizes" in sys.argv else 4):
    loss = nn.functional.cross_entropy(engine(x), y)
    engine.backward(loss / beside.COUNT if "divide" in sys.argv else loss)
    engine.step()
    if "raise" in sys.argv:
        raise ValueError("of my own")
print("weights", model.weight.sum().item(), sys.argv)
if "leave" in sys.argv:
    sys.exit(7)
"""
DIVIDES = next(i for i, line in enumerate(SCRIPT.splitlines(), 1) if "engine.backward" in line)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("COUNT = 4\n")
    return tmp_path


def _run(folder: Path, *words: str, command: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    own = {"DS_ACCELERATOR": "cpu", "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    own |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1"} if "--processes" not in words else {}
    command = command or (sys.executable, "-m", "dsaccum_helpers.commands", "watch")
    environment = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE")}
    return subprocess.run(
        [*command, *words], cwd=folder, env=environment | own, capture_output=True, text=True, timeout=100
    )


def test_a_wrong_script_is_named_and_its_report_written(folder: Path) -> None:
    wanted = ("--set", "wanted.train_batch_size=16")
    done = _run(folder, *wanted, "--json", "seen.json", "train.py", "divide")
    assert done.returncode == 1, done.stderr
    report = json.loads((folder / "seen.json").read_text())
    (finding,) = report["findings"]
    assert (finding["code"], finding["severity"]) == ("loss-divided-twice", "error")
    assert finding["where"] == [{"file": "train.py", "line": DIVIDES}]
    assert (finding["step"], finding["rank"], report["optimizer_steps"]) == (1, 0, 6)
    assert report["batch"]["train_batch_size"] == 16
    assert done.stderr.count("dsaccum watch:") == 1
    assert f"train.py:{DIVIDES}" in done.stderr


def test_a_right_script_runs_as_without(folder: Path) -> None:
    watched = _run(folder, "train.py", "right")
    alone = _run(folder, "train.py", "right", command=(sys.executable,))
    assert watched.returncode == alone.returncode == 0, watched.stderr
    assert watched.stdout == alone.stdout
    assert "6 optimizer steps. OK: nothing wrong found." in watched.stderr


def test_a_dataloader_is_followed_without_being_named_and_the_exit_status_is_kept(folder: Path) -> None:
    done = _run(folder, "--json", "seen.json", "-m", "train", "sizes", "leave")
    codes = [one["code"] for one in json.loads((folder / "seen.json").read_text())["findings"]]
    assert (done.returncode, codes) == (7, ["loader-batch-differs"])


def test_accumulation_that_was_never_switched_on(folder: Path) -> None:
    (folder / "beside.py").write_text("COUNT = 1\n")
    done = _run(folder, "--set", "wanted.train_batch_size=64", "--json", "seen.json", "train.py")
    (finding,) = json.loads((folder / "seen.json").read_text())["findings"]
    assert (done.returncode, finding["code"]) == (1, "accumulation-key-missing")
    assert "16 accumulation steps would be needed" in finding["message"]


def test_an_exception_of_the_script_is_shown_as_python_shows_it(folder: Path) -> None:
    watched = _run(folder, "train.py", "raise")
    assert watched.returncode == 1
    assert "ValueError: of my own" in watched.stderr
    assert "observer" not in watched.stderr.split("Traceback")[1].split("ValueError")[0]
    assert "leftover" not in watched.stderr


def test_one_process_is_told_what_a_launcher_would_tell_it(folder: Path) -> None:
    done = _run(folder, "--processes", "1", "--json", "seen.json", "train.py", "right")
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "seen.json").read_text())["batch"]["data_parallel_size"] == 1


def test_several_processes_are_started(folder: Path) -> None:
    done = _run(folder, "--processes", "2", "--json", "seen.json", "train.py", "divide")
    assert done.returncode == 1, done.stderr
    report = json.loads((folder / "seen.json").read_text())
    assert report["batch"]["data_parallel_size"] == 2
    assert report["findings"][0]["code"] == "loss-divided-twice"
    assert done.stderr.count("dsaccum watch:") == 1


def test_a_script_that_goes_elsewhere_forks_and_closes_its_streams(folder: Path) -> None:
    """The report stands where it was asked for, and is said once, on the terminal."""
    (folder / "odd.py").write_text(
        "import train\nimport os, sys\nif not os.fork():\n    sys.exit(5)\nos.wait()\nos.chdir('/')\n"
        "sys.stdout.close()\nsys.stderr.close()\n"
    )
    done = _run(folder, "--json", "seen.json", "--", "odd.py")
    assert done.returncode == 0, done.stderr
    assert json.loads((folder / "seen.json").read_text())["optimizer_steps"] == 6
    assert done.stderr.count("dsaccum watch:") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "needs a script"),
        (["nowhere.py"], "There is no script nowhere.py"),
        (["-m", "nowhere"], "There is no module nowhere"),
        (["--sample-every", "0", "x.py"], "no positive integer"),
        (["--processes", "999999", "x.py"], "too many for this machine. Smallest fix: --processes "),
        (["--set", "zero_stage=2", "x.py"], "watch takes one fact"),
        (["--jsn", "x.py"], "Smallest fix: --json"),
        (["--json"], "needs a value"),
        (["--json", "/", __file__], "--json / names no file"),
        (["--json=", __file__], "names no file"),
        (["/"], "/ is a folder"),
    ],
)
def test_what_is_off_is_one_line(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_script_without_an_engine(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(folder / "beside.py")]) == 2
    assert "made no DeepSpeed engine" in capsys.readouterr().err


def test_help_names_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(name in text for name in ("--set", "--sample-every", "--processes", "--json", "--quiet", "-m MODULE"))


def test_what_is_no_engine_is_refused() -> None:
    with pytest.raises(DsaccumError, match=r"no DeepSpeed engine\. Smallest fix: watch"):
        watch(object())


@pytest.mark.parametrize(("option", "value"), [("sample_every", None), ("wanted_train_batch_size", "16"), ("json", 3)])
def test_an_option_that_is_off_is_refused_before_the_training(option: str, value: object) -> None:
    engine = SimpleNamespace(gradient_accumulation_steps=4, _take_model_step=None)
    with pytest.raises(DsaccumError, match=rf"{option} is .*Smallest fix: {option}="):
        watch(engine, **{option: value})  # type: ignore[arg-type]
