"""dsaccum: learn, diagnose and prove gradient accumulation in DeepSpeed. These are the public names.

Importing this imports neither torch nor deepspeed; ``compare`` starts them in processes of their own.
"""

from __future__ import annotations

from dsaccum_helpers.batch import Batch, BatchError, resolve_batch
from dsaccum_helpers.errors import DsaccumError

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import Any

    from dsaccum_helpers.setting import Setting, SettingError
    from dsaccum_helpers.training import Comparison, Runner, compare

__version__ = "0.1.0"
__all__ = [
    "Batch",
    "BatchError",
    "Comparison",
    "DsaccumError",
    "Runner",
    "Setting",
    "SettingError",
    "compare",
    "resolve_batch",
]


def __getattr__(name: str) -> Any:
    # Loaded when first asked for: the arithmetic and the diagnosis must start in milliseconds.
    if name in ("Setting", "SettingError"):
        from dsaccum_helpers import setting

        return getattr(setting, name)
    if name in ("Comparison", "Runner", "compare"):
        from dsaccum_helpers import training

        return getattr(training, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
