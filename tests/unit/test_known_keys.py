"""The table of known keys, and which key is meant by one that is not in it."""

from __future__ import annotations

import pytest

from dsaccum_helpers.batch import KEYS
from dsaccum_helpers.job import Config, Job
from dsaccum_helpers.known_keys import CHECKED, REMOVED, SECTIONS, TOP_LEVEL
from dsaccum_helpers.mismatches import load
from dsaccum_helpers.mismatches.near_keys import ALIASES, distance, nearest
from dsaccum_helpers.mismatches.unknown_keys import VITAL, WEIGHTY


def findings(values: dict[str, object], processes: int = 2) -> list[tuple[str, str]]:
    job = Job(processes=processes)
    job.configs.append(Config(values, "ds.json"))
    return [(finding.severity, finding.message) for finding in load("unknown-config-key").check(job)]


def test_the_table_holds_what_everybody_uses() -> None:
    assert set(KEYS) == set(KEYS)
    assert {*VITAL, *WEIGHTY} <= TOP_LEVEL
    assert REMOVED <= TOP_LEVEL
    assert SECTIONS["data_types"] >= {"grad_accum_dtype"}
    assert CHECKED["zero_optimization"] >= {"stage", "cpu_offload", "stage3_max_live_parameters"}
    assert not set(CHECKED) & set(SECTIONS)


def test_no_alias_is_a_key() -> None:
    assert set(ALIASES) <= TOP_LEVEL
    assert not {name for names in ALIASES.values() for name in names.split()} & TOP_LEVEL


@pytest.mark.parametrize(
    ("one", "other", "far"),
    [("stage", "stage", 0), ("stagee", "stage", 1), ("satge", "stage", 1), ("stge", "stage", 1), ("tape", "stage", 2)],
)
def test_distance(one: str, other: str, far: int) -> None:
    assert distance(one, other, 3) == distance(other, one, 3) == far


@pytest.mark.parametrize("key", sorted(TOP_LEVEL))
def test_no_key_is_taken_for_a_slip_of_another(key: str) -> None:
    assert findings({"train_batch_size": 8, key: {} if key not in KEYS else 8}, 1) == [] or key in REMOVED


@pytest.mark.parametrize("right", KEYS)
@pytest.mark.parametrize(
    "slip",
    [
        lambda key: key + " ",
        lambda key: " " + key,
        str.upper,
        str.title,
        lambda key: key.replace("_", "-"),
        lambda key: key.replace("_", " "),
        lambda key: "".join(word.title() for word in key.split("_")),
        lambda key: key.replace("i", "", 1),
        lambda key: key.replace("si", "is").replace("ti", "it", 1),
        lambda key: key.rstrip("su"),
    ],
)
def test_every_way_of_writing_a_batch_key_wrongly_is_found(right: str, slip: object) -> None:
    wrong = slip(right)  # type: ignore[operator]
    if wrong == right:
        return
    near = nearest(wrong, [*VITAL, *sorted(TOP_LEVEL)])
    assert near is not None
    assert near[0] == right


@pytest.mark.parametrize("key", ["model", "lr", "epochs", "output_dir", "data", "wandb_project", "comment", "tp"])
def test_other_programs_keys_mean_no_key_of_deepspeed(key: str) -> None:
    assert all(severity == "note" for severity, _ in findings({"train_batch_size": 8, key: 1}))


def test_the_removed_feature_is_an_error_only_where_the_version_is_known() -> None:
    assert [severity for severity, _ in findings({"train_batch_size": 8, "nebula": {}})] == ["note"]
