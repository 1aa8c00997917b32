"""A fix changes what it must in the person's file, and keeps comments, order, indentation and line ends."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import hjson
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from dsaccum_helpers.commands import main
from dsaccum_helpers.job import BATCH_KEYS, JobError
from dsaccum_helpers.mend.edit import changed
from dsaccum_helpers.mend.files import write
from dsaccum_helpers.mend.tree import Unmendable, tree

TRAIN, MICRO, STEPS = BATCH_KEYS
CONFIG = """\
{
  // for eight cards
  "train_batch_size": 256,  // all of them
  "train_micro_batch_size_per_gpu" : 2, # one
  "zero_optimization": {"stage": 2, "list": [1, {"stage": 9}]},
  "fp16": {
    "enabled": true
  }
}
"""


def edit(text: str, *changes: tuple[str, Any], name: str = "ds.json") -> str:
    return changed(text, name, [(tuple(path.split("/")), value) for path, value in changes])


@pytest.mark.parametrize(
    ("change", "old", "new"),
    [
        ((TRAIN, 252), '"train_batch_size": 256,', '"train_batch_size": 252,'),
        ((MICRO, 4), ": 2, # one", ": 4, # one"),
        (("zero_optimization/stage", 1), '{"stage": 2', '{"stage": 1'),
        (("fp16/enabled", False), '"enabled": true\n', '"enabled": false\n'),
        (("fp16", {"enabled": "auto"}), '"fp16": {\n    "enabled": true\n  }', '"fp16": {"enabled": "auto"}'),
        ((STEPS, 8), "# one\n", '# one\n  "gradient_accumulation_steps" : 8,\n'),
        (("bf16/enabled", True), "true\n  }\n", 'true\n  },\n  "bf16": {"enabled": true}\n'),
        (("fp16/loss_scale", 0), "true\n", 'true,\n    "loss_scale": 0\n'),
        ((TRAIN, None), '  "train_batch_size": 256,  // all of them\n', ""),
        (("fp16", None), ' {"stage": 9}]},\n  "fp16": {\n    "enabled": true\n  }\n', ' {"stage": 9}]}\n'),
        (("zero_optimization/stage", None), '{"stage": 2, "list"', '{"list"'),
        (("zero_optimization/list", None), '{"stage": 2, "list": [1, {"stage": 9}]}', '{"stage": 2}'),
        (("fp16/nothing", None), "", ""),
        (("nothing/at/all", None), "", ""),
    ],
)
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_only_what_must_change_changes(change: tuple[str, Any], old: str, new: str, ends: str) -> None:
    text = CONFIG.replace("\n", ends)
    assert old in CONFIG
    assert edit(text, change) == (CONFIG.replace(old, new, 1) if old else CONFIG).replace("\n", ends)


@pytest.mark.parametrize(
    ("before", "change", "after"),
    [
        ('{"a": 1}', (STEPS, 4), '{"a": 1, "gradient_accumulation_steps": 4}'),
        ("{}", (STEPS, 4), '{"gradient_accumulation_steps": 4}'),
        ('{"a": 1, "b": 2}', ("b", None), '{"a": 1}'),
        ('{"a": 1, "b": 2}', ("a", None), '{"b": 2}'),
        ('{"a": 1}', ("a", None), "{}"),
        ('{"a": 1, "a": 2}', ("a", 3), '{"a": 3}'),
        ('{"a": "x, y: }"}', ("a", "z"), '{"a": "z"}'),
        ("{'a': 1}", ("b", 2), "{'a': 1, 'b': 2}"),
        ("a: 1\nb: 2\n", ("a", 3), "a: 3\nb: 2\n"),
        ("a: some words\nb: 2\n", ("a", 3), "a: 3\nb: 2\n"),
        ("{\n  a: 1\n  b: some words # in it\n}", ("c", 3), "{\n  a: 1\n  b: some words # in it\n  c: 3\n}"),
        ("{\n  a: 1\n  b: 2 // two\n}", ("c", 3), "{\n  a: 1\n  b: 2 // two\n  c: 3\n}"),
        ('{\n  "a": 1,\n  "b": 2,\n}', ("c", 3), '{\n  "a": 1,\n  "b": 2,\n  "c": 3,\n}'),
        ('{\n  "a": 1, "b": 2}', ("c", 3), '{\n  "a": 1, "b": 2, "c": 3}'),
        ('{\n  "a": 1, // one\n  "b": 2 // two\n}', ("b", None), '{\n  "a": 1 // one\n}'),
        ('{"a": /* x */ 1 /* y */, "b": 2}', ("a", 5), '{"a": /* x */ 5 /* y */, "b": 2}'),
    ],
)
def test_json_and_hjson_of_other_styles(before: str, change: tuple[str, Any], after: str) -> None:
    assert edit(before, change) == after
    hjson.loads(after)


YAML = """\
# our cluster
compute_environment: LOCAL_MACHINE
deepspeed_config:
  gradient_accumulation_steps: 4   # four
  zero_stage: 2
  offload_optimizer_device: none

