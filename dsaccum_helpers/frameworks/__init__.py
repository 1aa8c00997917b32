"""Real Accelerate, Transformers and Lightning under DeepSpeed, on the CPU: three short programs and how they are run.

Importing this imports neither torch nor a framework; ``run_program`` starts them in processes of their own.
"""

from dsaccum_helpers.frameworks.arguments import check_arguments
from dsaccum_helpers.frameworks.host import program_source, run_program
from dsaccum_helpers.frameworks.result import ProgramResult
from dsaccum_helpers.mismatches.framework_runs import FrameworkRun, Shown

__all__ = ["FrameworkRun", "ProgramResult", "Shown", "check_arguments", "program_source", "run_program"]
