"""What the entries about the three numbers share: settings that work as fixes, under the names of who owns them."""

from __future__ import annotations

from dsaccum_helpers.batch import KEYS, SIZES
from dsaccum_helpers.effective.fault import Fault, find_fault
from dsaccum_helpers.findings import Fix
from dsaccum_helpers.mismatches.layers import under_owners

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

    from dsaccum_helpers.job import Job

__all__ = ["Fault", "fault_named", "fixes", "owned", "product"]


def fault_named(code: str, job: Job) -> Fault | None:
    """The fault of the job's numbers where it has this name."""
    fault = find_fault(job)
    return fault if fault is not None and fault.code == code else None


def fixes(job: Job, fault: Fault) -> list[Fix]:
    """The nearest settings that work, each with its arithmetic, complete and ready to be applied."""
    settings = fault.error.nearest if fault.error else []
    return [Fix(_sentence(fault, setting), owned(job, setting)) for setting in settings]


def _sentence(fault: Fault, setting: dict[str, Any]) -> str:
    before = dict(zip(KEYS, (fault.train, fault.micro, fault.steps), strict=True))
    changed = [f"{name} {value}" for name, value in setting.items() if name in SIZES or before.get(name) != value]
    words = f"Set {' and '.join(changed)}" if changed else f"Take the batch of {setting[KEYS[0]]}"
    return f"{words}: {product(setting, setting[KEYS[0]] // (setting[KEYS[1]] * setting[KEYS[2]]))}."


def product(setting: dict[str, Any], replicas: int | None) -> str:
    """The equation of a setting: 2 x 18 x 7 = 252."""
    return f"{setting[KEYS[1]]} x {setting[KEYS[2]]} x {replicas} = {setting[KEYS[0]]}"


def owned(job: Job, setting: dict[str, Any]) -> dict[str, Any]:
    """The setting, also under the names by which a trainer, a loader or a wish has a number of it."""
    train, micro, steps = (setting[key] for key in KEYS)
    more = under_owners(job, micro, steps)
    if job.framework == "lightning":  # which refuses a config with an accumulation count
        setting = {**setting, KEYS[2]: None}
    if micro is not None and job.fact("loader.batch_size") is not None:
        more["loader.batch_size"] = micro
    if train is not None and job.value("wanted.train_batch_size", train) != train:
        more["wanted.train_batch_size"] = train
    return {**setting, **more}


def listed(words: Iterable[Any], last: str = "and") -> str:
    """a, b and c."""
    *most, final = map(str, words)
    return f"{', '.join(most)} {last} {final}" if most else final
