"""`dsaccum check` as a person types it: options, exit statuses, formats, one clear line for whatever is off."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import dsaccum_helpers.doctor
from dsaccum_helpers import commands
from dsaccum_helpers.commands import main
from dsaccum_helpers.commands.options import FLAGS, VALUED, parse
from dsaccum_helpers.commands.usage import CHECK
from dsaccum_helpers.job import JobError

ROOT = Path(__file__).resolve().parents[2]
RIGHT = {"train_batch_size": 64, "train_micro_batch_size_per_gpu": 4, "gradient_accumulation_steps": 4}
WRONG = {**RIGHT, "train_batch_size": 100}


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in, with one right and one wrong config."""
    monkeypatch.chdir(tmp_path)
    Path("right.json").write_text(json.dumps(RIGHT, indent=2))
    Path("wrong.json").write_text(json.dumps(WRONG, indent=2))
    return tmp_path


def run(*words: str, environment: dict[str, str] | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})}
    command = [sys.executable, "-m", "dsaccum_helpers.commands", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, **options)


@pytest.mark.parametrize(
    ("words", "status"),
    [
        (["right.json", "--processes", "4"], 0),
        (["wrong.json", "--processes=4"], 1),
        (["wrong.json", "--processes", "4", "--format", "json"], 1),
        (["wrong.json", "--processes", "4", "--ignore", "batch-product-mismatch"], 0),
        (["wrong.json", "--processes", "4", "--select", "scheduler-unit,elasticity"], 0),
        (["right.json"], 0),
        (["right.json", "--for", "4,4"], 0),
        (["right.json", "--for", "4,7"], 1),
        (["--set", "train_batch_size=64", "--set", "gradient_accumulation_steps=4", "--processes", "2"], 0),
        (["--", "right.json"], 0),
        (["--help"], 0),
    ],
)
def test_exit_status(words: list[str], status: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", *words]) == status
    shown = capsys.readouterr()
    assert shown.out
    assert shown.err == ""


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--processes", "-4"], "--processes -4 is no positive integer. Smallest fix: --processes 4."),
        (["--processes", "0"], "--processes 0"),
        (["--processes", "four"], "--processes four"),
        (["--processes", "4.0"], "--processes 4.0"),
        (["--processes", "4_0"], "--processes 4_0"),
        (["--processes", "٤"], "--processes"),
        (["--processes", "9" * 5000], "--processes 9999"),
        (["--processes"], "--processes needs a value. Smallest fix: --processes 4."),
        (["--processes="], "--processes"),
        (["--tensor-parallel", "0"], "--tensor-parallel 0"),
        (["--framework", "pytorch"], "--framework 'pytorch'"),
        (["--framework", "Transformers"], "--framework transformers"),
        (["--framework", "--format", "json"], "--framework needs a value"),
        (["--format", "xml"], "--format 'xml' is none of text, json, sarif, github, html"),
        (["--for", "0"], "--for 0 is no positive integer"),
        (["--for", "4,,8"], "--for 4,,8"),
        (["--for", "4,x"], "--for 4,x"),
        (["--have", "x"], "--have 'x' is not NAME==VERSION. Smallest fix: --have deepspeed==0.19.8."),
        (["--have", "deepspeed=0.19"], "--have"),
        (["--have", "==1"], "--have"),
        (["--set", "nonsense=1"], "--set nonsense: no fact and no DeepSpeed key has this name"),
        (["--set", "loader.batchsize=1"], "--set loader.batch_size=1"),
        (["--set", "processes"], "--set 'processes' is not NAME=VALUE"),
        (["--set", "=3"], "--set '=3'"),
        (["--set", "loader.batch_size=-1"], "loader.batch_size is -1"),
        (["--set", "dataset.drop_last=perhaps"], "dataset.drop_last is 'perhaps'. Smallest fix: give true or false."),
        (["--select", "no-such-code"], "--select 'no-such-code' is no code of the catalogue"),
        (
            ["--ignore", "elastisity"],
            "--ignore 'elastisity' is no code of the catalogue. Smallest fix: --ignore elasticity.",
        ),
        (["--select", ","], "--select names no code"),
        (["--fixx"], "--fixx is no option. Smallest fix: --fix."),
        (["--proceses=4"], "--proceses is no option. Smallest fix: --processes."),
        (["-x"], "-x is no option"),
        (["--fix=yes"], "--fix takes no value, but got 'yes'"),
        (["--fix", "--format", "html"], "--format html does not go with --fix"),
        (["--fix", "--for", "2,4"], "--for does not go with --fix"),
        (["missing.json"], "missing.json does not exist"),
        (["."], ". is a folder"),
    ],
)
def test_what_is_off_is_one_line_that_names_it(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "right.json", *words]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("dsaccum: ")
    assert shown.err.count("\n") == 1
    assert said in shown.err
    assert len(shown.err) < 400


