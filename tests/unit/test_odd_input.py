"""Odd use of the command line: each fault that was found by hand, so that it stays mended."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from dsaccum_helpers.commands import main
from dsaccum_helpers.doctor import check, mend_files

CONFIG = '{\n "train_batch_size": 64,\n "train_micro_batch_size_per_gpu": 4,\n "gradient_accumulation_steps": 4\n}\n'


def shell(line: str, folder: Path) -> tuple[int, str, str]:
    """A line of bash with ``$D`` for dsaccum, as a user has it: without the variable that shows our faults."""
    environment = {name: value for name, value in os.environ.items() if name not in ("DSACCUM_DEBUG",)}
    environment |= {"D": f"{sys.executable} -m dsaccum_helpers.commands"}
    (folder / "ds.json").write_text(CONFIG)
    done = subprocess.run(["bash", "-c", line], cwd=folder, env=environment, capture_output=True, timeout=60)
    return done.returncode, done.stdout.decode(), done.stderr.decode()


@pytest.mark.parametrize(
    ("line", "status", "said"),
    [
        ("$D check - <&-", 2, "standard input is empty"),
        ("$D check ds.json --processes 3 >&-", 1, ""),
        ("$D check missing.json 2>&-", 2, ""),
        ("$D check ds.json --processes 3 >&- 2>&- <&-", 1, ""),
        ("$D check ds.json >/dev/full", 2, "standard output cannot be written (No space left on device)"),
        ("$D explain >/dev/full", 2, "standard output cannot be written (No space left on device)"),
        ("$D check missing.json 2>/dev/full", 2, ""),
        ("$D check - - --processes 4 <ds.json", 0, ""),
        ("$D check <(cat ds.json) --processes 3 --write", 2, "cannot be written. Smallest fix: give the file's name"),
        ("ulimit -v 200000; $D check ds.json --processes 4", 0, ""),
    ],
)
@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_streams(line: str, status: int, said: str, tmp_path: Path) -> None:
    code, _, errors = shell(line, tmp_path)
    assert code == status, errors
    assert said in errors
    assert len(errors.splitlines()) == bool(said)
    assert "a fault of dsaccum" not in errors


def test_a_pipe_is_read_once_and_mended(tmp_path: Path) -> None:
    for line in ("cat ds.json | $D check /dev/stdin", "$D check <(cat ds.json)", "$D check - <ds.json"):
        code, out, _ = shell(f"{line} --processes 3 --fix", tmp_path)
        assert code == 1
        assert '+ "train_batch_size": 48' in out
    launch = "deepspeed --num_gpus 3 train.py --deepspeed_config ds.json"
    assert '+ "train_batch_size": 48' in shell(f"echo {launch} | $D check - --fix", tmp_path)[1]


@pytest.mark.parametrize("name", ["folder", "fifo", ""])
def test_what_is_no_file_is_said_once(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("folder").mkdir()
    os.mkfifo("fifo")
    assert main(["check", name]) == 2
    said = capsys.readouterr().err
    assert said.count("Smallest fix") == 1
    assert (name or "''") in said


@pytest.mark.parametrize("given", ["deepspeed==0.15.0,transformers==4.46", "deepspeed==latest", "deepspeed=0.15"])
def test_a_version_that_is_none(given: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["check", "--set", "zero_stage=1", "--have", given]) == 2
    assert "NAME==VERSION" in capsys.readouterr().err


@pytest.mark.parametrize("value", ["6.4e1", "64.0", "true"])
def test_a_value_that_only_equals_an_integer_is_replaced(value: str, tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_text(CONFIG.replace("64", value))
    finding = check(str(path), processes=4).findings[0]
    assert finding.code == "batch-value-type"
    assert finding.fixes[0].description.startswith("Set train_batch_size ")
    mended = mend_files(str(path), processes=4).texts[str(path)][1]
    assert isinstance(json.loads(mended)["train_batch_size"], int)
    assert json.loads(mended)["train_batch_size"] is not True


def test_an_integer_of_thousands_of_digits_as_text() -> None:
    job = {"trainer.gradient_accumulation_steps": "9" * 6000, "accelerator.gradient_accumulation_steps": "9" * 6000}
    for framework in ("transformers", "accelerate"):
        assert check(json.loads(CONFIG), processes=4, framework=framework, set=job).verdict == "mismatch"


def test_another_encoding_is_not_called_unknown(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_bytes(CONFIG.replace("{", '{"name": "é",', 1).encode("latin-1"))
    message = check(str(path), processes=4).findings[0].message
    assert "the file is not UTF-8" in message


def test_a_large_yaml_is_given_up_soon(tmp_path: Path) -> None:
    path = tmp_path / "args.yaml"
    path.write_text("per_device_train_batch_size: 4\n" + "".join(f"k{i}: {{a: {i}}}\n" for i in range(50_000)))
    start = time.process_time()
    finding = check(str(path)).findings[0]
    assert time.process_time() - start < 5
    assert finding.code == "config-unreadable"
    assert "too many values" in finding.message
    assert "Leave it out" in finding.fixes[0].description


LOOP = """import deepspeed
engine, _, _, _ = deepspeed.initialize(config={"train_batch_size": 64, "gradient_accumulation_steps": n})
for i, batch in enumerate(loader):
    loss = engine(batch)
    engine.backward(loss)
    if i % n == 0:
        engine.step()
