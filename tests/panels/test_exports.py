"""Exported files say what was measured, and never replace what somebody else has written."""

from __future__ import annotations

import csv
import errno
import json
import math
import os
from copy import deepcopy
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from dsaccum_helpers import Comparison, exports, plots
from dsaccum_helpers.exports import FILES, ExportError, export

MACHINE = {"accelerator": "cpu", "versions": {"deepspeed": "0.19.8"}}


@pytest.fixture(autouse=True)
def beside_the_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_points_read_back_equal(measured: Comparison) -> None:
    folder = export(measured)
    with (folder / "points.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    expected = [(result.code, point) for result in measured.results for point in result.points]
    assert len(lines) == len(expected) > 50
    for line, (code, point) in zip(lines, expected, strict=True):
        assert line.pop("run") == code
        read = {name: float(value) if value else None for name, value in line.items()}
        assert read == asdict(point)


def test_json_reads_back_equal(measured: Comparison) -> None:
    content = json.loads((export(measured, machine=MACHINE) / "comparison.json").read_text())
    assert content["setting"] == measured.setting.to_dict()
    assert content["machine"] == MACHINE
    assert content["summary"] == plots.alt_text(measured)
    for run, result in zip(content["runs"], measured.results, strict=True):
        assert run["points"] == [asdict(point) for point in result.points]
        assert (run["code"], run["ended"], run["sentence"]) == (result.code, result.ended, result.sentence)
        assert (run["engine_words"], run["our_words"]) == (result.engine_words, result.our_words)
    rows = [(row["code"], row["quantity"], row["predicted"], row["measured"], row["agrees"]) for row in content["rows"]]
    assert rows == [(r.code, r.quantity, r.predicted, r.measured, r.agrees) for r in measured.rows()]


def test_the_config_is_the_right_runs(measured: Comparison) -> None:
    assert json.loads((export(measured) / "ds_config.json").read_text()) == measured.setting.ds_config()


def test_pictures_are_pictures(measured: Comparison) -> None:
    folder = export(measured)
    assert (folder / "curves.png").read_bytes().startswith(b"\x89PNG")
    assert plots.alt_text(measured) in (folder / "curves.svg").read_text()


def test_each_export_gets_a_new_folder(measured: Comparison, tmp_path: Path) -> None:
    (tmp_path / "dsaccum-export-2").write_text("mine")
    assert [export(measured).name for _ in range(2)] == ["dsaccum-export-1", "dsaccum-export-3"]
    assert (tmp_path / "dsaccum-export-2").read_text() == "mine"
    names = ["dsaccum-export-1", "dsaccum-export-2", "dsaccum-export-3"]
    assert sorted(path.name for path in tmp_path.iterdir()) == names, "no draft is left"
    assert sorted(path.name for path in (tmp_path / "dsaccum-export-1").iterdir()) == sorted(FILES)


def test_an_earlier_export_is_written_anew(measured: Comparison, tmp_path: Path) -> None:
    folder = export(measured, tmp_path / "deep" / "out")
    (folder / "points.csv").write_text("old")
    (folder / "notes.txt").write_text("mine")
    assert export(measured, folder) == folder
    assert (folder / "points.csv").read_text() == exports.points_csv(measured)
    assert (folder / "notes.txt").read_text() == "mine"


def test_a_foreign_file_is_never_replaced(measured: Comparison, tmp_path: Path) -> None:
    (tmp_path / "ds_config.json").write_text("mine")
    with pytest.raises(ExportError, match=r"ds_config\.json is there already and is no export\. Smallest fix"):
        export(measured, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["ds_config.json"]
    assert (tmp_path / "ds_config.json").read_text() == "mine"


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_a_file_in_the_way(measured: Comparison, tmp_path: Path, place: str) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ExportError, match="is a file, or lies below one"):
        export(measured, tmp_path / place)
    with pytest.raises(ExportError, match="is a file, or lies below one"):
        exports.refuse_foreign(tmp_path / place)  # as it is asked before a training
    assert (tmp_path / "file").read_text() == "mine"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize(
    ("number", "words"),
    [
        (errno.ENOSPC, "The disk is full"),
        (errno.EDQUOT, "The disk is full"),
        (errno.EROFS, "Read-only file system"),
        (errno.EACCES, "Permission denied"),
    ],
)
def test_a_folder_that_cannot_be_written(
    measured: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, words: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(Path, "write_bytes", refuse)
    with pytest.raises(ExportError, match=rf"^[^\n]*{words}[^\n]*Smallest fix: [^\n]*\.$"):
        export(measured)
    assert list(tmp_path.iterdir()) == [], "what was begun is removed"


def test_json_stays_strict_where_a_run_diverged(measured: Comparison) -> None:
    wild = deepcopy(measured)
    wild.matched.points[-1] = replace(wild.matched.points[-1], loss=math.nan, update_norm=math.inf)
    folder = export(wild)

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    content = json.loads((folder / "comparison.json").read_text(), parse_constant=refuse)
    assert content["runs"][1]["points"][-1]["loss"] is None
    assert (folder / "points.csv").read_text().count("nan") == 1
