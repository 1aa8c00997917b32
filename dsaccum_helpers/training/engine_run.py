"""One run with DeepSpeed in one process: the engine, the loop of the entry, and what plain PyTorch says about it."""

from __future__ import annotations

import contextlib
import errno
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsaccum_helpers.mismatches import find
from dsaccum_helpers.setting import Setting

WEIGHTS_FILE = "weights.npy"
Emit = Callable[[dict[str, Any]], None]


class EngineRun:
    """One run with DeepSpeed in one process."""

    def __init__(
        self, setting: Setting, code: str, rank: int, device: Any, emit: Emit, place: Path | None = None
    ) -> None:
        from dsaccum_helpers.training.tasks import load_task

        self.mismatch = find(code)
        self.setting, self.rank, self.device, self.emit, self.place = setting, rank, device, emit, place
        self.task = self.mismatch.prepare(load_task(setting.task))
        self.watched, self.watches = False, list[Any]()

    def train(self, folder: Path | None, *, to_the_end: bool) -> None:
        """From ``deepspeed.initialize`` to the last point, and what plain PyTorch says about it."""
        from dsaccum_helpers.training.loops import expect, first_error, make_engine
        from dsaccum_helpers.training.recorder import Recorder
        from dsaccum_helpers.training.tasks import Loader, Stream

        mismatch, setting, device = self.mismatch, self.setting, self.device
        try:
            engine, scheduler = make_engine(self.task, setting, mismatch)
        except Exception as error:
            self._refused(error, mismatch.refused)
            return
        stream, length = Stream(self.task, setting), mismatch.epochs(setting)[1]
        loader = Loader(stream, mismatch.loader_sizes(setting), length, self.rank, setting.processes, device)
        keep_first = mismatch.measures_direction
        recorder = Recorder(engine, self.task, setting, loader, self.emit, keep_first=keep_first)
        if mismatch.bypasses_engine_step:
            recorder.count_steps_of(engine.optimizer)
        self._watch(engine, loader)
        try:
            self._loop(engine, scheduler, loader, recorder)
        except Exception as error:
            self._tell_seen(failed=True)
            self._refused(error, mismatch.stops(setting) is not None and not recorder.steps)
            return
        self._tell_seen()
        weights = recorder.final_weights()
        if self.rank == 0:
            compared = weights if to_the_end else None
            expected = vars(expect(self.task, setting, mismatch, device, recorder.beat, weights=compared))
            self.emit({"event": "expected", "optimum": self.task.optimum, **expected})
            measured = {"distance": recorder.distance(weights)}
            if recorder.first_weights is not None:
                measured["first_error"] = first_error(self.task, setting, device, recorder.first_weights)
            finish(weights, loader.micro_batches_read, self.emit, folder, **measured)

    def _loop(self, engine: Any, scheduler: Any, loader: Any, recorder: Any) -> None:
        from dsaccum_helpers.training.loops import Run, right_loop

        count = self.setting.gradient_accumulation_steps
        run = Run(engine, loader, self.task.criterion, count, scheduler, self.task.auxiliary, recorder.report)
        run.resume = lambda count: self._resume(run, recorder, count)
        loop = self.mismatch.loop or right_loop
        for _ in range(self.mismatch.epochs(self.setting)[0]):
            loop(run)

    def _resume(self, run: Any, recorder: Any, count: int) -> None:
        """Save a checkpoint, and load it into a new engine that accumulates ``count`` micro-batches. Collective."""
        from torch import distributed

        from dsaccum_helpers.training.loops import make_engine

        size = self.setting.train_micro_batch_size_per_gpu * self.setting.processes
        numbers = {"gradient_accumulation_steps": count, "train_batch_size": size * count}
        with contextlib.ExitStack() as stack:
            # The first process makes the folder, inside that of the run, which is gone with it whatever happens.
            made = tempfile.TemporaryDirectory(prefix="checkpoint-", dir=self.place) if self.rank == 0 else None
            name = [stack.enter_context(made) if made else None]
            distributed.broadcast_object_list(name, device=self.device)
            run.engine.save_checkpoint(name[0])
            run.engine.destroy()
            config = self.setting.ds_config() | numbers
            run.engine, run.scheduler = make_engine(self.task, self.setting, self.mismatch, config)
            self._watch(run.engine, run.loader)
            run.engine.load_checkpoint(name[0])
            distributed.barrier()
        recorder.attach(run.engine)

    def _watch(self, engine: Any, loader: Any) -> None:
        """Look at this engine too, where the run is to be watched."""
        if self.watched:
            from dsaccum_helpers.observer import watch

            self._stop_watching()
            self.watches.append(watch(engine, loader, quiet=True).start())

    def _stop_watching(self, *, failed: bool = False) -> None:
        for one in self.watches[-1:]:
            one.stop(failed=failed)

    def _tell_seen(self, *, failed: bool = False) -> None:
        """Say what the observer found; nothing where the run was not watched."""
        self._stop_watching(failed=failed)
        if self.rank == 0 and self.watched:
            self.emit({"event": "seen", "findings": [f.to_dict() for one in self.watches for f in one.findings]})

    def _refused(self, error: Exception, expected: bool) -> None:
        """Say that the engine would not go on, where that is what the entry shows; raise the error where it is not."""
        if not expected or is_memory(error) or is_disk(error):
            raise error
        if self.rank == 0:
            self.emit({"event": "ended", "how": "refused", "rank": self.rank, "words": words(error)})


def finish(weights: Any, micro_batches: int, emit: Emit, folder: Path | None, **measured: float) -> None:
    """Write the weights where they are wanted, and say that the run is over."""
    if folder is not None:
        import numpy

        numpy.save(folder / WEIGHTS_FILE, weights.numpy())
    emit({"event": "ended", "how": "finished", "rank": 0, "micro_batches": micro_batches, **measured})


def words(error: BaseException) -> str:
    """Class and text of an error, on one line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())[:600]}"


def is_memory(error: BaseException) -> bool:
    """Did memory run out?"""
    text = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or "out of memory" in text
        or "can't allocate memory" in text
        or "bad_alloc" in text
    )


def is_disk(error: BaseException) -> bool:
    """Did the disk run full?"""
    # numpy says how many bytes were written of those requested, and gives no error number.
    text = str(error)
    return isinstance(error, OSError) and (error.errno in (errno.ENOSPC, errno.EDQUOT) or "requested and" in text)
