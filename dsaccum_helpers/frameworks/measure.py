"""Measures a program without a line of it being about that: it waits for the engine that the framework makes.

Every framework calls ``deepspeed.initialize``. What is measured are tensors and calls: the gradient that the torch
optimizer is given (after clipping), its learning rate, the samples that reach the model, and the weights at the end.
"""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import torch

#: These keep their messages from the root logger.
LOGGERS = ("", "DeepSpeed", "transformers", "accelerate", "pytorch_lightning", "lightning.pytorch")


class Measure:
    """What one process sees of a run; ``report`` is ready for JSON."""

    def __init__(self) -> None:
        self.engine: Any = None
        self.squares: dict[int, float] = defaultdict(float)
        self.rates: dict[int, float] = {}
        self.samples = self.micro_batches = 0

    @contextlib.contextmanager
    def waiting(self) -> Iterator[None]:
        """Attach to the engine that ``deepspeed.initialize`` makes in here."""
        import deepspeed

        initialize = deepspeed.initialize

        def watched(*arguments: Any, **keywords: Any) -> Any:
            made = initialize(*arguments, **keywords)
            self.attach(made[0])
            return made

        deepspeed.initialize = watched
        try:
            yield
        finally:
            deepspeed.initialize = initialize

    def attach(self, engine: Any) -> None:
        """Hooks on the torch optimizer and on the model; both only look."""
        self.engine = engine
        engine.basic_optimizer.register_step_pre_hook(self._before_step)
        engine.module.register_forward_pre_hook(self._before_forward, with_kwargs=True)

    def _before_step(self, optimizer: torch.optim.Optimizer, arguments: Any, keywords: Any) -> None:
        # ZeRO calls it once for each parameter group, and gives each process its part of the gradient.
        step = self.engine.global_steps
        for group in optimizer.param_groups:
            self.rates[step] = float(group["lr"])
            for parameter in group["params"]:
                if parameter.grad is not None:
                    self.squares[step] += float(parameter.grad.detach().double().square().sum())

    def _before_forward(self, module: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> None:
        if module.training:
            tensors = [one for one in (*arguments, *keywords.values()) if isinstance(one, torch.Tensor) and one.dim()]
            batch = arguments[0] if arguments and isinstance(arguments[0], (list, tuple)) else tensors
            self.samples += len(batch[0]) if batch else 0
            self.micro_batches += 1

    def report(self) -> dict[str, Any]:
        """Numbers for JSON. ``squares``: of each step's gradient norm, of this process's part under ZeRO."""
        engine, steps = self.engine, sorted(self.squares)
        counted: dict[str, Any] = {"samples": self.samples, "micro_batches": self.micro_batches}
        if engine is None:
            return counted
        return counted | {
            "squares": [self.squares[step] for step in steps],
            "learning_rates": [self.rates[step] for step in steps],
            "zero_stage": engine.zero_optimization_stage(),
            "optimizer_steps": engine.global_steps,
            "engine_samples": engine.global_samples,
            "engine_accumulation_steps": engine.gradient_accumulation_steps(),
            "gradient_clipping": engine.gradient_clipping(),
        }

    def weights(self) -> torch.Tensor:
        """All fp32 weights, flat, in the order of ``module.parameters()``. Collective at ZeRO-3."""
        from deepspeed.utils import safe_get_full_fp32_param

        full = []
        for parameter in self.engine.module.parameters():
            partitioned = hasattr(parameter, "ds_id") or hasattr(parameter, "_hp_mapping")
            master = safe_get_full_fp32_param(parameter) if partitioned else None
            full.append((parameter if master is None else master).detach().float().flatten())
        return torch.cat(full)


class Messages(logging.Handler):
    """Everything from a warning upwards that a library says, each message once, as ``LEVEL logger: text``."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: dict[str, None] = {}
        self.caught: list[warnings.WarningMessage] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep one record."""
        self.said[f"{record.levelname} {record.name}: {' '.join(record.getMessage().split())}"] = None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Listen to logging and to Python's warnings."""
        loggers = [logging.getLogger(name) for name in LOGGERS]
        for logger in loggers:
            logger.addHandler(self)
        try:
            with warnings.catch_warnings(record=True) as self.caught:
                warnings.simplefilter("always")
                yield
        finally:
            for logger in loggers:
                logger.removeHandler(self)

    def texts(self) -> list[str]:
        """All messages, those of logging first."""
        caught = (f"WARNING {one.category.__name__}: {' '.join(str(one.message).split())}" for one in self.caught)
        return list(dict.fromkeys([*self.said, *caught]))
