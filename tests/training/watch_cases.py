"""Runs every case of ``watch`` in one process of several, and writes what was seen as JSON.

    python tests/training/watch_cases.py RANK PROCESSES STORE OUTPUT

Cases are named ``kind code stage``. ``wrong`` and ``mended`` are the catalogue's own runs, ``right`` those of
watch_right.py, ``equal`` compares the weights with and without the watch bit for bit.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import shutil
import sys
import tempfile
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional
from watch_right import COUNT, LOOPS, MICRO, Bench

from dsaccum_helpers import watch
from dsaccum_helpers.errors import DsaccumError
from dsaccum_helpers.mismatches import MATCHED, RUNNABLE, find
from dsaccum_helpers.setting import Setting
from dsaccum_helpers.training.loops import Run, make_engine, right_loop
from dsaccum_helpers.training.tasks import Loader, Stream, load_task
from dsaccum_helpers.training.worker import join, prepare_process

UPDATES = 5


class Cases:
    def __init__(self, rank: int, processes: int, device: torch.device) -> None:
        self.rank, self.processes, self.device = rank, processes, device
        self.seen: dict[str, Any] = {}

    @contextlib.contextmanager
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
        if entry.code.startswith("accumulation-dtype"):
            setting = setting.change(dtype="bf16", gradient_accumulation_steps=64, optimizer_steps=1)
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
                if stage == 3 and loop not in ("clipped", "bf16"):
                    continue  # an engine takes its time there
                with self.case(f"equal {loop} {stage}") as seen:
                    alone = self._weights(loop, stage, None)
                    seen["same"] = [torch.equal(alone, self._weights(loop, stage, every)) for every in (1, 3)]
                    seen["moved"] = float(alone.std())

    def odd(self, stages: tuple[int, ...]) -> None:
        """Wrong loops that are no entry's own."""
        for loop in (
            skips_backward,
            steps_twice_in_no_sync,
            goes_around_the_engine,
            flag_kept_false,
            halves,
            broken_off,
            divided_above_the_engine,
            tenth_of_a_loss,
            half_by_division,
            quarter_by_factor,
            gradients_changed,
        ):
            for stage in stages:
                with self.case(f"odd {loop.__name__} {stage}") as seen:
                    bench = Bench(load_task("digits"), stage, self.rank, self.processes)
                    engine = bench.engine()
                    observer = watch(engine, quiet=True)
                    try:
                        with observer:
                            loop(bench, engine)
                    finally:
                        observer = getattr(bench, "observer", observer)  # the loop's own, where it has one
                        seen["findings"] = [one.to_dict() for one in observer.findings]
                        engine.destroy()

    def one_rank(self) -> None:
        """Only the last rank divides its loss."""
        with self.case("odd one_rank 0") as seen:
            bench = Bench(load_task("digits"), 0, self.rank, self.processes)
            engine, divisor = bench.engine(), COUNT if self.rank == self.processes - 1 else 1
            with watch(engine, quiet=True) as observer:
                for x, y in bench.batches():
                    engine.backward(functional.cross_entropy(engine(x), y) / divisor)
                    engine.step()
            seen["findings"] = [one.to_dict() for one in observer.findings]
            engine.destroy()

    def begun(self) -> None:
        """One rank has made a backward before the watch: the ranks still exchange the same."""
        with self.case("odd begun 0") as seen:
            bench = Bench(load_task("digits"), 0, self.rank, self.processes)
            engine = bench.engine()
            if self.rank == self.processes - 1:  # its gradients are there, and the engine knows nothing of it
                for parameter in engine.module.parameters():
                    parameter.grad = torch.zeros_like(parameter)
            with watch(engine, quiet=True) as observer:
                for x, y in bench.batches():
                    engine.backward(functional.cross_entropy(engine(x), y))
                    engine.step()
            seen["findings"] = [one.to_dict() for one in observer.findings]
            seen["updates"] = observer.probe.updates
            engine.destroy()

    def pipeline(self, stages: tuple[int, ...]) -> None:
        """A right run of two stages, one in each process."""
        import deepspeed

        for stage in stages:
            with self.case(f"right pipeline {stage}") as seen:
                bench = Bench(load_task("digits"), stage, 0, 1)  # both read the same: one is fed, the other judges
                layers = [torch.nn.Linear(64, 16), torch.nn.Tanh(), torch.nn.Linear(16, 10)]
                model = deepspeed.PipelineModule(layers=layers, num_stages=2, loss_fn=functional.cross_entropy)
                engine, data = bench.engine(model), bench.batches()
                with watch(engine, quiet=True) as observer:
                    for _ in range(UPDATES):
                        engine.train_batch(data)
                seen["findings"] = [one.to_dict() for one in observer.findings]
                seen["updates"] = observer.probe.updates
                engine.destroy()

    def ends(self) -> None:
        """How a watch ends: with an exception, twice, with a report in a stream."""
        with self.case("end exception") as seen:
            bench, mine = Bench(load_task("digits"), 0, self.rank, self.processes), KeyError("mine")
            engine, said = bench.engine(), io.StringIO()
            before = _hung(engine)
            x, y = next(bench.batches())
            try:
                with contextlib.redirect_stderr(said), watch(engine) as observer:
                    engine.backward(functional.cross_entropy(engine(x), y))
                    raise mine
            except KeyError as error:
                seen["same"] = error is mine
            observer.stop()
            seen["left"], seen["codes"] = _hung(engine) == before, [one.code for one in observer.findings]
            seen["summaries"] = said.getvalue().count("dsaccum watch:")
        with self.case("end unwritable") as seen:
            said = io.StringIO()
            engine = Bench(load_task("digits"), 0, self.rank, self.processes).engine()
            try:
                with contextlib.redirect_stderr(said), watch(engine, json="no/such/folder.json"):
                    raise mine
            except KeyError as error:
                seen["same"] = error is mine
            seen["said"] = said.getvalue()
        with self.case("end destroyed") as seen:
            bench = Bench(load_task("digits"), 0, self.rank, self.processes)
            engine = bench.engine()
            observer, gone = watch(engine, quiet=True).start(), weakref.ref(engine)
            rows = weakref.ref(engine.module[0].weight)
            for x, y in bench.batches():
                engine.backward(functional.cross_entropy(engine(x), y))
                engine.step()
            engine.destroy()
            seen["running"], seen["updates"] = observer.running, observer.probe.updates
            bench.engines.clear()
            del engine
            gc.collect()
            seen["held"] = [gone() is not None, rows() is not None]
            seen["verdict"], seen["gas"] = observer.report().verdict, observer.report().batch
            try:
                observer.start()
            except DsaccumError as error:
                seen["again"] = str(error)
        with self.case("end report") as seen:
            bench = Bench(load_task("digits"), 0, self.rank, self.processes)
            engine, said, stream = bench.engine(), io.StringIO(), io.StringIO()
            with contextlib.redirect_stderr(said):
                observer = watch(engine, wanted_train_batch_size=MICRO * COUNT * 2, json=stream).start()
                for x, y in bench.batches(COUNT):
                    engine.backward(functional.cross_entropy(engine(x), y))
                    engine.step()
                observer.stop()
                observer.stop()
            seen["summaries"] = said.getvalue().count("dsaccum watch:")
            seen["report"], seen["html"] = json.loads(stream.getvalue()), observer.report()._repr_html_()[:200]
            engine.destroy()

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


