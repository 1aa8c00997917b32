"""Runs every case of ``watch`` in one process of several, and writes what was seen as JSON.

    python tests/training/watch_cases.py RANK PROCESSES STORE OUTPUT

Cases are named ``kind code stage``. ``wrong`` and ``mended`` are the catalogue's own runs, ``right`` those of
watch_right.py, ``equal`` compares the weights with and without the watch bit for bit.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from watch_right import COUNT, LOOPS, MICRO, Bench

from dsaccum_helpers import watch
from dsaccum_helpers.mismatches import MATCHED, RUNNABLE, find
from dsaccum_helpers.setting import Setting
from dsaccum_helpers.training.loops import Run, make_engine, right_loop
from dsaccum_helpers.training.tasks import Loader, Stream, load_task
from dsaccum_helpers.training.worker import join, prepare_process

UPDATES = 8


class Cases:
    def __init__(self, rank: int, processes: int, device: torch.device) -> None:
        self.rank, self.processes, self.device = rank, processes, device
        self.seen: dict[str, Any] = {}

    @contextmanager
    def case(self, name: str) -> Iterator[dict[str, Any]]:
        entry: dict[str, Any] = {"raised": ""}
        start = time.monotonic()
        try:
            yield entry
        except Exception as error:
            entry["raised"] = f"{type(error).__name__}: {error}"[:300]
        entry["seconds"] = time.monotonic() - start
        self.seen[name] = entry

    def catalogue(self, stages: tuple[int, ...], mended: tuple[int, ...]) -> None:
        """The runs of all entries."""
        for code, entry in {"matched": MATCHED, **RUNNABLE}.items():
            if entry.refused or entry.severity == "note":
                continue  # there is no engine to watch, or nothing that an engine does is wrong
            for stage in stages:
                self._entry(f"wrong {code} {stage}", entry, stage)
            if code != "matched":
                for stage in mended:
                    self._entry(f"mended {code} {stage}", find(f"{code}:mended"), stage)

    def _entry(self, name: str, entry: Any, stage: int) -> None:
        setting = Setting("digits", MICRO, COUNT, self.processes, zero_stage=stage, optimizer_steps=UPDATES)
        if entry.needs(setting):
            self.seen[name] = {"needs": entry.needs(setting)}
            return
        with self.case(name) as seen:
            task = entry.prepare(load_task(setting.task))
            engine, scheduler = make_engine(task, setting, entry)
            epochs, length = entry.epochs(setting)
            sizes = entry.loader_sizes(setting)
            loader = Loader(Stream(task, setting), sizes, length, self.rank, self.processes, self.device)
            run = Run(
                engine, loader, task.criterion, COUNT, scheduler, getattr(task, "auxiliary", None), lambda _: None
            )
            seen["stops"] = entry.stops(setting)
            seen["right"] = entry.predict(setting) == MATCHED.predict(setting)
            watches = [watch(engine, loader=loader, quiet=True)]
            run.resume = lambda count: self._resume(run, watches, task, setting, entry, count)
            try:
                with watches[0]:
                    for _ in range(epochs):
                        (entry.loop or right_loop)(run)
            finally:
                for one in watches:
                    one.stop()
                seen["findings"] = [finding.to_dict() for one in watches for finding in one.findings]
                run.engine.destroy()

    def _resume(self, run: Run, watches: list[Any], task: Any, setting: Setting, entry: Any, count: int) -> None:
        """A checkpoint, and a new engine that is watched from before it loads it."""
        size = setting.train_micro_batch_size_per_gpu * setting.processes
        config = setting.ds_config() | {"gradient_accumulation_steps": count, "train_batch_size": size * count}
        names = [tempfile.mkdtemp() if self.rank == 0 else ""]
        torch.distributed.broadcast_object_list(names)
        run.engine.save_checkpoint(names[0])
        watches[0].stop(failed=True)
        run.engine.destroy()
        run.engine, run.scheduler = make_engine(task, setting, entry, config)
        watches.append(watch(run.engine, loader=run.loader, quiet=True).start())
        run.engine.load_checkpoint(names[0])
        torch.distributed.barrier()
        if self.rank == 0:
            shutil.rmtree(names[0])

    def right(self, stages: tuple[int, ...]) -> None:
        """The loops that must pass."""
        for name, loop in LOOPS.items():
            for stage in stages:
                with self.case(f"right {name} {stage}") as seen:
                    bench = Bench(load_task("digits"), stage, self.rank, self.processes)
                    train = loop(bench)
                    before = [_hung(engine) for engine in bench.engines]
                    watches = [watch(engine, bench.loader, quiet=True).start() for engine in bench.engines]
                    train()
                    for one in watches:
                        one.stop()
                    seen["findings"] = [finding.to_dict() for one in watches for finding in one.findings]
                    seen["updates"] = min(one.probe.updates for one in watches)
                    seen["left"] = [a == b for a, b in zip(before, map(_hung, bench.engines), strict=True)]
                    for engine in bench.engines:
                        engine.destroy()

    def equal(self, stages: tuple[int, ...]) -> None:
        """The weights after training, watched and not, with dense and with rare looks."""
        for loop in ("clipped", "bf16", "bf16_summed_in_fp32", "caller_owned", "direct", "checkpointed_reentrant"):
            for stage in stages:
                with self.case(f"equal {loop} {stage}") as seen:
                    alone = self._weights(loop, stage, None)
                    seen["same"] = [torch.equal(alone, self._weights(loop, stage, every)) for every in (1, 3)]
                    seen["moved"] = float(alone.std())

    def _weights(self, name: str, stage: int, every: int | None) -> torch.Tensor:
        import deepspeed

        bench = Bench(load_task("digits"), stage, self.rank, self.processes)
        train, (engine,) = LOOPS[name](bench), bench.engines
        if every is None:
            train()
        else:
            with watch(engine, sample_every=every, quiet=True):
                train()
        with deepspeed.zero.GatheredParameters(list(engine.module.parameters())):
            weights = torch.cat([parameter.detach().float().flatten() for parameter in engine.module.parameters()])
        engine.destroy()
        return weights


def _hung(engine: Any) -> list[Any]:
    """Everything that a watch touches, as it is at this moment."""
    optimizers = [engine.optimizer, engine.basic_optimizer]
    classes = (torch.Tensor.backward, torch.nn.utils.clip_grad_norm_, torch.nn.utils.clip_grad.clip_grad_value_)
    own = {"forward", "backward", "step", "_take_model_step", "zero_grad", "no_sync"}
    return [
        sorted(own & set(vars(engine))),
        sorted(sorted(own & set(vars(optimizer))) for optimizer in optimizers),
        len(engine.module._forward_pre_hooks),
        [len(parameter._backward_hooks or ()) for parameter in engine.module.parameters()],
        len(engine.basic_optimizer._optimizer_step_pre_hooks),
        [id(one) for one in classes],
        id(torch.optim.lr_scheduler.LRScheduler.step),
        id(torch.utils.data.DataLoader.__iter__),
    ]


def main() -> None:
    rank, processes, store, output = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], Path(sys.argv[4])
    prepare_process()
    cases = Cases(rank, processes, join(rank, processes, store))
    one = processes == 1
    cases.catalogue((0, 1, 2, 3), (0, 2) if one else (1,))
    cases.right((0, 1, 2, 3) if one else (0, 2))
    cases.equal((0, 1, 2, 3) if one else (2,))
    (output / f"{processes}.{rank}.json").write_text(json.dumps(cases.seen, indent=1, default=str))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
