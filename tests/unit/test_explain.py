"""Every entry of the catalogue explains itself, from the command line and from Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dsaccum_helpers import explain
from dsaccum_helpers.commands import main
from dsaccum_helpers.findings import SEVERITIES
from dsaccum_helpers.mismatches import GROUPS, UnknownMismatchError, load

CODES = [code for group in GROUPS.values() for code in group]
NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"


def test_the_list_has_all_44_in_their_groups(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(CODES) == 44
    assert [line.split()[0] for line in lines if line.startswith("  ")] == CODES
    assert [line for line in lines if line in GROUPS] == list(GROUPS)


@pytest.mark.parametrize("code", CODES)
def test_an_entry_has_five_faces(code: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", code]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith(f"{code}: {load(code).title}\n")
    words = " ".join(shown.split())
    for part in (load(code).symptom, load(code).cause, load(code).consequence, load(code).remedy, load(code).learn):
        assert " ".join(part.split()) in words
    assert max(map(len, shown.splitlines())) <= 120
    assert load(code).severity in SEVERITIES


@pytest.mark.parametrize("code", CODES)
def test_an_entry_names_only_what_is_there(code: str) -> None:
    entry = load(code)
    assert {*entry.silences, *entry.explains, *entry.beside} <= {*CODES}
    name, _, anchor = entry.learn.partition("#")
    path = NOTEBOOKS / name.removeprefix("notebooks/")
    if path.name == "06_your_own_job.ipynb" and not path.exists():
        pytest.skip("the chapter is being written")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    headings = [line for cell in cells for line in "".join(cell["source"]).splitlines() if line.startswith("#")]
    anchors = [heading.lstrip("# ").replace(" ", "-") for heading in headings]
    assert not anchor or anchor in anchors


def test_python_gets_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    main(["explain", "elasticity"])
    assert str(explain("elasticity")) == repr(explain("elasticity")) == capsys.readouterr().out
    assert "<code>elasticity</code>" in explain("elasticity")._repr_html_()
    main(["explain"])
    assert str(explain()) == capsys.readouterr().out
    assert explain()._repr_html_().startswith("<pre>")


def test_a_code_that_is_none_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(UnknownMismatchError, match="use elasticity"):
        explain("elastisity")
    assert main(["explain", "elastisity"]) == 2
    assert "Smallest fix: use elasticity." in capsys.readouterr().err
    assert main(["explain", "--format", "json"]) == 2
    assert main(["explain", "--help"]) == 0
