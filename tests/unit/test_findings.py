"""A report in every form: text, table, SARIF, annotations, HTML; each from the same findings."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest
from jsonschema import Draft202012Validator

from dsaccum_helpers.findings import SEVERITIES, Finding, Fix, Report
from dsaccum_helpers.findings.github import as_github
from dsaccum_helpers.findings.html import as_html, as_page
from dsaccum_helpers.findings.sarif import as_sarif
from dsaccum_helpers.findings.text import as_table, as_text, place, plain
from dsaccum_helpers.job import Source
from dsaccum_helpers.mismatches import load

SCHEMA = json.loads((Path(__file__).parent / "sarif_subset.schema.json").read_text())
CAUSE = Finding(
    "batch-not-divisible",
    "error",
    "The train batch size cannot be divided",
    "train_batch_size 256 / (2 x 7) leaves 4. Smallest fix: train_batch_size 252.",
    [Source("conf/a b.json", 2, 3, "train_batch_size"), Source("--processes", key="processes")],
    "Nothing is trained.",
    [
        Fix("Set train_batch_size 252.", {"train_batch_size": 252}),
        Fix("Start 8 processes.", {"processes": 8}),
    ],
    "notebooks/01_three_numbers.ipynb",
)
FOLLOWS = Finding("scheduler-unit", "note", "Another unit", "The rate ends early: 5 % off, <b>&</b>\nsecond line.")
FOLLOWS.because_of = "batch-not-divisible"
WARNING = Finding("elasticity", "warning", "A block", "Refused.", [Source("-"), Source("b.yaml", 7)])
NUMBERS = {
    "train_batch_size": 256,
    "train_micro_batch_size_per_gpu": 2,
    "gradient_accumulation_steps": None,
    "data_parallel_size": 7,
}
SOURCES = {"train_batch_size": "conf/a b.json:2", "data_parallel_size": "--processes"}
WRONG = Report([WARNING, CAUSE, FOLLOWS], NUMBERS, SOURCES)
RIGHT = Report(
    [], dict(zip(NUMBERS, (64, 4, 4, 4), strict=True)), {}, reasons=["engine.step() follows each backward (a.py:3)."]
)
UNKNOWN = Report(missing=["How many processes? Give --processes N."])


def test_verdicts() -> None:
    assert [report.verdict for report in (WRONG, RIGHT, UNKNOWN)] == ["mismatch", "ok", "incomplete"]
    assert Report([FOLLOWS]).verdict == "ok"
    assert Report([FOLLOWS], missing=["x"]).verdict == "incomplete"
    assert Report([WARNING], missing=["x"]).verdict == "mismatch"


def test_a_severity_that_is_none_is_refused() -> None:
    assert SEVERITIES == ("error", "warning", "note")
    with pytest.raises(ValueError, match="severity 'fatal'"):
        Finding("elasticity", "fatal", "", "")


def test_text_begins_with_verdict_and_numbers() -> None:
    lines = as_text(WRONG).splitlines()
    assert lines[0] == "Mismatch: 1 error, 1 warning, 1 note.  [deepspeed]"
    assert lines[2:6] == [
        "     256  train_batch_size                conf/a b.json:2",
        "   =   2  train_micro_batch_size_per_gpu  derived",
        "   x   ?  gradient_accumulation_steps",
        "   x   7  data_parallel_size              --processes",
    ]


def test_text_says_cause_effect_fix_and_what_follows() -> None:
    text = as_text(WRONG)
    cause = text.index("error batch-not-divisible: The train batch size cannot be divided")
    assert text.index("note scheduler-unit") > cause
    assert "\n  at conf/a b.json:2:3 (train_batch_size), --processes\n" in text
    assert "\n  train_batch_size 256 / (2 x 7) leaves 4.\n" in text, "the remedy stands once, as the fix"
    assert "\n  What it does: Nothing is trained.\n" in text
    assert "\n  Smallest fix: Set train_batch_size 252.\n    or: Start 8 processes.\n" in text
    assert "\n    note scheduler-unit: Another unit  (follows from batch-not-divisible)\n" in text
    assert text.endswith("\nMore: dsaccum explain elasticity\n")


def test_text_of_right_and_incomplete_jobs() -> None:
    assert as_text(RIGHT).startswith("OK: nothing wrong found.")
    assert "Why this is right:\n  - engine.step() follows each backward (a.py:3).\n" in as_text(RIGHT)
    assert as_text(UNKNOWN) == (
        "Incomplete: what was given cannot decide.  [deepspeed]\n\nStill needed:\n"
        "  - How many processes? Give --processes N.\n"
    )
    assert as_text(Report([FOLLOWS])).startswith("OK, with 1 note.")


def test_numbers_that_do_not_agree_are_not_shown_as_equal() -> None:
    report = Report([CAUSE], dict(zip(NUMBERS, (100, 4, 4, 4), strict=True)))
    assert "  !=   4  train_micro_batch_size_per_gpu" in as_text(report)


@pytest.mark.parametrize("width", [40, 72, 110])
def test_lines_keep_to_the_width(width: int) -> None:
    long = Finding("elasticity", "error", "t", "word " * 200, [Source(f"{n}.json", n) for n in range(1, 9)])
    lines = as_text(Report([long]), width).splitlines()
    assert max(map(len, lines[1:-1])) <= width
    assert "and 4 more" in " ".join(lines)


def test_table_of_worlds() -> None:
    lines = as_table({4: RIGHT, 7: WRONG, 8: UNKNOWN}).splitlines()
    assert " ".join(lines[0].split()) == "processes verdict train = micro x accumulation x replicas findings"
    assert " ".join(lines[1].split()) == "4 ok 64 = 4 x 4 x 4"
    assert lines[2].split()[:2] == ["7", "mismatch"]
    assert "On 7 processes:" in lines
    assert lines[-1].strip() == "- How many processes? Give --processes N."


@pytest.mark.parametrize(
    ("source", "shown"),
    [
        (Source("a.json", 2, 3, "k"), "a.json:2:3 (k)"),
        (Source("a.json"), "a.json"),
        (Source("--set", key="loader.batch_size"), "--set loader.batch_size"),
        (Source("--processes", key="processes"), "--processes"),
        (Source(key="processes"), "processes"),
        (Source(), ""),
    ],
)
def test_places(source: Source, shown: str) -> None:
    assert place(source) == shown


def test_control_characters_are_written_out() -> None:
    assert plain("a\x1b[2J\u202eb\ud800\tc\n") == "a\\x1b[2J\\u202eb\\ud800\tc\n"


def sarif(**reports: Report) -> dict[str, object]:
    codes = {code: load(code) for report in reports.values() for code in report.codes}
    return as_sarif({int(name[1:]): report for name, report in reports.items()}, codes, "0.1.0")


@pytest.mark.parametrize("report", [WRONG, RIGHT, UNKNOWN])
def test_sarif_keeps_to_the_standard(report: Report) -> None:
    Draft202012Validator.check_schema(SCHEMA)
    Draft202012Validator(SCHEMA).validate(sarif(_0=report))


def test_sarif_points_at_rules_and_places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    inside = Finding("elasticity", "error", "t", "m", [Source(str(tmp_path / "x.json"), 1, 1), Source("/else/ü:y", 2)])
    log = sarif(_4=Report([inside, CAUSE]), _7=UNKNOWN)
    Draft202012Validator(SCHEMA).validate(log)
    run = log["runs"][0]  # type: ignore[index]
    rules = run["tool"]["driver"]["rules"]
    for result in run["results"]:
        assert rules[result["ruleIndex"]]["id"] == result["ruleId"]
    first, second = run["results"]
    assert first["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "x.json"
    assert first["relatedLocations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "file:///else/%C3%BC%3Ay"
    assert second["locations"] == [
        {
            "physicalLocation": {
                "artifactLocation": {"uri": "conf/a%20b.json"},
                "region": {"startLine": 2, "startColumn": 3},
            }
        }
    ]
    assert second["message"]["text"].startswith("On 4 processes: train_batch_size 256")
    assert "Smallest fix: Set train_batch_size 252." in second["message"]["text"]
    assert run["invocations"][0]["toolExecutionNotifications"][0]["message"]["text"].startswith("How many")


def test_annotations() -> None:
    lines = as_github({0: WRONG}).splitlines()
    assert lines[0] == "::warning file=b.yaml,line=7,title=elasticity%3A A block::Refused."
    assert lines[1] == (
        "::error file=conf/a b.json,line=2,col=3,title=batch-not-divisible%3A The train batch size cannot be divided"
        "::train_batch_size 256 / (2 x 7) leaves 4.%0ANothing is trained.%0ASmallest fix: Set train_batch_size 252."
        "%0Aor: Start 8 processes."
    )
    assert lines[2].endswith("::The rate ends early: 5 %25 off, <b>&</b>%0Asecond line.")
    assert lines[3] == "Mismatch: 1 error, 1 warning, 1 note."
    assert as_github({4: UNKNOWN}).startswith("::notice title=dsaccum%3A a fact is missing::On 4 processes: How many")


class Page(HTMLParser):
    """Collects the tags, and sees that each is closed."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_page_is_whole_and_loads_nothing() -> None:
    page = Page()
    page.feed(as_page({4: RIGHT, 7: WRONG, 8: UNKNOWN}))
    assert page.open == []
    names = [tag for tag, _ in page.tags]
    assert not {"script", "link", "img", "iframe"} & set(names)
    assert not [attrs for _, attrs in page.tags if {"src", "href"} & set(attrs)]
    assert names.count("h1") == names.count("main") == names.count("title") == 1
    assert ("html", {"lang": "en"}) in page.tags
    assert all({"scope"} == set(attrs) for tag, attrs in page.tags if tag == "th")
    assert names.count("table") == names.count("caption") == 2


def test_html_escapes_what_comes_from_a_file() -> None:
    fragment = as_html(WRONG)
    assert "&lt;b&gt;&amp;&lt;/b&gt;" in fragment
    assert "<b>" not in fragment
    assert WRONG._repr_html_() == fragment
    evil = Report([Finding("elasticity", "error", "<i>", '"><script>', [Source('"><x>.json', 1)])], framework="<u>")
    assert not {"<script>", "<i>", "<x>", "<u>"} & set(as_page({0: evil}).replace(">", ">\n").split("\n"))
    assert "<script" not in as_page({0: evil})
