"""A run keeps to itself: no port, no file, no compiler, nothing of the environment it was started in."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from dsaccum_helpers.setting import Setting
from dsaccum_helpers.training import Run, Runner, RunResult

Finish = Callable[..., list[RunResult]]

SHORT = Setting(optimizer_steps=3, processes=2, train_micro_batch_size_per_gpu=4)
OF_A_LAUNCHER = {
    "RANK": "3",
    "LOCAL_RANK": "3",
    "WORLD_SIZE": "7",
    "MASTER_ADDR": "10.1.2.3",
    "MASTER_PORT": "29500",
    "GLOO_SOCKET_IFNAME": "eth7",
    "OMP_NUM_THREADS": "64",
}


@pytest.fixture(scope="module")
def empty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a program that writes anywhere would write: the home, temporary and cache folders."""
    return tmp_path_factory.mktemp("empty")


@pytest.fixture(scope="module")
def lonely(empty: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Runner]:
    """A runner in an environment where nothing is as it should be."""
    poison = tmp_path_factory.mktemp("poison")
    blocked, here = poison / "blocked", poison / "folder of the notebook"
    for folder, name in ((blocked, "mpi4py"), (blocked, "ninja"), (here, "random"), (here, "sklearn")):
        folder.mkdir(exist_ok=True)
        # Where it is imported all the same, this file tells it.
        (folder / f"{name}.py").write_text(
            f"open({str(poison / 'imported')!r}, 'a').write('{name} '); raise ImportError"
        )
    taken = socket.socket()
    with pytest.MonkeyPatch.context() as patch:
        try:
            taken.bind(("127.0.0.1", 29500))
        except OSError:
            pass  # somebody else has it, which is as good
        else:
            taken.listen()
        for name, value in OF_A_LAUNCHER.items():
            patch.setenv(name, value)
        for name, folder in (("TMPDIR", "tmp"), ("HOME", "home"), ("TORCH_EXTENSIONS_DIR", "extensions")):
            (empty / folder).mkdir()
            patch.setenv(name, str(empty / folder))
        (poison / "no programs").mkdir()
        patch.setenv("PATH", str(poison / "no programs"))
        patch.setattr("tempfile.tempdir", str(empty / "tmp"))
        for name in ("CC", "CXX", "XDG_CACHE_HOME"):
            patch.delenv(name, raising=False)
        patch.setenv("PYTHONPATH", str(blocked))
        # What lies in the folder of the notebook must not be imported in place of a package.
        patch.chdir(here)
        made = Runner()
        made.ready()
        yield made
        made.close()
    taken.close()
    assert not (poison / "imported").exists(), (poison / "imported").read_text()
    assert [path for path in empty.rglob("*") if path.is_file()] == []
    assert list((empty / "tmp").iterdir()) == []


def test_neither_port_nor_launcher_nor_compiler_is_asked_for(lonely: Runner, finish: Finish) -> None:
    """The numbers are those of a run in a good environment, to the bit."""
    for stage in (0, 1, 3):
        setting = SHORT.change(zero_stage=stage, optimizer="Adam")
        (result,), (usual,) = finish(setting, by=lonely), finish(setting)
        assert result.points == usual.points
        assert (result.weights == usual.weights).all()


def test_nothing_was_compiled_and_nothing_written_outside(lonely: Runner, empty: Path, finish: Finish) -> None:
    finish(SHORT, by=lonely)
    assert list((empty / "extensions").iterdir()) == []
    assert list((empty / "home").iterdir()) == []
    assert list((empty / "tmp").iterdir()) == [lonely.ready().folder]


def listening(pid: int) -> list[tuple[str, int]]:
    sockets = psutil.Process(pid).net_connections(kind="inet")
    return [(one.laddr.ip, one.laddr.port) for one in sockets if one.status == psutil.CONN_LISTEN]


def test_only_ranks_listen_and_only_on_this_machine(lonely: Runner) -> None:
    before = listening(os.getpid())
    run = lonely.start(SHORT.change(optimizer_steps=500))
    seen: list[int] = []

    def look(run: Run) -> None:
        for pid in run.set.pids:
            seen.append(len(listening(pid)))
            for one in psutil.Process(pid).net_connections(kind="inet"):
                assert one.laddr.ip in ("127.0.0.1", "::1"), one
                assert not one.raddr or one.raddr.ip in ("127.0.0.1", "::1"), one
        assert listening(lonely.ready().process.pid) == []
        assert listening(os.getpid()) == before
        run.cancel()

    for one, point in lonely.stream([run]):
        if point is not None and point.step == 3:
            look(one)
    assert run.result.ended == "cancelled"
    # One at which the pairs of each gloo group meet, torch's own and the one DeepSpeed makes; the rendezvous is a file.
    assert seen == [2, 2]


def test_events_travel_by_pipes_and_files_of_the_private_folder(lonely: Runner) -> None:
    folder = lonely.ready().folder
    run = lonely.start(SHORT.change(optimizer_steps=500))
    names: set[str] = set()
    for one, point in lonely.stream([run]):
        if point is not None and point.step == 3:
            for pid in one.set.pids:
                names |= {file.path for file in psutil.Process(pid).open_files()}
            one.cancel()
    assert names
    outside = [name for name in names if not name.startswith((str(folder), "/dev/shm/", "/proc/", "/sys/"))]
    assert outside == []
