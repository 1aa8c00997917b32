"""The version atlas: its tables from measurements written by hand, and what it does with a command that fails."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks import version_atlas, version_table
from benchmarks.version_table import BEGIN, ELSEWHERE, END, UNSEEN, WITNESSES, Notes
from dsaccum_helpers.known_versions import ROWS

LIKE = {"only the last": 0.53, "only the first and the last": 0.75}


def row(optimizer: str, steps: int, distance: float | None, **other: Any) -> dict[str, Any]:
    settings = {"zero_stage": 2, "dtype": "fp32", "processes": 1, "words": "", "holds": distance == 0.0}
    return settings | {"optimizer": optimizer, "gradient_accumulation_steps": steps, "distance": distance} | other


def measured(release: str, *rows: dict[str, Any], words: str = "", **probes: dict[str, Any]) -> dict[str, Any]:
    made = {"versions": {"torch": "2.13.0"}, "python": "3.11.7", "date": "2026-12-01", "wall": 60.0, "cpu": 40.0}
    return made | {"release": release, "rows": list(rows), "probes": probes, "words": words, "stopped": ""}


@pytest.mark.parametrize(
    ("rows", "said"),
    [
        ([row("SGD", 1, 0.0), row("SGD", 4, 0.0), row("Adam", 4, 0.0)], "right"),
        (
            [row("SGD", 1, 0.0), row("SGD", 4, 0.0923), row("Adam", 4, 0.0)],
            "SGD **wrong** 0.09 if accumulated; Adam right",
        ),
        ([row("SGD", 1, 5.1), row("SGD", 4, 5.0), row("Adam", 4, 0.5)], "SGD **wrong** 5; Adam **wrong** 0.5"),
        ([row("SGD", 1, 5.1), row("SGD", 4, 0.0), row("Adam", 4, 0.0)], "SGD **wrong** 5 in part; Adam right"),
        ([row("SGD", 4, None, words="no file"), row("Adam", 4, None, words="no file")], "refused [1]"),
        (
            [row("SGD", 4, 0.0), row("SGD", 4, None, processes=2, words="x"), row("Adam", 4, 0.0)],
            "SGD on 2 processes refused [1]; Adam right",
        ),
        (
            [row("SGD", 1, 0.0), row("SGD", 4, None, words="x"), row("Adam", 4, 0.0)],
            "SGD in part refused [1]; Adam right",
        ),
    ],
)
def test_a_cell_says_what_is_wrong_and_when(rows: list[dict[str, Any]], said: str) -> None:
    assert version_table.verify_cell(rows, Notes()) == said


@pytest.mark.parametrize(
    ("name", "answer", "said"),
    [
        ("offload ZeRO-2", {"ratio": 1.0004, "like": LIKE}, "right"),
        ("offload ZeRO-2", {"ratio": 1.002, "like": LIKE}, "**× 1.002**"),
        ("bf16 with fp32 sums ZeRO-1", {"ratio": 1.003, "like": LIKE}, "right"),
        ("bf16 with fp32 sums ZeRO-1", {"ratio": 1.07, "like": LIKE}, "**× 1.07**"),
        ("fp16 ZeRO-0", {"ratio": 0.0078125, "like": LIKE}, "**× 1/128**"),
        ("several backwards ZeRO-1", {"ratio": 0.5301, "like": LIKE}, "**only the last**"),
        ("loss.backward() ZeRO-0", {"ratio": 4.0, "like": LIKE}, "**× 4**"),
        ("pipeline ZeRO-0", {"ratio": 0.25, "ratios": [0.25, 1.0]}, "**× 1/4, right**"),
        ("pipeline ZeRO-0", {"ratio": 1.0, "ratios": [1.0, 1.0]}, "right"),
        ("no gradient_clipping ZeRO-0", {"ratio": 0.25, "norm": 1.0, "like": LIKE}, "clips at 1"),
        ("no gradient_clipping ZeRO-0", {"ratio": 1.0, "norm": 4.0, "like": LIKE}, "off"),
        ("no gradient_clipping ZeRO-2", {"ratio": 0.53, "norm": 2.1, "like": LIKE}, "× 0.53"),
        ("no_sync ZeRO-2", {"words": "AssertionError: no"}, "refused [1]"),
    ],
)
def test_a_probe_in_words(name: str, answer: dict[str, Any], said: str) -> None:
    assert version_table.probe_words(name, answer, Notes()) == said


def test_stages_that_answer_alike_stand_together() -> None:
    right, refused = {"ratio": 1.0, "like": LIKE}, {"words": "KeyError: 0"}
    answers = {"direct ZeRO-0": {"ratio": 4.0, "like": LIKE}, "direct ZeRO-1": right, "direct ZeRO-2": right}
    answers |= {"direct ZeRO-3": refused, "direct and more ZeRO-0": refused}
    notes = Notes()
    assert version_table.probe_cell("direct", answers, notes) == "0: **× 4**; 1–2: right; 3: refused [1]"
    assert notes.lines() == ["* [1] `KeyError: 0`"]
    assert version_table.probe_cell("absent", answers, notes) == "–"


def test_ranges_are_broken_by_what_was_measured_in_between() -> None:
    all_of_them = [measured(release) for release in ("0.18.10", "0.17.6", "0.18.9", "0.18.0")]
    assert version_table.spans(["0.18.9", "0.17.6", "0.18.0"], all_of_them) == "0.17.6 to 0.18.9"
    assert version_table.spans(["0.18.10", "0.17.6"], all_of_them) == "0.17.6, 0.18.10"


def test_the_known_bad_table_is_confirmed_or_contradicted() -> None:
    witness = WITNESSES["ZeRO-2 gradients are too small"]
    wrong, right = row("SGD", 4, 0.09), row("SGD", 4, 0.0)
    seen = [measured("0.17.5", right), measured("0.17.6", wrong), measured("0.18.3", right), measured("0.14.5")]
    assert version_table.compare(">=0.17.6,<=0.18.2", witness, seen) == (
        "confirmed",
        "seen in 0.17.6; not in 0.17.5, 0.18.3; could not be measured in 0.14.5",
    )
    verdict, words = version_table.compare("==0.18.3", witness, seen)
    assert verdict == "**contradicted**"
    assert words.endswith("Against the table: 0.17.6 shows it, 0.18.3 does not")
    assert version_table.compare(">=0.20", witness, seen[:1]) == ("not seen", "seen in none; not in 0.17.5")
    assert version_table.compare(">=0.20", witness, seen[3:]) == ("not measurable here", "no release answered")


def test_a_fault_of_another_kind_does_not_confirm_a_row() -> None:
    hop, sums = (
        WITNESSES["the pipeline engine divides at every stage"],
        WITNESSES["the pipeline engine does not divide by the accumulation steps"],
    )
    four, quarter = ({"ratio": 4.0, "ratios": [4.0, 4.0]}, {"ratio": 0.25, "ratios": [0.25, 1.0]})
    assert [hop(measured("1", **{"pipeline ZeRO-1": one})) for one in (four, quarter)] == [False, True]
    assert [sums(measured("1", **{"pipeline ZeRO-1": one})) for one in (four, quarter)] == [True, False]
    assert hop(measured("1", **{"pipeline ZeRO-0": {"words": "RuntimeError"}})) is None
    ignored = WITNESSES["scale_wrt_gas=False is ignored"]
    lost = {"scale_wrt_gas=False ZeRO-2": {"ratio": 0.53}}
    assert ignored(measured("1", **lost)) is False
    assert ignored(measured("1", **{"scale_wrt_gas=False ZeRO-2": {"ratio": 0.25}})) is True


def test_every_row_about_deepspeed_has_a_witness_or_a_reason() -> None:
    names = {known.name for known in ROWS if known.package == "deepspeed"}
    assert names == set(WITNESSES) | set(UNSEEN)
    assert not set(WITNESSES) & set(UNSEEN)


def test_the_page_names_what_was_measured_and_what_could_not_be() -> None:
    broken = measured("0.9.0", words="AttributeError: 'FieldInfo' object has no attribute 'required'")
    page = version_table.page([broken, measured("0.19.8", row("SGD", 4, 0.0))], "python -m benchmarks.version_atlas")
    assert page.startswith(BEGIN)
    assert page.endswith(END)
    assert "Measured 2026-12-01 on the CPU with torch 2.13.0, Python 3.11.7" in page
    assert "40 seconds of processor time" in page
    assert page.index("| 0.19.8 |") < page.index("| 0.9.0 | not measured [1] |")
    assert "* [1] `AttributeError: 'FieldInfo' object has no attribute 'required'`" in page
    for known in ROWS:
        assert known.name in page
    for name, _, _ in ELSEWHERE:
        assert name in page


def test_only_the_generated_part_of_the_document_is_exchanged() -> None:
    text = f"# Title\n\n{BEGIN}\nold\n{END}\n\nend\n"
    assert version_table.put(text, f"{BEGIN}\nnew\n{END}") == f"# Title\n\n{BEGIN}\nnew\n{END}\n\nend\n"
    for wrong in ("", f"{END}{BEGIN}", f"{BEGIN}{BEGIN}{END}"):
        with pytest.raises(ValueError, match="markers"):
            version_table.put(wrong, "new")


def test_the_document_has_a_place_for_the_tables() -> None:
    text = (version_atlas.ROOT / "docs" / "releases.md").read_text(encoding="utf-8")
    assert version_table.put(text, f"{BEGIN}{END}").count(BEGIN) == 1


def test_usual_releases_are_all_recent_ones_and_the_last_of_older_minors() -> None:
    there = ["0.18.0", "0.17.1", "0.17.0", "0.16.10", "0.16.9", "0.14.5", "0.14.0", "0.13.5"]
    assert version_atlas.usual(there) == ["0.18.0", "0.17.1", "0.17.0", "0.16.10", "0.14.5"]


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("a\nImportError: cannot import name 'x'\nnote: from a subprocess\n", "ImportError: cannot import name 'x'"),
        ("ERROR: No matching distribution found for deepspeed==9\n[notice] new pip\n", "ERROR: No matching"),
        ("torch.cuda.OutOfMemoryError: full\n", "torch.cuda.OutOfMemoryError: full"),
        ("killed\n\n", "killed"),
        ("", "no message"),
    ],
)
def test_the_line_that_names_the_error(text: str, line: str) -> None:
    assert version_atlas.error_line(text).startswith(line)


def test_a_command_that_fails_says_why(tmp_path: Path) -> None:
    lines: list[str] = []
    code = "print('one', flush=True); raise ValueError('numactl')"
    with pytest.raises(version_atlas.Stopped, match=r"^ValueError: numactl$"):
        version_atlas.call([sys.executable, "-c", code], time.monotonic() + 60, tmp_path, lines.append)
    assert lines == ["one\n"]


def test_a_command_without_end_is_ended_with_what_it_started(tmp_path: Path) -> None:
    code = "import subprocess, time; print(subprocess.Popen(['sleep', '60']).pid, flush=True); time.sleep(60)"
    seen: list[str] = []
    began = time.monotonic()
    with pytest.raises(version_atlas.Stopped, match="not done in the time given"):
        version_atlas.call([sys.executable, "-c", code], began + 1.0, tmp_path, seen.append)
    assert time.monotonic() - began < 10
    state = Path(f"/proc/{int(seen[0])}/stat")
    while state.exists() and state.read_text().rsplit(")", 1)[1].split()[0] != "Z":
        assert time.monotonic() - began < 10, "its child is still running"
        time.sleep(0.05)


def test_a_release_that_cannot_be_had_is_a_row_with_words(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(command: list[str], deadline: float, cwd: Path, take: object) -> None:
        assert "deepspeed==0.0.1" in command
        folders.append(cwd)
        raise version_atlas.Stopped("ERROR: No matching distribution")

    folders: list[Path] = []
    monkeypatch.setattr(version_atlas, "call", refuse)
    found = version_atlas.measure("0.0.1", 60.0)
    assert (found["words"], found["stopped"], found["rows"]) == ("ERROR: No matching distribution", "", [])
    assert not os.path.lexists(folders[0])


def test_another_release_in_its_place_is_noticed() -> None:
    found: dict[str, Any] = {"release": "0.18.1", "rows": [], "probes": {}, "versions": {}}
    version_atlas.take(found, "[INFO] a line of the library's own\n")
    with pytest.raises(version_atlas.Stopped, match=r"0\.19\.8 was imported in its place"):
        version_atlas.take(found, '{"machine": {"versions": {"deepspeed": "0.19.8", "torch": "2"}}}')
    version_atlas.take(found, '{"machine": {"versions": {"deepspeed": "0.18.1+local", "torch": "2"}}}')
    version_atlas.take(found, '{"probe": "pipeline ZeRO-1", "ratio": 1.0}')
    assert found["probes"] == {"pipeline ZeRO-1": {"ratio": 1.0}}


def test_the_words_of_a_failed_process_are_the_release_s_own_and_short() -> None:
    notes = Notes()
    own = "RuntimeError: Output 0 of Split is a view. " + "x" * 400
    whole = f"A training process failed ({own}). Smallest fix: look at the log of the run, then press Run again."
    assert notes.mark(whole) == notes.mark(own) == "[1]"
    assert notes.words == [own[:160]]


def test_what_is_refused_in_part_is_judged_by_the_rest() -> None:
    witness = WITNESSES["ZeRO-2 gradients are too small"]
    refused = row("SGD", 4, None, processes=2)
    assert witness(measured("1", row("SGD", 4, 0.0), refused)) is False
    assert witness(measured("1", row("SGD", 4, 0.09), refused)) is True
    assert witness(measured("1", refused)) is None


def test_a_row_is_judged_by_its_weights_alone() -> None:
    found: dict[str, Any] = {"release": "0.14.5", "rows": [], "probes": {}, "versions": {}}
    rows = [
        {"distance": 0.004, "allowed": 0.05, "gradient_norm": 0.55, "holds": False},
        {"distance": 0.06, "allowed": 0.05, "gradient_norm": 0.0, "holds": True},
        {"distance": None, "words": "refused", "holds": False},
    ]
    version_atlas.take(found, json.dumps({"rows": rows}))
    assert [one["holds"] for one in found["rows"]] == [True, False, False]
