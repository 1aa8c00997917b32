"""The table of known-bad versions."""

from __future__ import annotations

import re

import pytest
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from dsaccum_helpers.job import FRAMEWORKS, Job
from dsaccum_helpers.known_versions import ROWS, Row
from dsaccum_helpers.mismatches import known_bad_version, load
from dsaccum_helpers.mismatches.known_bad_version import within


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.package}: {row.name}")
def test_a_row_is_whole(row: Row) -> None:
    assert row.source
    assert row.severity in ("error", "warning", "note")
    assert set(row.when) <= set(known_bad_version._TESTS)
    assert set(row.when.get("frameworks", ())) <= set(FRAMEWORKS)
    assert set(re.findall(r"\{(\w+)\}", row.effect)) <= {"steps"}
    if row.fixed:
        assert not SpecifierSet(row.versions).contains(Version(row.fixed), prereleases=True)
    for other in row.when.get("with", {}).values():
        SpecifierSet(other)


@pytest.mark.parametrize(
    ("version", "versions", "inside"),
    [
        ("0.18.2", ">=0.17.6,<=0.18.2", True),
        ("0.18.2+cu121", ">=0.17.6,<=0.18.2", True),
        ("0.18.3.dev0", ">=0.17.6,<=0.18.2", False),
        ("0.18.0rc1", ">=0.17.6,<=0.18.2", True),
        ("v0.18.2", ">=0.17.6,<=0.18.2", True),
        ("4.46.0.dev0", ">=4.46,<4.49", False),
        ("main", ">=0.17.6", False),
        ("", ">=0.17.6", False),
    ],
)
def test_versions(version: str, versions: str, inside: bool) -> None:
    assert within(version, versions) is inside


def test_without_a_version_there_is_no_finding() -> None:
    job = Job({"train_batch_size": 64, "gradient_accumulation_steps": 8, "zero_stage": 2}, processes=2)
    assert list(load("known-bad-version").check(job)) == []


def test_an_odd_version_is_no_fault_of_ours() -> None:
    job = Job({"train_batch_size": 64, "gradient_accumulation_steps": 8, "zero_stage": 2}, processes=2)
    job.have("deepspeed", "git+main")
    assert list(load("known-bad-version").check(job)) == []
