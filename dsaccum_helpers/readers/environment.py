"""Variables as ``env`` prints them or a ``.env`` file holds them: ``WORLD_SIZE=8``."""

from __future__ import annotations

import re

from dsaccum_helpers.job import Source
from dsaccum_helpers.readers.arguments import typed

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from dsaccum_helpers.job import Job

_LINE = re.compile(r"(?:export\s+)?([A-Za-z_]\w*)=(.*)")
#: What says how many processes there are, or what a framework reads its settings from.
_KNOWN = re.compile(
    r"(?:GLOBAL_|LOCAL_|NODE_)?(?:WORLD_SIZE|RANK)|GPU_NUM_DEVICES|MASTER_(?:ADDR|PORT)|SLURM_\w+|OMPI_COMM_WORLD_\w+"
    r"|PMI_\w+|ACCELERATE_\w+|DEEPSPEED_\w+|CUDA_VISIBLE_DEVICES|N(?:UM_)?NODES|N(?:UM_)?GPUS?"
)


def is_list(text: str) -> bool:
    """Is every line an assignment, and is one of the names known?"""
    lines = [line.strip() for line in text.split("\n") if line.strip() and not line.lstrip().startswith("#")]
    found = [_LINE.fullmatch(line) for line in lines]
    return all(found) and any(match and _KNOWN.fullmatch(match[1]) for match in found)


def read(text: str, file: str, job: Job) -> None:
    """Put the known variables into the job."""
    for number, line in enumerate(text.split("\n"), 1):
        match = _LINE.fullmatch(line.strip())
        if match and _KNOWN.fullmatch(match[1]):
            job.add(f"environment.{match[1]}", typed(match[2].strip("'\"")), Source(file, number, 1, match[1]))