num_processes: 2 # two
empty:
flow: {a: 1, b: [x, y]}
"""


@pytest.mark.parametrize(
    ("change", "old", "new"),
    [
        (("deepspeed_config/gradient_accumulation_steps", 8), "steps: 4", "steps: 8"),
        (("num_processes", 4), "num_processes: 2", "num_processes: 4"),
        (("deepspeed_config/zero_stage", None), "  zero_stage: 2\n", ""),
        (("deepspeed_config/offload_optimizer_device", "cpu"), "device: none", "device: cpu"),
        (("deepspeed_config/offload_optimizer_device", "no"), "device: none", 'device: "no"'),
        (("deepspeed_config/offload_optimizer_device", None), "  offload_optimizer_device: none\n", ""),
        (("deepspeed_config/x", 1), "device: none\n", "device: none\n  x: 1\n"),
        (("empty", 3), "empty:\n", "empty: 3\n"),
        (("flow/a", 2), "{a: 1", "{a: 2"),
        (("flow/c", 2), "[x, y]}", "[x, y], c: 2}"),
        (("z", True), "y]}\n", "y]}\nz: true\n"),
    ],
)
def test_yaml(change: tuple[str, Any], old: str, new: str) -> None:
    after = edit(YAML, change, name="accelerate.yaml")
    assert after == YAML.replace(old, new, 1)
    yaml.safe_load(after)


def test_a_misspelt_key_is_renamed_where_it_stands() -> None:
    before = '{"a": 1, "gradient_acumulation_steps": 4, "b": 2}'
    after = edit(before, ("gradient_acumulation_steps", None), (STEPS, 8), (TRAIN, 32))
    assert after == '{"a": 1, "gradient_accumulation_steps": 8, "train_batch_size": 32, "b": 2}'


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("[1, 2]", "a.yaml"),
        ("a: [", "a.yaml"),
        ('{"a": 1', "a.json"),
        ('{"a" 1}', "a.json"),
        ('{"a": }', "a.json"),
        ("{" + '"a": {' * 300, "a.json"),
        ("python train.py", "run.sh"),
    ],
)
def test_what_cannot_be_changed_safely_is_left_alone(text: str, name: str) -> None:
    with pytest.raises(Unmendable):
        edit(text, ("a", 2), name=name)


def test_anchors_and_aliases_are_left_alone() -> None:
    root = tree("a: &x 1\nb: *x\nc: 2\n", "a.yaml")
    assert [member.key for member in root.members] == ["c"]


KEYS = st.sampled_from([*BATCH_KEYS, "optimizer", "bf16", "steps_per_print", "x y", "ä"])
SCALARS = st.one_of(st.integers(), st.booleans(), st.none(), st.text(max_size=8), st.floats(allow_nan=False))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=8
)


@given(
    values=st.dictionaries(KEYS, VALUES, max_size=5),
    changes=st.lists(st.tuples(KEYS, st.one_of(st.none(), st.integers(1, 99), st.just("auto"))), max_size=4),
    indent=st.sampled_from([None, 0, 2, 4, "\t"]),
    separators=st.sampled_from([None, (",", ":"), (" , ", " : ")]),
)
def test_any_json_becomes_what_was_asked_for(values: Any, changes: Any, indent: Any, separators: Any) -> None:
    text = json.dumps(values, indent=indent, separators=separators)
    wanted = dict(values)
    for key, value in dict(changes).items():
        if value is None:
            wanted.pop(key, None)
        else:
            wanted[key] = value
    after = changed(text, "ds.json", [((key,), value) for key, value in dict(changes).items()])
    assert json.loads(after) == wanted
    assert changed(text, "ds.json", []) == text


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    Path("ds.json").write_text(CONFIG)
    return tmp_path


SEVEN = ["check", "ds.json", "--processes", "7"]


def test_fix_prints_a_diff_that_patch_takes(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SEVEN, "--fix"]) == 1
    shown = capsys.readouterr()
    assert Path("ds.json").read_text() == CONFIG
    assert [line for line in shown.out.splitlines() if line[:1] in "+-"] == [
        "--- a/ds.json",
        "+++ b/ds.json",
        '-  "train_batch_size": 256,  // all of them',
        '+  "train_batch_size": 252,  // all of them',
    ]
    assert shown.err.startswith("dsaccum: --write would mend batch-not-divisible: ")
    subprocess.run(["git", "apply", "-"], input=shown.out, text=True, check=True, cwd=folder)
    assert main(SEVEN) == 0


def test_write_mends_and_keeps_the_old_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("ds.json").chmod(0o640)
    assert main([*SEVEN, "--write"]) == 0
    assert "ds.json is mended; the old file is ds.json.orig." in capsys.readouterr().out
    assert Path("ds.json").read_text() == CONFIG.replace("256", "252")
    assert Path("ds.json.orig").read_text() == CONFIG
    assert {stat.S_IMODE(os.stat(name).st_mode) for name in ("ds.json", "ds.json.orig")} == {0o640}
    assert sorted(os.listdir()) == ["ds.json", "ds.json.orig"]
    assert main([*SEVEN, "--write"]) == 0
    assert sorted(os.listdir()) == ["ds.json", "ds.json.orig"], "nothing to mend writes nothing"
    Path("ds.json").write_text(CONFIG)
    assert main([*SEVEN, "--write"]) == 0
    assert sorted(os.listdir()) == ["ds.json", "ds.json.orig", "ds.json.orig1"]


def test_json_says_what_was_changed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*SEVEN, "--fix", "--format", "json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["verdict"] == "mismatch"
    assert report["mended"][0]["file"] == "ds.json"
    assert report["mended"][0]["diff"].startswith("--- a/ds.json\n")
    assert report["fixed"][0]["code"] == "batch-not-divisible"


def test_a_link_is_followed(folder: Path) -> None:
    Path("conf").mkdir()
    Path("ds.json").rename("conf/real.json")
    Path("ds.json").symlink_to("conf/real.json")
    assert main([*SEVEN, "--write"]) == 0
    assert Path("ds.json").is_symlink()
    assert "252" in Path("conf/real.json").read_text()
    assert sorted(os.listdir("conf")) == ["real.json", "real.json.orig"]


def test_what_may_not_be_written_is_one_line(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("ds.json").chmod(0o444)
    assert main([*SEVEN, "--write"]) == 2
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "--write: ds.json cannot be written (it is read-only)" in shown
    assert os.listdir() == ["ds.json"]


def test_a_file_that_changed_meanwhile_is_left_alone(folder: Path) -> None:
    with pytest.raises(JobError, match="changed while it was checked"):
        write("ds.json", "{}", b"something else", "utf-8")
    assert os.listdir() == ["ds.json"]


@pytest.mark.parametrize("ends", ["\n", "\r\n"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig"])
def test_encoding_and_line_ends_are_kept(folder: Path, ends: str, encoding: str) -> None:
    text = CONFIG.replace("all of them", "für alle").replace("\n", ends)
    Path("ds.json").write_bytes(text.encode(encoding))
    assert main([*SEVEN, "--write"]) == 0
    assert Path("ds.json").read_bytes() == text.replace("256", "252").encode(encoding)


def test_standard_input_can_be_mended_but_not_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import io
    import sys

    for option, status in (("--fix", 1), ("--write", 2)):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(CONFIG.encode())))
        assert main(["check", "-", "--processes", "7", option]) == status
    shown = capsys.readouterr()
    assert "+++ b/standard input" in shown.out
    assert "standard input cannot be written" in shown.err


def test_several_files_and_findings_in_one_go(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("ds.json").write_text('{"train_batch_size": "auto", "train_micro_batch_size_per_gpu": 4,\n "fp16": {}}\n')
    Path("args.yaml").write_text("per_device_train_batch_size: 8  # eight\noutput_dir: x\ndeepspeed: ds.json\n")
    command = ["check", "ds.json", "args.yaml", "--processes", "2"]
    assert main(command) == 1
    assert main([*command, "--write"]) == 0
    assert main(command) == 0
    capsys.readouterr()


def test_what_no_file_can_mend_is_said(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    Path("ds.json").unlink()
    assert main(["check", "--set", f"{TRAIN}=10", "--set", f"{STEPS}=4", "--processes", "1", "--fix"]) == 1
    shown = capsys.readouterr()
    assert shown.out.startswith("Mismatch: ")
    assert "no finding is mended by a change of a JSON or YAML file" in shown.err
