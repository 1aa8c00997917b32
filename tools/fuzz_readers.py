"""Feed the readers whatever a fuzzer invents, for a bounded time: nothing but a clear error may come back.

    pip install atheris
    python -m tools.fuzz_readers -max_total_time=120

The first byte of an input chooses the name of the file, the rest is its content; the acceptance cases are the seeds.
Any argument is handed on to libFuzzer. A failing input is written to the current folder.
"""

from __future__ import annotations

import importlib
import json
import pkgutil
import sys
import tempfile
from pathlib import Path

import atheris  # type: ignore[import-not-found,unused-ignore]

with atheris.instrument_imports(include=["dsaccum_helpers", "hjson", "yaml"]):
    # Each reader and rule is loaded when it is needed: here all of them at once, so that all are instrumented.
    import dsaccum_helpers.mismatches
    import dsaccum_helpers.readers
    from dsaccum_helpers.doctor import diagnose, read_job
    from dsaccum_helpers.errors import DsaccumError

    for package in (dsaccum_helpers.readers, dsaccum_helpers.mismatches):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)

NAMES = ("ds_config.json", "run.sh", "train.log", "train.py", "args.yaml", "note.ipynb", "hostfile", "unknown")
CASES = Path(__file__).resolve().parents[1] / "tests" / "cases"


def one_input(data: bytes) -> None:
    """Read one file and ask the whole catalogue about it."""
    if not data:
        return
    try:
        diagnose(read_job((NAMES[data[0] % len(NAMES)], data[1:]), processes=2))
    except DsaccumError as error:
        if "\n" in str(error):
            raise AssertionError("an error of more than one line") from error


def seeds(folder: Path) -> None:
    """The files of the acceptance cases, each behind the byte of its name."""
    for path in CASES.glob("*.json"):
        for number, (name, content) in enumerate(json.loads(path.read_text())["files"].items()):
            if isinstance(content, str):
                kind = next((place for place, known in enumerate(NAMES) if known[-3:] == name[-3:]), 7)
                (folder / f"{path.stem}-{number}").write_bytes(bytes([kind]) + content.encode())


def main() -> None:
    """Run libFuzzer on the seeds."""
    with tempfile.TemporaryDirectory() as folder:
        seeds(Path(folder))
        atheris.Setup([*sys.argv, "-timeout=20", "-rss_limit_mb=2000", "-max_len=20000", folder], one_input)
        atheris.Fuzz()


if __name__ == "__main__":
    main()
