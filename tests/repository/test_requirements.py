"""Each version and range stands in several files that other tools read; here they are held together."""

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
EXTRAS = PROJECT["optional-dependencies"]
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text())
CONDA_NAMES = {"pytorch": "torch"}
HEAVY = {
    "torch",
    "deepspeed",
    "jupyterlab",
    "ipywidgets",
    "matplotlib",
    "numpy",
    "transformers",
    "accelerate",
    "lightning",
    "pytorch-lightning",
}


def ranges(requirements: list[str]) -> dict[str, str]:
    """Package name to version range, both in one spelling."""
    parsed = [Requirement(text) for text in requirements]
    assert len({one.name for one in parsed}) == len(parsed)
    return {canonicalize_name(CONDA_NAMES.get(one.name, one.name)): str(one.specifier) for one in parsed}


def pins() -> dict[str, str]:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert lines
    assert all(re.fullmatch(r"[\w.-]+==[\w.]+", line) for line in lines), "constraints.txt holds exact versions only"
    return {canonicalize_name(name): version for name, version in (line.split("==") for line in lines)}


def test_conda_environment_is_the_course() -> None:
    conda = ranges([line for line in ENVIRONMENT["dependencies"] if isinstance(line, str)])
    assert conda.pop("pip") == ""
    assert conda.pop("python") == PROJECT["requires-python"]
    assert conda == ranges(PROJECT["dependencies"] + EXTRAS["course"])


def test_conda_environment_comes_from_conda_forge_and_holds_the_package() -> None:
    assert ENVIRONMENT["channels"] == ["conda-forge"]
    assert [line for line in ENVIRONMENT["dependencies"] if isinstance(line, dict)] == [{"pip": ["-e .[frameworks]"]}]


@pytest.mark.parametrize("extra", ["course", "frameworks", "unit", "test"])
def test_exact_versions_lie_within_the_ranges(extra: str) -> None:
    exact = pins()
    for text in EXTRAS[extra]:
        requirement = Requirement(text)
        if requirement.name != PROJECT["name"]:
            assert exact[canonicalize_name(requirement.name)] in requirement.specifier, text


def test_torch_is_the_version_that_the_course_was_made_with() -> None:
    assert pins()["torch"] == "2.13.0"


def test_bare_package_and_its_tests_are_light() -> None:
    assert not HEAVY & set(ranges(PROJECT["dependencies"] + EXTRAS["unit"]))


def test_citation_has_the_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == PROJECT["version"]
    assert citation["license"] == PROJECT["license"]


def test_changelog_begins_with_the_version() -> None:
    entries = re.split(r"^## ", (ROOT / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]
    assert entries[0].startswith(f"[{PROJECT['version']}] - ")
    assert re.search(r"^- \w", entries[0], flags=re.MULTILINE), "the entry says nothing"
