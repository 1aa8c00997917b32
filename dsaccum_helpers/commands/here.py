"""``--here``: which versions are installed on this machine, and how many devices it has; nothing is imported."""

from __future__ import annotations

import os

from dsaccum_helpers.job import Source

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from dsaccum_helpers.job import Job

__all__ = ["devices", "look"]

PACKAGES = (
    *("deepspeed", "torch", "transformers", "accelerate", "trl", "lightning", "pytorch-lightning", "openrlhf"),
    *("megatron-core", "peft"),
)
HERE = Source("--here")


def look(job: Job) -> None:
    """Add what this machine says, weaker than all that was read."""
    from importlib import metadata

    for name in PACKAGES:
        try:
            job.have(name, metadata.version(name), HERE)
        except metadata.PackageNotFoundError:
            continue
    count = devices()
    if count:
        job.add("processes", count, HERE)


def devices() -> int:
    """How many NVIDIA devices a launcher would use here; 0 where none can be seen."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        # As CUDA does: devices count up to the first one that is none.
        names = [name.strip() for name in visible.split(",")]
        return next((place for place, name in enumerate(names) if name in ("", "-1")), len(names))
    import subprocess

    try:
        done = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=20)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    return sum(line.startswith("GPU ") for line in done.stdout.splitlines())