def test_nothing_to_read(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check"]) == 2
    assert "nothing to read" in capsys.readouterr().err
    assert main([]) == 2
    assert "dsaccum check [PATH ...]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["chek", "right.json"], "chek is no command. Smallest fix: dsaccum check."),
        (["right.json"], "right.json is no command. Smallest fix: dsaccum check right.json."),
        (["explain", "a", "b"], "explain takes one code"),
    ],
)
def test_unknown_commands(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--version"], ["-V"]])
def test_version(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(words) == 0
    assert capsys.readouterr().out == f"dsaccum {dsaccum_helpers.__version__}\n"


def test_help_names_every_option() -> None:
    for name in (*VALUED, *FLAGS):
        assert name in CHECK or name == "--help"
    assert max(map(len, CHECK.splitlines())) <= 120


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8", 8),
        ("2.5", 2.5),
        ("true", True),
        ("False", False),
        ("null", None),
        ("auto", "auto"),
        ('"8"', "8"),
        ("AdamW", "AdamW"),
        ("NaN", "NaN"),
        ("a=b", "a=b"),
        ("", ""),
        ("[" * 100_000, "[" * 100_000),
    ],
)
def test_values_of_set(text: str, value: object) -> None:
    options = parse(["--set", f"trainer.anything={text}"])
    assert options.set == {"trainer.anything": value}
    assert type(options.set["trainer.anything"]) is type(value)


def test_options_come_in_any_order_and_again() -> None:
    words = "a.json --for 4 --have deepspeed==0.19.8 --for=8,4 --have torch==2.13.0 - --select elasticity,elasticity"
    options = parse([*words.split(), "--select=elasticity", "--", "--x"])
    assert options.paths == ["a.json", "-", "--x"]
    assert options.worlds == [4, 8]
    assert options.have == {"deepspeed": "0.19.8", "torch": "2.13.0"}
    assert options.select == ["elasticity"] * 3


@pytest.mark.parametrize("name", ["zero_optimization.stage", "bf16.enabled", "environment.X", "accelerate.zero_stage"])
def test_set_takes_deepspeed_keys_and_open_names(name: str) -> None:
    assert parse(["--set", f"{name}=1"]).set == {name: 1}


def test_json_is_that_of_the_contract(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "wrong.json", "--processes", "4", "--format", "json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "mismatch"
    assert report["batch"]["sources"]["train_batch_size"] == "wrong.json:2"
    finding = report["findings"][0]
    assert {"code", "severity", "title", "message", "where", "consequence", "fixes", "learn"} <= set(finding)
    assert finding["where"][0] == {"file": "wrong.json", "line": 2, "column": 3, "key": "train_batch_size"}
    assert {"description", "set"} == set(finding["fixes"][0])


def test_json_of_several_worlds(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "right.json", "--for", "4,7,8", "--format", "json"]) == 1
    worlds = json.loads(capsys.readouterr().out)["worlds"]
    assert {size: report["verdict"] for size, report in worlds.items()} == {"4": "ok", "7": "mismatch", "8": "mismatch"}
    assert worlds["4"]["batch"]["data_parallel_size"] == 4


def test_standard_input(capsys: pytest.CaptureFixture[str]) -> None:
    done = run("check", "-", "--processes", "4", input=json.dumps(RIGHT))
    assert (done.returncode, done.stderr) == (0, "")
    assert "standard input:1" in done.stdout


def test_have_counts_before_what_files_say() -> None:
    Path("requirements.txt").write_text("deepspeed==0.9.0\n")
    job = dsaccum_helpers.doctor.read_job("requirements.txt", have={"deepspeed": "0.19.8"})
    assert job.version("deepspeed") == "0.19.8"


