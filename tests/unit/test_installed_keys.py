"""A key that only the installed DeepSpeed knows is no unknown key; it is found without importing anything."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dsaccum_helpers import check
from dsaccum_helpers.installed_keys import newer_keys
from dsaccum_helpers.known_keys import VERSION

CONFIG = {"train_micro_batch_size_per_gpu": 4, "gradient_clipping": 1.0, "gradient_clippings": 2.0}


def install(folder: Path, version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A DeepSpeed of another version that would fail if it were imported."""
    package = folder / "deepspeed"
    (package / "runtime").mkdir(parents=True)
    (package / "__init__.py").write_text("raise RuntimeError('never imported')\n")
    (package / "git_version_info_installed.py").write_text(f"version='{version}'\n")
    (package / "runtime/constants.py").write_text('CLIPPINGS = "gradient_clippings"\n')
    code = "def read(param_dict):\n    return get_scalar_param(param_dict, CLIPPINGS, 1.0)\n"
    (package / "runtime/config.py").write_text(code)
    monkeypatch.syspath_prepend(str(folder))
    for name in [name for name in sys.modules if name.partition(".")[0] == "deepspeed"]:
        monkeypatch.delitem(sys.modules, name)


def test_a_key_of_a_newer_deepspeed_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert check(CONFIG, processes=1).codes == ["unknown-config-key"]
    install(tmp_path, "9.9.9", monkeypatch)
    assert "gradient_clippings" in newer_keys(VERSION)
    assert check(CONFIG, processes=1).codes == []


def test_the_version_of_the_table_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, f"{VERSION}+cu12", monkeypatch)
    assert newer_keys(VERSION) == frozenset()
    assert check(CONFIG, processes=1).codes == ["unknown-config-key"]


def test_a_deepspeed_that_cannot_be_read_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, "9.9.9", monkeypatch)
    (tmp_path / "deepspeed/runtime/config.py").write_bytes(b"def (:\x00")
    assert check(CONFIG, processes=1).codes == ["unknown-config-key"]
