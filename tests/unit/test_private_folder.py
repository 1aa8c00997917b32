"""The folder of a kernel's training processes: private, locked while it is used, cleared away when it is not."""

from __future__ import annotations

import errno
import os
import stat
import time
from pathlib import Path

import pytest

from dsaccum_helpers.training import RunError
from dsaccum_helpers.training.processes import LOG, PREFIX, disk_error, hold, private_folder

OLD = time.time() - 3600


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def left_behind(place: Path, name: str, changed: float = OLD) -> Path:
    folder = place / f"{PREFIX}{name}"
    (folder / "run1").mkdir(parents=True)
    (folder / LOG).touch()
    os.utime(folder, (changed, changed))
    return folder


def test_only_this_user_can_read_it_whatever_the_umask() -> None:
    old = os.umask(0)
    try:
        folder = private_folder()
    finally:
        os.umask(old)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder.stat().st_uid == os.getuid()
    assert folder.name.startswith(PREFIX)
    assert list(folder.iterdir()) == []


def test_what_a_killed_kernel_left_is_removed(temporary: Path) -> None:
    folder = left_behind(temporary, "abandoned")
    private_folder()
    assert not folder.exists()


def test_a_folder_in_use_stays_and_goes_when_it_is_let_go(temporary: Path) -> None:
    folder = left_behind(temporary, "in-use")
    descriptor = hold(folder)
    private_folder()
    assert folder.exists()
    os.close(descriptor)
    private_folder()
    assert not folder.exists()


def test_a_folder_of_this_minute_may_belong_to_one_that_is_just_starting(temporary: Path) -> None:
    folder = left_behind(temporary, "fresh", time.time())
    private_folder()
    assert folder.exists()


def test_nothing_else_is_touched(temporary: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = temporary / "somebody-else"
    other.mkdir()
    os.utime(other, (OLD, OLD))
    precious = tmp_path_factory.mktemp("precious")
    (precious / "file").write_text("kept")
    os.utime(precious, (OLD, OLD))
    (temporary / f"{PREFIX}link").symlink_to(precious)
    of_the_learner = temporary / f"{PREFIX}notes"
    of_the_learner.mkdir()
    os.utime(of_the_learner, (OLD, OLD))
    private_folder()
    assert other.exists()
    assert of_the_learner.exists()
    assert (precious / "file").read_text() == "kept"


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_one_sentence(number: int) -> None:
    error = disk_error(OSError(number, os.strerror(number)), Path("/somewhere"))
    assert isinstance(error, RunError)
    assert str(error) == (
        "The disk is full: nothing can be written to /somewhere. Smallest fix: free some space, or set TMPDIR."
    )


def test_a_folder_that_is_not_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch, temporary: Path) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(temporary / "missing"))
    with pytest.raises(
        RunError, match=r"Cannot write to .*missing: No such file or directory\. Smallest fix: set TMPDIR"
    ):
        private_folder()
