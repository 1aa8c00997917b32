"""What ``dsaccum check`` says of a run from its arguments alone, before anything is trained. Imports no torch."""

from __future__ import annotations

import json
import tempfile
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import yaml

from dsaccum_helpers.doctor import check
from dsaccum_helpers.findings import Report
from dsaccum_helpers.mismatches.framework_runs import FrameworkRun

PACKAGES = ("deepspeed", "accelerate", "transformers", "pytorch-lightning")


def check_arguments(run: FrameworkRun) -> Report:
    """The report on the run's config and arguments, with the versions that are installed here.

    An Accelerate YAML is an owner that only a file can be: it is written to a temporary folder, and read there.
    """
    have = {}
    for name in PACKAGES:
        try:
            have[name] = version(name)
        except PackageNotFoundError:
            continue
    options = {**run.job_options(), "have": have}
    if "yaml" not in run.script:
        return check(run.config, **options)
    with tempfile.TemporaryDirectory(prefix="dsaccum-arguments-") as folder:
        config, launch = Path(folder) / "ds.json", Path(folder) / "accelerate.yaml"
        config.write_text(json.dumps(run.config), encoding="utf-8")
        block = {"deepspeed_config_file": config.name, **run.script["yaml"]}
        fields = {"distributed_type": "DEEPSPEED", "num_processes": run.processes, "deepspeed_config": block}
        launch.write_text(yaml.safe_dump(fields), encoding="utf-8")
        return check(launch, config, **options)
