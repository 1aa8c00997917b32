"""The rules of the house that no ready tool keeps: small pieces, docstrings, light modules, nothing of one machine."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "dsaccum_helpers"
MODULES = sorted(PACKAGE.rglob("*.py"))
LONGEST_MODULE = 300
LONGEST_FUNCTION = 40
LIGHT = {
    *("batch", "commands", "deepspeed_rules", "doctor", "effective", "errors", "findings", "job"),
    *("installed_keys", "known_keys", "known_versions", "mend", "mismatches", "nearest", "readers", "setting", "trace"),
}
HEAVY = ("accelerate", "deepspeed", "ipywidgets", "lightning", "matplotlib", "numpy", "torch", "transformers")
HEAVY += ("pytorch_lightning",)

# Spelt in pieces, so that this file does not find itself.
PLACES_OF_ONE_MACHINE = [rf"(?<![\w.<>-])/{name}/" for name in ("work", "root", r"tmp/dev", r"opt/wheels", r"opt/pypi")]
REGISTRIES = [
    r"\.".join(parts)
    for parts in (("pypi", "org"), ("pythonhosted", "org"), ("download", "pytorch", "org"), ("anaconda", "(?:org|com)"))
]

named = pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))


def functions(tree: ast.AST) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def public(tree: ast.Module) -> Iterator[ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef]:
    """The module, its public functions and classes, and the public methods of those classes."""
    pending: list[ast.Module | ast.ClassDef] = [tree]
    while pending:
        owner = pending.pop()
        yield owner
        for node in owner.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                pending.append(node)
            elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and not node.name.startswith("_"):
                yield node


def repository_files() -> list[Path]:
    """Every file that is, or is about to be, under version control."""
    command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [path for name in listed.split("\0") if name and (path := ROOT / name).is_file()]


def test_there_is_a_package() -> None:
    assert MODULES


@named
def test_module_can_be_read_in_a_sitting(path: Path) -> None:
    assert len(path.read_text().splitlines()) <= LONGEST_MODULE


@named
def test_functions_are_short(path: Path) -> None:
    lengths = {node.name: (node.end_lineno or 0) - node.lineno + 1 for node in functions(ast.parse(path.read_text()))}
    assert {name: length for name, length in lengths.items() if length > LONGEST_FUNCTION} == {}


@named
def test_public_names_have_docstrings(path: Path) -> None:
    nodes = list(public(ast.parse(path.read_text())))
    assert [getattr(node, "name", "the module") for node in nodes if not ast.get_docstring(node)] == []


def test_no_file_names_one_machine_or_a_registry() -> None:
    pattern = re.compile("|".join(PLACES_OF_ONE_MACHINE + REGISTRIES))
    files = repository_files()
    assert ROOT / "pyproject.toml" in files
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in files
        if (match := pattern.search(path.read_text(errors="replace"))) is not None
    ]
    assert found == []


def test_pattern_finds_what_it_should_and_passes_what_it_may() -> None:
    pattern = re.compile("|".join(PLACES_OF_ONE_MACHINE + REGISTRIES))
    assert pattern.search("see /" + "work/main")
    assert pattern.search("https://" + "pypi." + "org/simple")
    assert not pattern.search("https://example.org/work/paper, a/root/b, framework/x, networks")


def test_modules_that_must_stay_light_are_watched() -> None:
    there = {path.stem if path.is_file() else path.name for path in PACKAGE.iterdir()} & LIGHT
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]
    watched = next(contract for contract in contracts if contract["id"] == "light")
    assert set(watched["source_modules"]) == {f"dsaccum_helpers.{name}" for name in there}
    assert set(HEAVY) <= set(watched["forbidden_modules"])


def test_package_is_imported_without_a_heavy_library() -> None:
    there = sorted(name for name in LIGHT if (PACKAGE / name).is_dir() or (PACKAGE / f"{name}.py").is_file())
    lines = ["import sys, dsaccum_helpers", *(f"import dsaccum_helpers.{name}" for name in there)]
    lines.append(f"sys.exit(', '.join(name for name in {HEAVY!r} if name in sys.modules) or None)")
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], cwd=ROOT, capture_output=True, text=True)
    assert (done.stderr.strip(), done.returncode) == ("", 0)
