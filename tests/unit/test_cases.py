"""Acceptance cases: each is a job as people have them, made from public bug reports or written by fresh eyes.

A case is one JSON file: ``files`` are laid into an empty folder and ``dsaccum check`` reads them (or ``arguments``)
with ``options``; a file's content is text, ``{"base64": ...}``, ``{"repeat": [text, n], "then": tail}`` or JSON.
``expect`` is one outcome, or a list of which one has to be met; what an outcome leaves out may be anything:
``exit`` and ``verdict`` equal; ``codes`` found, the first of them first; ``absent`` not found; ``set``: one of these is
part of a fix of the first finding; ``batch`` part of the report's; ``message_has`` said by the first finding.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dsaccum_helpers.commands import main

CASES = Path(__file__).resolve().parents[1] / "cases"
FILES = sorted(CASES.glob("*.json"))
# The cases that came from public bug reports, and those that eyes which had not seen the rules added.
AT_LEAST = 117 + 100


def content(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if isinstance(value, dict) and value.keys() == {"base64"}:
        return base64.b64decode(value["base64"])
    if isinstance(value, dict) and "repeat" in value and value.keys() <= {"repeat", "then"}:
        text, times = value["repeat"]
        return (text * times + value.get("then", "")).encode()
    return (json.dumps(value, indent=2) + "\n").encode()


def says(text: str, wanted: str) -> bool:
    """Is the word or number in the text? 2 is neither in 12 nor in 2.5, and 1,000 counts as 1000."""
    text = re.sub(r"(?<=\d)[,_\u202f](?=\d{3}(?!\d))", "", text)
    if wanted.isdigit():
        return re.search(rf"(?<![\d.]){wanted}(?!\d|\.\d)", text) is not None
    return wanted.lower() in text.lower()


def differences(expect: dict[str, Any], status: int, out: str, err: str) -> Iterator[str]:
    """What the outcome lacks."""
    if status != expect["exit"]:
        yield f"exit {status}, not {expect['exit']}"
    if expect["exit"] == 2:
        yield from (f"not said: {word}" for word in expect.get("message_has", []) if not says(out + err, word))
    elif status == 2:
        yield f"said {err}"
    elif expect.keys() != {"exit"}:
        yield from in_report(expect, json.loads(out))


def in_report(expect: dict[str, Any], report: dict[str, Any]) -> Iterator[str]:
    codes = [finding["code"] for finding in report["findings"]]
    first = report["findings"][0] if codes else {"title": "", "message": "", "consequence": "", "fixes": []}
    said = [first["title"], first["message"], first["consequence"], *(fix["description"] for fix in first["fixes"])]
    wanted, sets = expect.get("codes", []), expect.get("set", [])
    offered = [fix.get("set", {}) for fix in first["fixes"]]
    if report["verdict"] != expect.get("verdict", report["verdict"]):
        yield f"verdict {report['verdict']}"
    if codes[: len(wanted[:1])] != wanted[:1] or not set(wanted) <= set(codes):
        yield f"found {codes}, not {wanted}"
    yield from (f"{code} is wrong here" for code in expect.get("absent", []) if code in codes)
    if sets and not any(one.items() <= fix.items() for one in sets for fix in offered):
        yield f"offers {offered}"
    for key, value in expect.get("batch", {}).items():
        if report["batch"].get(key) != value:
            yield f"batch {key} is {report['batch'].get(key)}, not {value}"
    yield from (f"not said: {word}" for word in expect.get("message_has", []) if not says("\n".join(said), word))


def test_the_cases_are_there() -> None:
    assert len(FILES) >= AT_LEAST


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_case(path: Path, tmp_path: Path, capsys: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    case = json.loads(path.read_text(encoding="utf-8"))
    for name, value in case["files"].items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content(value))
    monkeypatch.chdir(tmp_path)
    status = main(["check", *case.get("arguments", list(case["files"])), *case.get("options", []), "--format", "json"])
    out, err = capsys.readouterr()
    outcomes = case["expect"] if isinstance(case["expect"], list) else [case["expect"]]
    assert min((list(differences(one, status, out, err)) for one in outcomes), key=len) == []
