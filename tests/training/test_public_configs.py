"""The doctor against the real ``DeepSpeedConfig`` on config files of public projects, on several numbers of processes.

Accepted or refused, and the resulting numbers, must be the same; files with "auto" are judged as Transformers would
fill them in, with the defaults of TrainingArguments. A file that this version refuses for another block than the batch
(a removed feature, an autotuning list) is asked with its batch keys alone. Nothing that the real class accepts may get
an error, unless a value is no integer. ``DSACCUM_PUBLIC_CONFIGS`` names the folder; the files are not ours to ship.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import deepspeed.comm
import hjson
import pytest
from deepspeed.runtime.config import DeepSpeedConfig, DeepSpeedConfigError

from dsaccum_helpers.batch import KEYS
from dsaccum_helpers.doctor import check

BESIDE = Path(__file__).resolve().parents[2].parent.joinpath("shared", "public_configs")
FOLDER = Path(os.environ.get("DSACCUM_PUBLIC_CONFIGS", BESIDE))
FILES = sorted(path for path in FOLDER.glob("*.json") if path.name != "index.json")
PROCESSES = (1, 2, 3, 4, 6, 7, 8, 16)
PER_DEVICE, ACCUMULATION = 8, 1  # the defaults of TrainingArguments
#: What DeepSpeed's own arithmetic raises for numbers that do not fit.
BATCH_ERRORS = (AssertionError, TypeError, ZeroDivisionError)
#: Codes that say that DeepSpeed refuses the numbers.
REFUSALS = {
    "batch-product-mismatch",
    "batch-not-divisible",
    "batch-below-world-size",
    "written-for-other-world-size",
    "model-parallel-world",
    "batch-value-type",
    "elasticity",
}

pytestmark = pytest.mark.skipif(not FILES, reason=f"no public configs in {FOLDER}: set DSACCUM_PUBLIC_CONFIGS")


@pytest.fixture(scope="module")
def ask() -> Iterator[Callable[..., tuple[Any, ...] | None]]:
    """Ask DeepSpeed for the three numbers; None where it refuses them."""
    counted = 1

    def ask_deepspeed(config: dict[str, Any], processes: int) -> tuple[Any, ...] | None:
        nonlocal counted
        counted = processes
        try:
            resolved = DeepSpeedConfig(config)
        except BATCH_ERRORS:
            return None
        except (ValueError, DeepSpeedConfigError):  # pydantic's ValidationError is a ValueError
            return ask_deepspeed({key: config[key] for key in KEYS if key in config}, processes)
        return tuple(getattr(resolved, key) for key in KEYS)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deepspeed.comm, "is_initialized", lambda: True)
        patch.setattr(deepspeed.comm, "get_rank", lambda group=None: 0)
        patch.setattr(deepspeed.comm, "get_world_size", lambda group=None: counted)
        yield ask_deepspeed


def filled(config: dict[str, Any], processes: int) -> dict[str, Any]:
    """As the Trainer fills in the batch keys; what the file pins is what its arguments are taken to say."""
    pinned = {key: value for key in KEYS if isinstance(value := config.get(key), int)}
    micro, steps = pinned.get(KEYS[1], PER_DEVICE), pinned.get(KEYS[2], ACCUMULATION)
    values = dict(zip(KEYS, (micro * steps * processes, micro, steps), strict=True))
    return {**config, **{key: values[key] for key in KEYS if config.get(key) == "auto"}}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_as_deepspeed_says(path: Path, ask: Callable[..., tuple[Any, ...] | None]) -> None:
    text = path.read_text(encoding="utf-8")
    has_auto = '"auto"' in text
    for processes in PROCESSES:
        config = hjson.loads(text, object_pairs_hook=dict)
        theirs = ask(filled(config, processes) if has_auto else config, processes)
        report = check(path, processes=processes, framework="transformers" if has_auto else "deepspeed")
        errors = [finding for finding in report.findings if finding.severity == "error"]
        whole = all(type(value) is int for value in theirs or ())
        if theirs is not None and whole:
            assert not errors, (processes, errors)
            assert tuple(report.batch[key] for key in KEYS) == theirs, processes
            assert report.batch["data_parallel_size"] == processes
        else:
            assert {finding.code for finding in errors} & REFUSALS, (processes, report.codes)


def test_every_file_of_the_index_is_compared() -> None:
    index = json.loads((FOLDER / "index.json").read_text(encoding="utf-8"))
    assert {entry["file"] for entry in index} <= {path.name for path in FILES}
