"""Real runs with DeepSpeed: ``Runner`` and ``compare``. Importing this imports no torch; the training processes do."""

from dsaccum_helpers.training.comparison import Comparison, Row, compare, default_runner
from dsaccum_helpers.training.events import ORACLE, Expected, Point, RunError, RunResult
from dsaccum_helpers.training.machine import MachineReport, check_machine
from dsaccum_helpers.training.recorded import RecordedRunner
from dsaccum_helpers.training.run import Run
from dsaccum_helpers.training.runner import Runner

__all__ = [
    "ORACLE",
    "Comparison",
    "Expected",
    "MachineReport",
    "Point",
    "RecordedRunner",
    "Row",
    "Run",
    "RunError",
    "RunResult",
    "Runner",
    "check_machine",
    "compare",
    "default_runner",
]
