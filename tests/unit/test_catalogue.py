"""Each entry of the catalogue has fixtures: jobs in which it must be found, and near misses where it must be silent.

``tests/mismatches/<code>.yaml`` holds them, in the form of the acceptance cases: ``files``, ``options``, ``expect``.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dsaccum_helpers.commands import main
from dsaccum_helpers.mismatches import GROUPS

FIXTURES = Path(__file__).resolve().parents[1] / "mismatches"
CODES = [code for group in GROUPS.values() for code in group]
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def fixtures(code: str) -> dict[str, list[dict[str, Any]]]:
    path = FIXTURES / f"{code.replace('-', '_')}.yaml"
    return yaml.load(path.read_text(), LOADER) if path.exists() else {"found": [], "silent": []}


def cases(side: str) -> list[Any]:
    return [
        pytest.param(code, case, id=f"{code}-{number}")
        for code in CODES
        for number, case in enumerate(fixtures(code)[side])
    ]


def report(case: dict[str, Any], folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> Any:
    """The exit status and the JSON report of one fixture."""
    for name, text in case.get("files", {}).items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if isinstance(text, str) else json.dumps(text))
    monkeypatch.chdir(folder)
    paths = case.get("arguments", list(case.get("files", {})))
    status = main(["check", *paths, *map(str, case.get("options", [])), "--format", "json"])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("code", CODES)
def test_every_entry_has_one_find_and_two_near_misses(code: str) -> None:
    given = fixtures(code)
    assert len(given["found"]) >= 1
    assert len(given["silent"]) >= 2


def test_every_file_of_fixtures_belongs_to_an_entry() -> None:
    assert {path.stem.replace("_", "-") for path in FIXTURES.glob("*.yaml")} == set(CODES)


@pytest.mark.parametrize(("code", "case"), cases("found"))
def test_found(code: str, case: dict[str, Any], tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    status, answer = report(case, tmp_path, capsys, monkeypatch)
    expect = case.get("expect", {})
    found = [finding["code"] for finding in answer["findings"]]
    assert found[:1] == [expect.get("first", code)], answer["findings"]
    assert code in found
    assert not set(expect.get("absent", [])) & set(found)
    main_finding = next(finding for finding in answer["findings"] if finding["code"] == code)
    said = json.dumps(main_finding, ensure_ascii=False)
    assert [words for words in expect.get("says", []) if str(words) not in said] == []
    offered = [fix.get("set", {}) for fix in main_finding["fixes"]]
    for wanted in expect.get("set", []):
        assert any(wanted.items() <= one.items() for one in offered), offered
    assert status == expect.get("exit", 0 if main_finding["severity"] == "note" else 1)
    assert {key: answer["batch"].get(key) for key in expect.get("batch", {})} == expect.get("batch", {})


@pytest.mark.parametrize(("code", "case"), cases("silent"))
def test_silent(code: str, case: dict[str, Any], tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    status, answer = report(case, tmp_path, capsys, monkeypatch)
    expect = case.get("expect", {})
    found = [finding["code"] for finding in answer["findings"]]
    assert code not in found, answer["findings"]
    assert found == expect.get("codes", found)
    # A near miss is right altogether unless it says which other finding it has.
    assert answer["verdict"] == expect.get("verdict", "ok"), answer["findings"]
    assert status == (1 if answer["verdict"] == "mismatch" else 0)
