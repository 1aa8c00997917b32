"""What a launch command looks like, wherever it stands."""

from __future__ import annotations

import re

LAUNCHER = (
    r"(?:(?:\S*/)?(?:deepspeed|torchrun|srun|mpirun|mpiexec|sbatch|pdsh|llamafactory-cli)"
    r"[ \t]+(?:-|\S*[/.]|\w+[ \t]+-|train\b)"
    r"|(?:\S*/)?accelerate\s+launch|(?:\S*/)?python[\d.]*\s+(?:-\S+\s+)*(?:\S+\.py|-m\s+\S+|\S*torch\.distributed)"
    r"|trl\s+\w+\s+-|axolotl\s+train|swift\s+(?:sft|rlhf|pt)\b|ray\s+job\s+submit)"
)
PREFIX = r"(?:(?:export|env|nohup|time|sudo|exec|cd\s+\S+\s*&&)\s+|[A-Za-z_]\w*=(?:\"[^\"\n]*\"|'[^'\n]*'|\S*)\s+)*"
COMMAND = re.compile(rf"^[ \t]*{PREFIX}{LAUNCHER}", re.M)
#: The same behind a wrapper such as ``uv run``; then the reader of launches has the last word.
_ANYWHERE = re.compile(
    r"(?:^|[\s;&|'\"(/])(?:deepspeed|torchrun|srun|mpirun|mpiexec|accelerate[ \t]+launch|python[\d.]*)"
    r"[ \t]+(?:-|\S+\.py\b)",
    re.M,
)


def is_command(text: str) -> bool:
    """Does a text hold a launch command?"""
    from dsaccum_helpers.readers import launch

    return bool(COMMAND.search(text)) or bool(_ANYWHERE.search(text) and launch.recognises(text[:20_000]))
