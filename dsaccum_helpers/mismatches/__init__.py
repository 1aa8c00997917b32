"""The catalogue of mismatches: one file each, listed here in the order of the contract's table.

A file is loaded when it is first asked for: ``dsaccum check`` on a config has milliseconds and needs a few of them.
"""

from __future__ import annotations

from importlib import import_module

from dsaccum_helpers.errors import DsaccumError
from dsaccum_helpers.mismatches.entry import Mismatch

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.setting import Setting

    CATALOGUE: dict[str, Mismatch]
    RUNNABLE: dict[str, Mismatch]

__all__ = [
    "CATALOGUE",
    "GROUPS",
    "MATCHED",
    "RUNNABLE",
    "Mismatch",
    "Prediction",
    "UnknownMismatchError",
    "entry",
    "find",
    "load",
    "runnable",
]

MATCHED = Mismatch()
#: Group to codes, and each code to the evidence of which one kind must be there for ``check`` to find anything:
#: ``config``, ``processes``, ``facts`` (all other named facts), ``log``, ``script``, ``versions``.
GROUPS: dict[str, dict[str, str]] = {
    "Numbers and world": {
        "batch-product-mismatch": "config log facts",
        "batch-not-divisible": "config log facts",
        "batch-below-world-size": "config log facts",
        "world-size-seen-as-one": "log",
        "written-for-other-world-size": "config log",
        "world-size-disagreement": "processes facts log",
        "model-parallel-world": "config log facts",
        "elasticity": "config log",
    },
    "Config content": {
        "auto-without-trainer": "config log",
        "batch-value-type": "config log facts",
        "unknown-config-key": "config facts",
        "config-unreadable": "config log",
        "accumulation-key-missing": "config log facts",
    },
    "Framework layers": {
        "trainer-disagrees": "log facts",
        "accumulation-owner-conflict": "facts log",
        "lightning-owns-accumulation": "config log",
        "auto-without-loader-batch": "facts log",
        "two-boundary-counters": "facts",
        "generation-batch": "facts log",
    },
    "Training loop": {
        "loader-batch-differs": "facts",
        "leftover-micro-batches": "facts",
        "loss-divided-twice": "script",
        "guarded-engine-step": "script",
        "manual-accumulation": "script",
        "optimizer-step-bypasses-engine": "script",
        "backward-bypasses-engine": "script",
        "zero-grad-inside-window": "script",
        "micro-batch-skipped": "script",
        "scheduler-unit": "script facts log",
        "unweighted-token-mean": "facts",
        "several-backwards-per-step": "script",
        "sticky-boundary-override": "script",
        "caller-owned-boundary": "config script",
        "no-sync-with-partitioned-gradients": "log script versions",
        "clipping-inside-window": "script",
        "clipping-hides-scale": "script",
        "accumulation-dtype": "config facts",
        "batch-norm-per-micro-batch": "facts",
        "auxiliary-loss-unscaled": "script",
        "logged-loss-scaled": "script log",
        "step-unit-confusion": "config facts script",
        "resume-changed-batch": "facts log",
        "pipeline-train-batch": "script",
        "known-bad-version": "versions",
    },
}
#: Entries that a run can show, in the order in which the course shows them.
_RUNNABLE = (
    "batch-product-mismatch",
    "written-for-other-world-size",
    "loader-batch-differs",
    "leftover-micro-batches",
    "loss-divided-twice",
    "guarded-engine-step",
    "manual-accumulation",
    "scheduler-unit",
    "clipping-hides-scale",
    "unweighted-token-mean",
    "logged-loss-scaled",
    "step-unit-confusion",
    "clipping-inside-window",
    "zero-grad-inside-window",
    "sticky-boundary-override",
    "caller-owned-boundary",
    "no-sync-with-partitioned-gradients",
    "backward-bypasses-engine",
    "accumulation-dtype",
    "batch-norm-per-micro-batch",
    "auxiliary-loss-unscaled",
    "pipeline-train-batch",
    "optimizer-step-bypasses-engine",
    "several-backwards-per-step",
    "micro-batch-skipped",
    "resume-changed-batch",
    "batch-not-divisible",
    "batch-below-world-size",
    "model-parallel-world",
    "elasticity",
    "auto-without-trainer",
    "batch-value-type",
    "unknown-config-key",
    "config-unreadable",
    "known-bad-version",
    "world-size-seen-as-one",
)
_loaded: dict[str, Mismatch] = {}


class UnknownMismatchError(DsaccumError):
    """A code that is not in the catalogue."""


def load(code: str) -> Mismatch:
    """The entry of a code that is known to be in the catalogue, loaded when first asked for."""
    if code not in _loaded:
        module = import_module(f"{__name__}.{code.replace('-', '_')}")
        _loaded[code] = getattr(module, code.title().replace("-", ""))()
    return _loaded[code]


def find(code: str | None) -> Mismatch:
    """The entry with this code; ``None`` and ``"matched"`` give the right run, ``CODE:mended`` the mended one.

    Raises ``UnknownMismatchError``.
    """
    if code is None or code == MATCHED.code:
        return MATCHED
    if isinstance(code, str) and code.endswith(":mended") and code.count(":") == 1:
        from dsaccum_helpers.mismatches.mended import SUFFIX, Mended

        return Mended(find(code.removesuffix(SUFFIX)))
    codes = [code for group in GROUPS.values() for code in group]
    if isinstance(code, str) and code in codes:
        return load(code)
    if isinstance(code, str) and code.lower() == "oracle":
        raise UnknownMismatchError("The oracle is no mismatch. Smallest fix: compare(..., oracle=True).")
    from difflib import get_close_matches

    near = get_close_matches(str(code).lower(), codes, n=1, cutoff=0.5)
    advice = f"use {near[0]}" if near else f"use one of {', '.join(codes)}"
    shown = repr(code) if len(repr(code)) < 60 else repr(code)[:60] + "…"
    raise UnknownMismatchError(f"{shown} is not a mismatch of the catalogue. Smallest fix: {advice}.")


def runnable(code: str | None, setting: Setting) -> Mismatch:
    """The entry with this code, as ``find`` gives it. Raises ``SettingError`` where no run of the setting shows it."""
    from dsaccum_helpers.setting import SettingError

    entry = find(code)
    if entry is not MATCHED and entry.code.removesuffix(":mended") not in _RUNNABLE:
        reason = entry.not_reproduced or "A framework's run shows it, in notebooks/05_frameworks.ipynb."
        raise SettingError(f"{entry.code}: {reason} Smallest fix: one of {', '.join(_RUNNABLE)}.")
    unfit = entry.needs(setting)
    if unfit:
        raise SettingError(f"{entry.code}: {unfit}")
    return entry


def __getattr__(name: str) -> object:
    if name == "CATALOGUE":
        return {code: load(code) for group in GROUPS.values() for code in group}
    if name == "RUNNABLE":
        return {code: load(code) for code in _RUNNABLE}
    if name == "Prediction":
        from dsaccum_helpers.mismatches.prediction import Prediction

        return Prediction
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
