"""dsaccum: learn, diagnose and prove gradient accumulation in DeepSpeed. These are the public names.

Importing this imports neither torch nor deepspeed; ``compare`` starts them in processes of their own.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import Any

    from dsaccum_helpers.batch import Batch, BatchError, resolve_batch
    from dsaccum_helpers.commands.explain import explain
    from dsaccum_helpers.doctor import check
    from dsaccum_helpers.errors import DsaccumError
    from dsaccum_helpers.findings import Finding, Fix, Report
    from dsaccum_helpers.job import Job, JobError
    from dsaccum_helpers.observer import Watch, watch
    from dsaccum_helpers.setting import Setting, SettingError
    from dsaccum_helpers.training import Comparison, Runner, compare
    from dsaccum_helpers.verification import Verification, verify

__version__ = "0.1.0"
__all__ = [
    "Batch",
    "BatchError",
    "Comparison",
    "DsaccumError",
    "Finding",
    "Fix",
    "Job",
    "JobError",
    "Report",
    "Runner",
    "Setting",
    "SettingError",
    "Verification",
    "Watch",
    "check",
    "compare",
    "explain",
    "resolve_batch",
    "verify",
    "watch",
]
#: Name to the module that has it. Loaded when first asked for: arithmetic and diagnosis must start in milliseconds.
_HOMES = {
    **dict.fromkeys(("Batch", "BatchError", "resolve_batch"), "batch"),
    "DsaccumError": "errors",
    **dict.fromkeys(("Setting", "SettingError"), "setting"),
    **dict.fromkeys(("Job", "JobError"), "job"),
    **dict.fromkeys(("Finding", "Fix", "Report"), "findings"),
    "check": "doctor",
    "explain": "commands.explain",
    **dict.fromkeys(("Comparison", "Runner", "compare"), "training"),
    **dict.fromkeys(("Verification", "verify"), "verification"),
    **dict.fromkeys(("Watch", "watch"), "observer"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    try:
        found = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    except ModuleNotFoundError as error:
        if _HOMES[name] not in ("training", "verification", "observer") or str(error.name).startswith(__name__):
            raise
        from dsaccum_helpers.errors import DsaccumError

        remedy = 'pip install "dsaccum-helpers[course]", or make install in a clone'
        raise DsaccumError(f"{name} needs {error.name}, which is not installed. Smallest fix: {remedy}.") from None
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*globals(), *__all__]
