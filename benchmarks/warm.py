"""Processes that have imported everything and stay: in them a training loop alone is timed, without any start.

``WarmGroup`` is the client; the same file is what each process runs (``python -m benchmarks.warm``).
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from dsaccum_helpers.setting import Setting

ROOT = Path(__file__).resolve().parents[1]


class WarmGroup:
    """So many processes in one process group; ``measure`` times one loop in them, again and again."""

    def __init__(self, processes: int) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="warm-")
        environment = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", GLOO_SOCKET_IFNAME="lo")
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, (str(ROOT), environment.get("PYTHONPATH"))))
        store = str(Path(self.folder.name, "rendezvous"))
        with Path(self.folder.name, "log").open("w") as log:
            self.members = [
                subprocess.Popen(
                    [sys.executable, "-m", "benchmarks.warm", str(rank), str(processes), store],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    text=True,
                    env=environment,
                    cwd=ROOT,
                )
                for rank in range(processes)
            ]

    def measure(self, kind: str, setting: Setting) -> dict[str, float]:
        """Seconds of one loop (``LOOPS``) in rank 0: ``wall`` and ``cpu`` of the loop, ``made`` before it, and more."""
        line = json.dumps({"kind": kind, "setting": setting.to_dict()})
        for member in self.members:
            assert member.stdin is not None
            print(line, file=member.stdin, flush=True)
        answers = [member.stdout.readline() for member in self.members if member.stdout is not None]
        if not all(answers):
            raise RuntimeError(f"A warm process ended:\n{Path(self.folder.name, 'log').read_text()[-2000:]}")
        answer: dict[str, float] = json.loads(answers[0])
        return answer

    def __enter__(self) -> WarmGroup:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for member in self.members:
            if kind is not None:
                member.kill()
            member.communicate()
        self.folder.cleanup()


class Meter:
    """CPU time of this process inside the functions that it wraps, in nanoseconds."""

    def __init__(self) -> None:
        self.total = 0

    def wrap(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The same function, metered."""

        def metered(*arguments: Any, **keywords: Any) -> Any:
            began = time.process_time_ns()
            try:
                return function(*arguments, **keywords)
            finally:
                self.total += time.process_time_ns() - began

        return metered


def meter_cost() -> float:
    """Nanoseconds that metering itself adds to ``outer.total - inner.total`` in each call: the best of many."""
    costs = []
    for _ in range(50):
        outer, inner = Meter(), Meter()
        call = outer.wrap(inner.wrap(lambda: None))
        for _ in range(100):
            call()
        costs.append((outer.total - inner.total) / 100)
    return min(costs)


class Bench:
    """Makes and times the loops of one process."""

    def __init__(self, rank: int, processes: int, device: Any) -> None:
        self.rank, self.processes, self.device = rank, processes, device
        self.read, self.write = os.pipe()

    def run(self, kind: str, setting: Setting) -> dict[str, float]:
        """Make the loop, let all ranks meet, then time it."""
        from torch import distributed

        began = time.process_time()
        loop, close = LOOPS[kind](self, setting)
        answer = {"made": time.process_time() - began}
        gc.collect()
        distributed.barrier()
        cpu, wall = time.process_time(), time.perf_counter()
        more = loop() or {}
        answer |= {"wall": time.perf_counter() - wall, "cpu": time.process_time() - cpu, **more}
        close()
        return answer

    def loader(self, setting: Setting) -> Any:
        """The micro-batches of this rank."""
        from dsaccum_helpers.training.tasks import Loader, Stream, load_task

        stream = Stream(load_task(setting.task), setting)
        sizes, length = (setting.train_micro_batch_size_per_gpu,), setting.micro_batches
        return Loader(stream, sizes, length, self.rank, self.processes, self.device)

    def emit(self, event: dict[str, Any]) -> None:
        """As a training process does it: a line into a pipe."""
        os.write(self.write, (json.dumps(event) + "\n").encode())


def plain(bench: Bench, setting: Setting) -> tuple[Callable[[], None], Callable[[], None]]:
    """The floor: the same micro-batches and updates in plain PyTorch."""
    from torch import distributed

    from dsaccum_helpers.training.loops import linear_schedule, make_optimizer
    from dsaccum_helpers.training.tasks import fresh_model, load_task

    task, loader = load_task(setting.task), bench.loader(setting)
    model = fresh_model(task, setting).to(bench.device)
    parameters, count = list(model.parameters()), setting.gradient_accumulation_steps
    optimizer = make_optimizer(list(parameters), setting)
    scheduler = linear_schedule(setting)(optimizer)

    def loop() -> None:
        for index, (inputs, targets) in enumerate(loader, 1):
            (task.criterion(model(inputs), targets) / (count * bench.processes)).backward()
            if index % count == 0:
                for parameter in parameters if bench.processes > 1 else ():
                    distributed.all_reduce(parameter.grad)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()

    return loop, lambda: None


def engine(bench: Bench, setting: Setting) -> tuple[Callable[[], None], Callable[[], None]]:
    """The right loop with DeepSpeed's engine, without our recorder."""
    from dsaccum_helpers.mismatches import MATCHED
    from dsaccum_helpers.training.loops import Run, make_engine, right_loop
    from dsaccum_helpers.training.tasks import load_task

    task = load_task(setting.task)
    made, _ = make_engine(task, setting, MATCHED)
    run = Run(made, bench.loader(setting), task.criterion, setting.gradient_accumulation_steps)
    return lambda: right_loop(run), made.destroy


def recorded(bench: Bench, setting: Setting) -> tuple[Callable[[], Any], Callable[[], None]]:
    """The same loop as a press runs it: with our recorder, which meters itself here."""
    from dsaccum_helpers.mismatches import MATCHED
    from dsaccum_helpers.training.loops import Run, make_engine, right_loop
    from dsaccum_helpers.training.recorder import Recorder
    from dsaccum_helpers.training.tasks import load_task

    task, loader = load_task(setting.task), bench.loader(setting)
    made, _ = make_engine(task, setting, MATCHED)
    run = Run(made, loader, task.criterion, setting.gradient_accumulation_steps)
    outer, inner, evaluation = Meter(), Meter(), Meter()
    recorder = Recorder(made, task, setting, loader, bench.emit)
    recorder.step_engine = inner.wrap(recorder.step_engine)
    recorder.evaluate = evaluation.wrap(recorder.evaluate)  # type: ignore[assignment]
    made.step = outer.wrap(made.step)
    metering = meter_cost() * (setting.micro_batches + setting.optimizer_steps)

    def loop() -> dict[str, float]:
        right_loop(run)
        recording = outer.total - inner.total - metering
        return {"recording": recording / 1e9, "evaluation": evaluation.total / 1e9, "metering": metering / 1e9}

    def close() -> None:
        made.destroy()
        if bench.rank == 0:
            os.read(bench.read, 1 << 20)

    return loop, close


LOOPS: dict[str, Callable[[Bench, Setting], tuple[Callable[[], Any], Callable[[], None]]]] = {
    "plain": plain,
    "engine": engine,
    "recorded": recorded,
}


def main() -> None:
    """Join the group, then answer one request a line on the real standard output until standard input ends."""
    rank, processes, store = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    from dsaccum_helpers.training import worker

    worker.prepare_process()
    bench = Bench(rank, processes, worker.join(rank, processes, store))
    for line in sys.stdin:
        job = json.loads(line)
        print(json.dumps(bench.run(job["kind"], Setting(**job["setting"]))), file=answers, flush=True)


if __name__ == "__main__":
    main()
