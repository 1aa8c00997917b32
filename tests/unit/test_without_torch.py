"""Diagnosis and arithmetic import where no training library, and no other package either, is installed."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "dsaccum_helpers"
# The parts of the house that run without torch; those not yet built are passed over.
LIGHT = (
    *("errors", "deepspeed_rules", "nearest", "batch", "setting", "trace", "job", "findings", "effective"),
    *("installed_keys", "known_keys", "known_versions", "readers", "mismatches", "mend", "doctor", "commands"),
)
HEAVY = (
    "torch",
    "deepspeed",
    "transformers",
    "accelerate",
    "lightning",
    "ipywidgets",
    "matplotlib",
    "numpy",
    "sklearn",
)

BLOCK = f"""
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY!r}:
            raise ImportError(f"{{name}} is blocked")

sys.meta_path.insert(0, Blocked())
"""


def light_modules() -> list[str]:
    """Every module of every light part, the package's own front door included."""
    files = []
    for part in LIGHT:
        file, folder = PACKAGE / f"{part}.py", PACKAGE / part
        files += [file] * file.is_file() + sorted(folder.rglob("*.py")) * folder.is_dir()
    names = [file.relative_to(ROOT).with_suffix("").parts for file in files]
    return ["dsaccum_helpers", *(".".join(parts).removesuffix(".__init__") for parts in names)]


def run(code: str, *options: str) -> subprocess.CompletedProcess[str]:
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{code}"
    return subprocess.run([sys.executable, *options, "-c", code], capture_output=True, text=True, timeout=60)


def test_the_list_reaches_the_parts_that_exist() -> None:
    assert {"dsaccum_helpers.errors", "dsaccum_helpers.batch"} <= set(light_modules())


@pytest.mark.parametrize("name", light_modules())
def test_module_imports_where_every_training_library_is_blocked(name: str) -> None:
    show = f"print([name for name in {HEAVY!r} if name in sys.modules])"
    done = run(f"{BLOCK}\nimport {name}\n{show}")
    assert (done.returncode, done.stderr, done.stdout.strip()) == (0, "", "[]")


def test_all_modules_import_from_the_standard_library_alone() -> None:
    done = run("\n".join(f"import {name}" for name in light_modules()), "-I", "-S")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", HEAVY)
def test_the_block_blocks(name: str) -> None:
    done = run(f"{BLOCK}\nimport {name}.something")
    assert done.returncode == 1
    assert f"ImportError: {name} is blocked" in done.stderr
