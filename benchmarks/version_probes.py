"""What ``version_atlas`` runs in the environment of one release: ``verify``, then probes of what it does not cover.

    python -m benchmarks.version_probes          one JSON object a line, each as soon as it is measured

A probe trains one update with the release that is installed and compares the norm of the gradient that the optimizer
receives with that of plain PyTorch (``ratio``, 1 where it is right). Each runs in processes of its own, forked from
this one, so that a release that hangs or dies in one of them is measured in the others.
"""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, nullcontext, suppress
from itertools import product
from pathlib import Path
from typing import Any

from dsaccum_helpers.setting import Setting
from dsaccum_helpers.training import worker

MATRIX = {"stages": (0, 1, 2, 3), "dtypes": ("fp32", "bf16"), "optimizers": ("SGD", "Adam")}
MATRIX |= {"processes": (1, 2), "splits": (1, 4)}
STEPS, MICRO_BATCH = 4, 4
STALL_SECONDS = 30.0
SEED = 0


def say(**event: Any) -> None:
    """One line for the script that started this."""
    print(json.dumps(event), flush=True)


def verify_all() -> None:
    """``verify``; part by part where it cannot take in all of it."""
    from dsaccum_helpers import Runner, verify

    with closing(Runner(stall_seconds=STALL_SECONDS)) as runner:
        say(machine=runner.machine)
        with suppress(ValueError, AttributeError, TypeError):
            say(rows=verify(**MATRIX, runner=runner).to_dict()["rows"])
            return
        # Our own code meets a release that it was not written for: what can be measured of it?
        for stage, dtype in product(MATRIX["stages"], MATRIX["dtypes"]):
            part = MATRIX | {"stages": (stage,), "dtypes": (dtype,)}
            try:
                say(rows=verify(**part, runner=runner).to_dict()["rows"])
            except Exception as error:
                say(rows=unmeasured(part, f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"))


def unmeasured(part: dict[str, Any], words: str) -> list[dict[str, Any]]:
    """Rows as ``verify`` gives them, for settings that it could not measure at all."""
    names = ("optimizer", "dtype", "zero_stage", "processes", "gradient_accumulation_steps")
    values = product(*(part[name] for name in ("optimizers", "dtypes", "stages", "processes", "splits")))
    silent = {"distance": None, "holds": False, "words": words}
    return [dict(zip(names, row, strict=True)) | silent for row in values]


# What runs in each process of a probe: {"square": of the norm that the optimizer received, "wanted": the right norm}.


def recording_optimizer(parameters: Any) -> Any:
    """SGD that notes the gradients it is handed: (optimizer, list of (squared norm, number of elements))."""
    import torch

    received: list[tuple[float, int]] = []

    class Recording(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            gradients = [p.grad for group in self.param_groups for p in group["params"] if p.grad is not None]
            received.extend((float(one.double().square().sum()), one.numel()) for one in gradients)
            return super().step(closure)

    return Recording(list(parameters), lr=0.1), received


class Probe:
    """One engine, its micro-batches on this rank, and the gradient of the full batch in plain PyTorch."""

    def __init__(self, rank: int, processes: int, stage: int, dtype: str = "fp32", steps: int = STEPS) -> None:
        import torch

        from dsaccum_helpers.training.tasks import Stream, fresh_model, load_task

        self.rank, self.processes, self.stage, self.dtype = rank, processes, stage, dtype
        self.setting = Setting(
            zero_stage=stage,
            processes=processes,
            gradient_accumulation_steps=steps,
            train_micro_batch_size_per_gpu=MICRO_BATCH,
        )
        self.task = load_task("digits")
        self.model = fresh_model(self.task, self.setting)
        self.plain = copy.deepcopy(self.model)
        self.config = self.setting.ds_config()
        del self.config["optimizer"], self.config["bf16"]
        if dtype == "bf16":
            self.config["bf16"] = {"enabled": True}
        self.cast = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
        self.stream = Stream(self.task, self.setting)

    def batches(self, count: int) -> list[tuple[Any, Any]]:
        """This rank's first micro-batches."""
        size = MICRO_BATCH * self.processes
        taken = [self.stream.take(turn * size + self.rank * MICRO_BATCH, MICRO_BATCH) for turn in range(count)]
        return [(inputs.to(self.cast), targets) for inputs, targets in taken]

    def start(self) -> None:
        """Make the engine from the config as it stands now."""
        import deepspeed

        optimizer, self.received = recording_optimizer(self.model.parameters())
        self.engine = deepspeed.initialize(model=self.model, optimizer=optimizer, config=self.config)[0]
        self.received.clear()

    def loss(self, module: Any, inputs: Any, targets: Any) -> Any:
        """The mean loss, in fp32."""
        return self.task.criterion(module(inputs).float(), targets)

    def answer(self, micro_batches: int, weight: float) -> dict[str, Any]:
        """The norm that was received here, and that of ``weight`` × the mean gradient over all ranks' samples."""
        square = sum(square for square, _ in self.received)
        # Where every process was handed the whole gradient, one of them counts; otherwise each has a part of it.
        whole = sum(count for _, count in self.received) >= sum(p.numel() for p in self.plain.parameters())
        first, last = (0,), (micro_batches - 1,)
        parts = {"only the last": last, "only the first": first, "only the first and the last": first + last}
        parts |= {"without the last": range(last[0]), "without the first": range(1, micro_batches)}
        wanted = self.wanted(range(micro_batches), weight)
        share = weight / micro_batches
        like = {name: self.wanted(turns, share * len(turns)) / wanted for name, turns in parts.items()}
        return {"square": 0.0 if whole and self.rank else square, "wanted": wanted, "like": like}

    def wanted(self, turns: Sequence[int], weight: float) -> float:
        """The norm of ``weight`` × the mean gradient of these micro-batches of all ranks, at once in plain PyTorch."""
        import torch

        plain, size = copy.deepcopy(self.plain), MICRO_BATCH * self.processes
        inputs, targets = map(torch.cat, zip(*(self.stream.take(turn * size, size) for turn in turns), strict=True))
        (self.loss(plain, inputs.float(), targets) * weight).backward()
        return sum(float(p.grad.double().square().sum()) for p in plain.parameters()) ** 0.5


def accumulate(rank: int, processes: int, stage: int, how: str = "engine", **options: Any) -> dict[str, Any]:
    """A window of micro-batches and one update. ``config``: what differs from the right config."""
    changes = options.pop("config", {})
    probe = Probe(rank, processes, stage, **options)
    if probe.dtype == "fp16":
        from deepspeed.accelerator import get_accelerator

        get_accelerator().is_fp16_supported = lambda: True  # the CPU accelerator refuses it and torch computes it
    probe.config |= {key: value for key, value in changes.items() if value is not None}
    for key in (key for key, value in changes.items() if value is None):
        del probe.config[key]
    probe.start()
    for turn, (inputs, targets) in enumerate(probe.batches(STEPS), 1):
        with probe.engine.no_sync() if how == "no_sync" and turn < STEPS else nullcontext():
            loss = probe.loss(probe.engine, inputs, targets)
            if how == "direct":
                loss.backward()
            elif how == "unscaled":
                probe.engine.backward(loss / STEPS, scale_wrt_gas=False)
            else:
                probe.engine.backward(loss)
        probe.engine.step()
    return probe.answer(STEPS, 1.0)


def several_backwards(rank: int, processes: int, stage: int, config: dict[str, Any]) -> dict[str, Any]:
    """Accumulation 1 in the config, several backward calls, one step: the right gradient is their sum."""
    probe = Probe(rank, processes, stage, steps=1)
    probe.config |= config
    probe.start()
    for inputs, targets in probe.batches(STEPS):
        probe.engine.backward(probe.loss(probe.engine, inputs, targets))
    probe.engine.step()
    return probe.answer(STEPS, STEPS)


def engine_and_module(rank: int, processes: int, stage: int) -> dict[str, Any]:
    """One loss of two forwards, one through the engine and one through ``engine.module``."""
    probe = Probe(rank, processes, stage, steps=1)
    probe.start()
    first, second = probe.batches(2)
    loss = probe.loss(probe.engine, *first) + probe.loss(probe.engine.module, *second)
    probe.engine.backward(loss)
    probe.engine.step()
    return probe.answer(2, 2.0)


def clipped(rank: int, processes: int, stage: int) -> dict[str, Any]:
    """No key ``gradient_clipping`` and a gradient of norm 4: what norm is left?"""
    probe = Probe(rank, processes, stage)
    del probe.config["gradient_clipping"]
    factor = 4.0 / probe.wanted(range(STEPS), 1.0)
    probe.start()
    for inputs, targets in probe.batches(STEPS):
        probe.engine.backward(probe.loss(probe.engine, inputs, targets) * factor)
        probe.engine.step()
    return probe.answer(STEPS, factor)


def pipeline(rank: int, processes: int, stage: int) -> dict[str, Any]:
    """Two pipeline stages on two processes; each compares the gradient of its own layers."""
    import deepspeed
    from deepspeed.pipe import PipelineModule

    probe = Probe(0, 1, stage)
    module = PipelineModule(
        layers=list(probe.model), num_stages=2, loss_fn=probe.task.criterion, partition_method="uniform"
    )
    optimizer, received = recording_optimizer(module.parameters())
    probe.config["train_batch_size"] = MICRO_BATCH * STEPS
    probe.config["steps_per_print"] = 1000  # 0.15.2 fails without it, behind the update
    engine = deepspeed.initialize(model=module, optimizer=optimizer, config=probe.config)[0]
    received.clear()
    engine.train_batch(iter(probe.batches(STEPS)))
    probe.loss(probe.plain, *probe.stream.take(0, MICRO_BATCH * STEPS)).backward()
    own = {int(name.split(".")[0]) for name, _ in engine.module.named_parameters()}
    wanted = sum(float(p.grad.double().square().sum()) for i in own for p in probe.plain[i].parameters()) ** 0.5
    return {"square": sum(square for square, _ in received), "wanted": wanted}


def offload(stage: int) -> dict[str, Any]:
    """The optimizer state on the CPU, with the optimizer we hand over."""
    block = {"stage": stage, "offload_optimizer": {"device": "cpu"}}
    return {"zero_optimization": block, "zero_force_ds_cpu_optimizer": False}


Work = tuple[Callable[..., dict[str, Any]], int, dict[str, Any]]


def probes() -> dict[str, Work]:
    """Name to (function, processes, arguments)."""
    sums = {"dtype": "bf16", "config": {"data_types": {"grad_accum_dtype": "fp32"}}}
    halves = {"dtype": "fp16", "config": {"fp16": {"enabled": True, "loss_scale": 128}}}
    work: dict[str, Work] = {}
    for stage in (1, 2):
        work[f"offload ZeRO-{stage}"] = (accumulate, 1, {"stage": stage, "config": offload(stage)})
        work[f"several backwards, offload ZeRO-{stage}"] = (
            several_backwards,
            1,
            {"stage": stage, "config": offload(stage)},
        )
        work[f"several backwards ZeRO-{stage}"] = (several_backwards, 1, {"stage": stage, "config": {}})
        work[f"bf16 with fp32 sums ZeRO-{stage}"] = (accumulate, 2, {"stage": stage, **sums})
    for stage in (0, 1, 2, 3):
        work[f"scale_wrt_gas=False ZeRO-{stage}"] = (accumulate, 1, {"stage": stage, "how": "unscaled"})
        work[f"loss.backward() ZeRO-{stage}"] = (accumulate, 1, {"stage": stage, "how": "direct"})
        work[f"engine and engine.module ZeRO-{stage}"] = (engine_and_module, 1, {"stage": stage})
    for stage in (0, 1):
        work[f"fp16 ZeRO-{stage}"] = (accumulate, 1, {"stage": stage, **halves})
    work["no gradient_clipping ZeRO-0"] = (clipped, 1, {"stage": 0})
    work["no gradient_clipping ZeRO-2"] = (clipped, 1, {"stage": 2})
    work["no_sync ZeRO-1"] = (accumulate, 1, {"stage": 1, "how": "no_sync"})
    work["no_sync ZeRO-2"] = (accumulate, 1, {"stage": 2, "how": "no_sync"})
    for stage in (0, 1):
        work[f"pipeline ZeRO-{stage}"] = (pipeline, 2, {"stage": stage})
    return work


def _rank(pipe: Any, store: str, work: Work, rank: int) -> None:
    log = os.open(os.devnull, os.O_WRONLY)
    os.dup2(log, 1)
    os.dup2(log, 2)
    function, processes, arguments = work
    try:
        worker.join(rank, processes, store)
        pipe.send(function(rank, processes, **arguments))
    except Exception as error:
        pipe.send({"words": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"})
    os._exit(0)  # no exit hook of torch may run in a fork


def run_probe(name: str, work: Work) -> dict[str, Any]:
    """One probe: {"probe": name, "ratio": ..., "ratios": one a rank}, or {"probe": name, "words": why not}."""
    context = multiprocessing.get_context("fork")
    with tempfile.TemporaryDirectory(prefix="dsaccum-probe-") as folder:
        pairs = [context.Pipe(duplex=False) for _ in range(work[1])]
        store = str(Path(folder, "rendezvous"))
        ranks = [context.Process(target=_rank, args=(pipes[1], store, work, rank)) for rank, pipes in enumerate(pairs)]
        for rank in ranks:
            rank.start()
        limit = time.monotonic() + STALL_SECONDS
        try:
            answers = [
                pipes[0].recv() if pipes[0].poll(max(0.1, limit - time.monotonic())) else {"words": "no answer"}
                for pipes in pairs
            ]
        except EOFError:
            answers = [{"words": "the process ended without a word"}]
        finally:
            for rank in ranks:
                rank.kill()
                rank.join()
    return {"probe": name, **_together(answers, apart=name.startswith("pipeline"))}


def _together(answers: list[dict[str, Any]], *, apart: bool) -> dict[str, Any]:
    silent = next((answer["words"] for answer in answers if "words" in answer), None)
    if silent is not None:
        return {"words": silent}
    if apart:  # each stage of the pipeline has layers of its own
        ratios = [answer["square"] ** 0.5 / answer["wanted"] for answer in answers]
        return {"ratio": min(ratios, key=lambda ratio: -abs(ratio - 1.0)), "ratios": ratios}
    norm = sum(answer["square"] for answer in answers) ** 0.5
    return {"ratio": norm / answers[0]["wanted"], "norm": norm, "like": answers[0]["like"]}


def run_all() -> Iterator[dict[str, Any]]:
    """Every probe in turn."""
    from dsaccum_helpers.training import template

    template.preload()
    template.preload_compiler()
    for name, work in probes().items():
        yield run_probe(name, work)


def main() -> None:
    """Measure all of it, or with ``probes`` or ``verify`` as the only argument a part."""
    part = sys.argv[1] if len(sys.argv) > 1 else ""
    if part != "probes":
        verify_all()
    if part != "verify":
        for answer in run_all():
            say(**answer)


if __name__ == "__main__":
    main()
