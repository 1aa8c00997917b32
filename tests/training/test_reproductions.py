"""Every entry that runs: the wrong run ends where its prediction says, the mended one where the full batch does.

What each of them does by hand-worked numbers, at every stage, is in test_reproductions_simple.py and
test_reproductions_structural.py; here no entry can be forgotten.
"""

from __future__ import annotations

from typing import Any

import pytest

from dsaccum_helpers.mismatches import RUNNABLE
from dsaccum_helpers.mismatches.mended import SUFFIX
from dsaccum_helpers.setting import Setting
from dsaccum_helpers.training import Runner, RunResult

#: An entry is shown in the first of these that it can be shown in.
CHANGES: tuple[dict[str, Any], ...] = (
    *({}, {"zero_stage": 0}, {"dtype": "bf16", "gradient_accumulation_steps": 32, "train_micro_batch_size_per_gpu": 1}),
    {"dtype": "bf16", "optimizer": "Adam", "zero_stage": 0},
)
#: Wrong loops that ZeRO-2 trains right: the observer may say a word, and raises no alarm.
HARMLESS_AT_ZERO_2 = ("zero-grad-inside-window", "backward-bypasses-engine")
#: What the order of a sum in fp32 decides, beside weights of about 0.1.
ROUNDING = 1e-6


def setting_for(code: str) -> Setting:
    base = Setting(
        task="digits",
        train_micro_batch_size_per_gpu=4,
        processes=2,
        zero_stage=2,
        optimizer_steps=4,
        learning_rate=0.05,
    )
    return next(one for more in CHANGES if RUNNABLE[code].needs(one := base.change(**more)) is None)


@pytest.fixture(scope="module")
def results(runner: Runner) -> dict[str, RunResult]:
    runs = [
        runner.start(setting_for(code), name, to_the_end=True, watch=True)
        for code in RUNNABLE
        for name in (code, code + SUFFIX)
    ]
    for _ in runner.stream(runs):
        pass
    return {run.result.code: run.result for run in runs}


@pytest.mark.parametrize("code", RUNNABLE)
def test_the_wrong_run_ends_where_plain_pytorch_says(results: dict[str, RunResult], code: str) -> None:
    result, setting = results[code], setting_for(code)
    if RUNNABLE[code].refused or RUNNABLE[code].stops(setting):
        assert (result.ended, result.points[1:]) == ("refused", []), f"{result.sentence}\n{result.log}"
        assert result.engine_words.partition(":")[0].isidentifier()
        assert "Smallest fix: " in result.our_words
    else:
        assert result.ended == "finished"
        assert result.expected is not None
        assert result.expected.difference is not None
        assert result.expected.difference <= ROUNDING


@pytest.mark.parametrize("code", RUNNABLE)
def test_the_mended_run_ends_where_the_full_batch_does(results: dict[str, RunResult], code: str) -> None:
    mended = results[code + SUFFIX]
    assert (mended.ended, len(mended.steps)) == ("finished", 4)
    assert mended.expected is not None
    assert mended.expected.difference is not None
    assert mended.expected.difference <= ROUNDING
    assert mended.expected.gradient_norm == pytest.approx(mended.expected.full_batch_gradient_norm, rel=1e-2)
    assert mended.seen is not None
    assert [one for one in mended.seen if one["severity"] != "note"] == [], "the observer raises a false alarm"


@pytest.mark.parametrize("code", RUNNABLE)
def test_the_observer_names_the_wrong_run_first(results: dict[str, RunResult], code: str) -> None:
    entry, result = RUNNABLE[code], results[code]
    if entry.refused:
        assert result.seen is None, "there is no engine to watch"
    elif entry.not_watched:
        assert result.seen == []
    elif code not in HARMLESS_AT_ZERO_2:
        assert result.seen
        assert result.seen[0]["code"] == code
    else:
        assert [one for one in result.seen or () if one["severity"] != "note"] == []