"""


@pytest.mark.parametrize(
    "before",
    [
        "n = 2\n" + "n = n * n\n" * 40,
        "n = (-8) ** 0.5\n",
        "n = (10**18) ** 63 * (10**18) ** 63\n" + "n = n * n\n" * 5,
        "n = 1e300 * 1e300\n",
        "class T:\n    @property\n    def e(self): return self.e\n    def t(self): self.e.e.step()\nT().t()\nn = 4\n",
        "n = 4\n" + "".join(f"if a{i}:\n    b{i} = {i}\nelse:\n    b{i} = -{i}\n" for i in range(1500)),
    ],
    ids=["squares", "complex", "digits", "infinite", "property of itself", "many branches"],
)
def test_numbers_and_names_without_end_in_a_script(before: str, tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text(before + LOOP)
    start = time.process_time()
    assert "guarded-engine-step" in check(str(path), processes=4).codes
    assert time.process_time() - start < 5


def test_written_files_keep_byte_order_owner_and_mode(tmp_path: Path) -> None:
    path = tmp_path / "ds.json"
    path.write_bytes(b"\xfe\xff" + CONFIG.encode("utf-16-be"))
    path.chmod(0o640)
    if os.geteuid() == 0:
        os.chown(path, 1234, 1235)
    before = path.stat()
    assert main(["check", str(path), "--processes", "3", "--select", "written-for-other-world-size", "--write"]) == 0
    assert path.read_bytes() == b"\xfe\xff" + CONFIG.replace("64", "48").encode("utf-16-be")
    for one in (path, tmp_path / "ds.json.orig"):
        after = one.stat()
        assert (after.st_mode, after.st_uid, after.st_gid) == (before.st_mode, before.st_uid, before.st_gid)


def test_no_half_made_copy_stays_when_the_disk_is_full(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "ds.json"
    path.write_text(CONFIG)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    assert main(["check", str(path), "--processes", "3", "--write"]) == 2
    assert "No space left" in capsys.readouterr().err
    assert [one.name for one in tmp_path.iterdir()] == ["ds.json"]
    assert path.read_text() == CONFIG


def test_a_name_that_a_terminal_would_obey(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "\x1b[31mred.json"
    path.write_text(CONFIG)
    assert main(["check", str(path), "--processes", "3", "--write"]) == 0
    said = capsys.readouterr()
    assert "\x1b" not in said.out + said.err


def test_too_little_memory(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def run(words: list[str]) -> int:
        raise MemoryError

    monkeypatch.setattr("dsaccum_helpers.commands.check.run", run)
    assert main(["check", "big.log"]) == 2
    assert "not enough memory" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("adapter_config.json", '{"base_model_name_or_path": "x", "peft_type": "LORA", "r": 8, "lora_alpha": 16}'),
        ("generation_config.json", '{"bos_token_id": 1, "eos_token_id": 2, "max_length": 4096}'),
        ("train_results.json", '{"epoch": 1.0, "train_loss": 0.5, "train_runtime": 100.0}'),
        ("tokenizer.json", '{"model": {"vocab": {"a": 1}}}'),
        ("dataset_info.json", '{"alpaca": {"file_name": "a.json"}}'),
        ("tsconfig.json", '{"compilerOptions": {"strict": true}}'),
        ("data.json", '[{"instruction": "a", "output": "b"}]'),
    ],
)
def test_other_files_beside_a_config_are_no_configs(name: str, text: str, tmp_path: Path) -> None:
    other, config = tmp_path / name, tmp_path / "z.json"
    other.write_text(text)
    config.write_text(CONFIG)
    assert check(str(other), processes=4).verdict == "incomplete"
    report = check(str(other), str(config), processes=4)
    assert (report.verdict, report.batch["train_batch_size"]) == ("ok", 64)


@pytest.mark.parametrize("name", ["ds_config.json", "a.json"])
def test_a_config_without_a_known_key_is_still_one(name: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text('{"trainBatch": 64, "accumulation": 4}')
    assert check(str(path), processes=4).verdict == "mismatch"


def test_several_configs_of_which_nothing_names_one_are_all_checked(tmp_path: Path) -> None:
    bad = '{"train_batch_size": 10, "train_micro_batch_size_per_gpu": 4}'
    (tmp_path / "bad.json").write_text(bad)
    code, out, errors = shell("cp ds.json a.json; $D check ds.json a.json bad.json --processes 4", tmp_path)
    assert (code, errors) == (1, "")
    assert "bad.json:1" in out
    assert shell("cp ds.json a.json; $D check ds.json a.json --processes 4", tmp_path)[0] == 0


def test_a_config_that_the_launch_does_not_use_is_named_as_not_checked(tmp_path: Path) -> None:
    line = (
        "cp ds.json a.json; echo deepspeed --num_gpus 4 t.py --deepspeed_config a.json >run.sh; $D check *.json run.sh"
    )
    assert "ds.json is not checked: the config of this job is a.json" in shell(line, tmp_path)[2]


def test_a_number_that_only_the_running_job_knows_leaves_the_report_incomplete() -> None:
    script = "import deepspeed\nfrom mine import net, size\n"
    script += "deepspeed.initialize(model=net, config={'train_batch_size': size})\n"
    report = check(("train.py", script), processes=2)
    assert report.verdict == "incomplete"
    assert report.missing == ["What is train_batch_size? Only the running job knows it: give --set train_batch_size=N."]


def test_one_record_of_a_log_kept_as_json(tmp_path: Path) -> None:
    words = "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * gradient_acc_step"
    text = "Traceback (most recent call last):\n  File 'a.py', line 3, in <module>\n"
    text += f"AssertionError: {words} * world_size 256 != 4 * 8 * 1\n"
    path = tmp_path / "record.json"
    path.write_text(json.dumps({"time": "12:00", "message": text}))
    report = check(str(path))
    assert (report.verdict, report.batch["train_batch_size"]) == ("mismatch", 256)
