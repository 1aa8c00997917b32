"""Which known fault of the installed versions a row that fails shows (no torch)."""

from __future__ import annotations

from typing import Any

from dsaccum_helpers.doctor import read_job
from dsaccum_helpers.known_versions import ROWS
from dsaccum_helpers.mismatches.known_bad_version import holds, within

ADAM_AHEAD = "DeepSpeed begins Adam one step ahead when it makes its bf16 optimizer at ZeRO-0"
#: The releases in which that is known: the line of which 0.19.8 was measured. No table of batch faults has it,
#: because it harms a job without accumulation just as much.
ADAM_AHEAD_VERSIONS = ">=0.19,<0.20"
ADAMS = ("adam", "adamw")


def known_fault(config: dict[str, Any], processes: int, versions: dict[str, str]) -> str:
    """The fault of these versions that a config meets, in a sentence with its source; empty where none is known.

    ``config``: as DeepSpeed is given it. ``versions``: package to version, as in ``runner.machine``.
    """
    job = read_job(config, processes=processes, have=versions, framework="deepspeed")
    for row in ROWS:
        version = job.version(row.package)
        if version and within(version, row.versions) and row.severity != "note" and holds(job, row.when):
            return f"{row.package} {version}: {row.name} ({row.source})"
    version = versions.get("deepspeed", "")
    bf16 = any((config.get(name) or {}).get("enabled") is True for name in ("bf16", "bfloat16"))
    stage = (config.get("zero_optimization") or {}).get("stage", 0)
    adam = str((config.get("optimizer") or {}).get("type", "")).lower() in ADAMS
    if bf16 and adam and stage == 0 and version and within(version, ADAM_AHEAD_VERSIONS):
        return ADAM_AHEAD
    return ""