def test_here_takes_versions_and_devices(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1,2,3")
    assert main(["check", "right.json", "--here", "--format", "json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["batch"]["data_parallel_size"] == 4
    assert main(["check", "right.json", "--here", "--processes", "2"]) == 1


@pytest.mark.parametrize(
    ("visible", "count"), [("0", 1), ("0,1", 2), ("", 0), ("-1", 0), ("0,-1,1", 1), ("GPU-1,GPU-2", 2)]
)
def test_visible_devices(visible: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from dsaccum_helpers.commands.here import devices

    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert devices() == count


def test_devices_without_a_driver(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from dsaccum_helpers.commands.here import devices

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert devices() == 0
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 'GPU 0: A (UUID: x)'\necho 'GPU 1: A (UUID: y)'\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    assert devices() == 2


def broken(*_: object, **__: object) -> None:
    raise ZeroDivisionError("in a rule")


def test_a_fault_of_one_rule_costs_the_report_nothing_else(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dsaccum_helpers.doctor.load("elasticity"), "check", broken)
    with pytest.raises(ZeroDivisionError):
        main(["check", "right.json"])
    monkeypatch.delenv("DSACCUM_DEBUG")
    capsys.readouterr()
    assert main(["check", "wrong.json", "--processes", "4"]) == 1
    shown = capsys.readouterr()
    assert "batch-product-mismatch" in shown.out
    assert shown.err.count("\n") == 1
    assert "elasticity could not be asked (ZeroDivisionError: in a rule)" in shown.err
    assert main(["check", "right.json", "--processes", "4", "--format", "json"]) == 2
    assert json.loads(capsys.readouterr().out)["verdict"] == "ok"


def test_a_fault_elsewhere_is_one_line(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("DSACCUM_DEBUG")
    monkeypatch.setattr(dsaccum_helpers.doctor, "diagnose", broken)
    assert main(["check", "right.json"]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "a fault of dsaccum itself (" in shown
    assert commands.REPORT_IT in shown


def test_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(dsaccum_helpers.doctor, "diagnose", interrupt)
    assert main(["check", "right.json"]) == 130


def test_reader_that_leaves_early() -> None:
    command = f"{sys.executable} -m dsaccum_helpers.commands explain; echo status $? >&2"
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    piped = f"({command}) | true"
    done = subprocess.run(["sh", "-c", piped], capture_output=True, text=True, env=environment, timeout=60)
    assert "Traceback" not in done.stderr
    assert "Exception ignored" not in done.stderr


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
@pytest.mark.parametrize("form", ["text", "json", "html", "github", "sarif"])
def test_terminals_of_every_encoding(encoding: str, form: str) -> None:
    Path("größe×.json").write_text(json.dumps({**WRONG, "größe×": 1}))
    done = run(
        *("check", "größe×.json", "--processes", "4", "--format", form),
        environment={"PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"},
        encoding=encoding,
    )
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    if form in ("json", "sarif"):
        json.loads(done.stdout)


def test_control_characters_do_not_reach_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    Path("odd.json").write_text(json.dumps({**RIGHT, "gradient_acc\x1b[2J\u202esteps": 1, "zero_optimisation\x07": 1}))
    for form in ("text", "github", "html"):
        main(["check", "odd.json", "--processes", "4", "--format", form])
    main(["check", "odd\x1b[2J.json"])
    shown = capsys.readouterr()
    for char in "\x1b\x07\u202e":
        assert char not in shown.out + shown.err


def test_fast_path_loads_nothing_that_it_does_not_need() -> None:
    slow = ("argparse", "typing", "dataclasses", "inspect", "pathlib", "yaml", "hjson", "rich", "packaging", "textwrap")
    code = (
        "from dsaccum_helpers.commands import main; status = main(['check', 'right.json', '--processes', '4'])"
        f"; print([name for name in {slow!r} if name in sys.modules], status)"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-I", "-S", "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r}); {code}"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60)
    assert done.stdout.splitlines()[-1] == "[] 0", done.stderr


def test_colours_only_on_a_terminal(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    main(["check", "wrong.json", "--processes", "4"])
    plain = capsys.readouterr().out
    assert "\x1b" not in plain
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    main(["check", "wrong.json", "--processes", "4"])
    coloured = capsys.readouterr().out
    assert "\x1b[" in coloured
    monkeypatch.setenv("NO_COLOR", "1")
    main(["check", "wrong.json", "--processes", "4"])
    assert "\x1b[31m" not in capsys.readouterr().out


def test_python_gets_the_same_report() -> None:
    report = dsaccum_helpers.check("wrong.json", processes=4)
    assert report.verdict == "mismatch"
    assert str(report).startswith("Mismatch: ")
    assert dsaccum_helpers.check(WRONG, processes=4).codes == report.codes
    with pytest.raises(JobError, match="does not exist"):
        dsaccum_helpers.check("missing.json")
    with pytest.raises(JobError, match="framework is 'x'"):
        dsaccum_helpers.check(RIGHT, framework="x")