def skips_backward(bench: Bench, engine: Any) -> None:
    """One of four micro-batches has no backward, and step() is called all the same."""
    for i, (x, y) in enumerate(bench.batches()):
        loss = functional.cross_entropy(engine(x), y)
        if i % COUNT != 1:
            engine.backward(loss)
        engine.step()


def steps_twice_in_no_sync(bench: Bench, engine: Any) -> None:
    """All micro-batches under no_sync, also the last: gradients are never averaged."""
    for x, y in bench.batches():
        with engine.no_sync():
            engine.backward(functional.cross_entropy(engine(x), y))
        engine.step()


def goes_around_the_engine(bench: Bench, engine: Any) -> None:
    """engine.module in place of engine: ZeRO-3 loses all but the last micro-batch."""
    for x, y in bench.batches():
        engine.backward(functional.cross_entropy(engine.module(x), y))
        engine.step()


def flag_kept_false(bench: Bench, engine: Any) -> None:
    """No update at all."""
    engine.set_gradient_accumulation_boundary(False)
    for x, y in bench.batches():
        engine.backward(functional.cross_entropy(engine(x), y))
        engine.step()


def halves(bench: Bench, engine: Any) -> None:
    """Each micro-batch in two halves, each with a backward: ZeRO-1 and 2 lose the first at the boundary."""
    for x, y in bench.batches():
        for part in (slice(0, MICRO // 2), slice(MICRO // 2, MICRO)):
            engine.backward(functional.cross_entropy(engine(x[part]), y[part]) * 0.5)
        engine.step()


def broken_off(bench: Bench, engine: Any) -> None:
    """One step() for each window, as the boundary flag allows, and the training ends inside one."""
    for i, (x, y) in enumerate(bench.batches(COUNT * UPDATES + 2)):
        engine.set_gradient_accumulation_boundary(i % COUNT == COUNT - 1)
        engine.backward(functional.cross_entropy(engine(x), y))
        if i % COUNT == COUNT - 1:
            engine.step()


def divided_above_the_engine(bench: Bench, engine: Any) -> None:
    """The script divides, a framework does so again, and the engine is told not to."""
    for x, y in bench.batches():
        engine.backward(functional.cross_entropy(engine(x), y) / COUNT / COUNT, scale_wrt_gas=False)
        engine.step()


def tenth_of_a_loss(bench: Bench, engine: Any) -> None:
    """A factor of which nobody can know whose it is."""
    for x, y in bench.batches():
        engine.backward(functional.cross_entropy(engine(x), y) * 0.1)
        engine.step()


def half_by_division(bench: Bench, engine: Any) -> None:
    """Half a squared error, or a division by two accumulation steps."""
    engine = bench.engine(gradient_accumulation_steps=2)
    with watch(engine, quiet=True) as bench.observer:  # type: ignore[attr-defined]
        for x, y in bench.batches():
            engine.backward(((engine(x) - functional.one_hot(y, 10)) ** 2).mean() / 2)
            engine.step()


def quarter_by_factor(bench: Bench, engine: Any) -> None:
    """The weight of a task, or a division by four accumulation steps."""
    for x, y in bench.batches():
        engine.backward(0.25 * functional.cross_entropy(engine(x), y))
        engine.step()


def gradients_changed(bench: Bench, engine: Any) -> None:
    """The script changes the window's gradient itself; from ZeRO-1 on it is not there."""
    for i, (x, y) in enumerate(bench.batches()):
        engine.backward(functional.cross_entropy(engine(x), y))
        for parameter in engine.module.parameters():
            if i % COUNT == COUNT - 1 and not bench.stage:
                parameter.grad[0] = 0.0
        engine.step()


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
    gc.freeze()  # ZeRO-3 collects garbage with each engine: not through all that was imported
    one = processes == 1
    cases.catalogue((0, 1, 2, 3), (0, 2) if one else ())
    cases.right((0, 1, 2, 3) if one else (0, 2))
    cases.equal((0, 1, 2, 3) if one else (2,))
    cases.odd((0, 1, 2, 3) if one else (0,))
    if one:
        cases.ends()
    else:
        cases.one_rank()
        cases.begun()
        cases.pipeline((0, 1))  # last: DeepSpeed takes every later engine for one of a pipeline
    (output / f"{processes}.{rank}.json").write_text(json.dumps(cases.seen, indent=1, default=str))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
