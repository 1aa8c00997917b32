"""Every fix that ``dsaccum check`` offers for a framework's wrong setting is applied, and trained with it."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from dsaccum_helpers.batch import KEYS
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.frameworks import FrameworkRun, ProgramResult, Shown, check_arguments, run_program
from dsaccum_helpers.mismatches import CATALOGUE
from dsaccum_helpers.mismatches.framework_runs import MICRO_BATCH_SIZE

OFFERED = [
    (shown, fix)
    for entry in CATALOGUE.values()
    for shown in getattr(entry, "programs", ())
    for finding in check_arguments(shown.wrong).findings[:1]
    for fix in finding.fixes
    if fix.set
]


def put(block: dict[str, Any], name: str, value: Any) -> dict[str, Any]:
    """The block with one value changed; None removes it."""
    rest = {key: other for key, other in block.items() if key != name}
    return rest if value is None else {**rest, name: value}


def apply(run: FrameworkRun, fix: Fix) -> FrameworkRun:
    """The run as the person has it after the fix."""
    config, arguments, script = run.config, run.arguments, run.script
    for name, value in fix.set.items():
        owner, _, rest = name.partition(".")
        if owner in ("trainer", "accelerator"):
            arguments = put(arguments, rest, value)
        elif owner == "plugin":
            script = {**script, owner: put(script.get(owner, {}), rest, value)}
        elif owner == "environment":
            script = {**script, owner: put(script.get(owner, {}), rest, str(value))}
        elif owner == "accelerate":
            script = {**script, "yaml": put(script["yaml"], rest, value)}
        elif name == "loader.has_batch_size":
            assert value is True
            script = put(script, "loader", None)
        elif name == "loader.batch_size":
            assert value == MICRO_BATCH_SIZE
        else:
            assert name in KEYS or name in config, name
            config = put(config, name, value)
    if run.program == "lightning_module":
        script = {**script, "loss": "multiplied"}  # the fault of Lightning's that is left
    return run._replace(config=config, arguments=arguments, script=script)


Train = Callable[[FrameworkRun], ProgramResult]


@pytest.fixture(scope="module")
def train() -> Train:
    """Several fixes come to the same run, which is trained once."""
    known: dict[str, ProgramResult] = {}

    def run(wanted: FrameworkRun) -> ProgramResult:
        key = json.dumps(wanted, sort_keys=True)
        if key not in known:
            known[key] = run_program(wanted)
        return known[key]

    return run


@pytest.mark.parametrize(("shown", "fix"), OFFERED, ids=[f"{shown.what}: {fix.description}" for shown, fix in OFFERED])
def test_run_after_the_fix_is_the_full_batch(shown: Shown, fix: Fix, train: Train) -> None:
    run = apply(shown.wrong, fix)
    batch = check_arguments(run).batch["train_batch_size"]
    # A fix may keep the config and change the argument: then another batch is meant.
    run = run._replace(accumulation_steps=batch // MICRO_BATCH_SIZE)
    result = train(run)
    assert (result.ended, result.words) == ("finished", "")
    assert (result.optimizer_steps, result.samples) == (6, 6 * batch)
    assert result.gradient_norms == pytest.approx(result.right_gradient_norms, rel=1e-6)
    assert result.weight_difference < 5e-7
    assert result.codes == []


def test_there_are_fixes_for_each_entry_that_has_numbers() -> None:
    assert len(OFFERED) > 30
