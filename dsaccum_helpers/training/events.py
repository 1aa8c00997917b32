"""What a run says while it goes on and when it has ended (pure: no torch)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from dsaccum_helpers.errors import DsaccumError
from dsaccum_helpers.setting import Setting

ORACLE = "oracle"
"""The code under which the plain-PyTorch run on the full batch stands beside the codes of the catalogue."""

Ending = Literal["finished", "refused", "failed", "cancelled"]


class RunError(DsaccumError):
    """No run can be started on this machine; the message says why and names the smallest remedy."""


@dataclass(frozen=True)
class Point:
    """One optimizer step, measured.

    ``step`` counts optimizer steps; step 0 stands before the first and has neither norms nor a learning rate.
    ``loss``: mean over the task's fixed evaluation set, after the step. ``gradient_norm``: L2 norm of the gradient that
    the optimizer was given, before clipping. ``update_norm``: L2 norm of the change of all parameters. ``samples``:
    samples that all processes read from their loaders up to this step, counted from the tensors.
    ``engine_samples``: what the engine believes. ``seconds`` since the run began, the only field that differs between
    equal runs.
    """

    step: int
    loss: float
    gradient_norm: float | None
    update_norm: float | None
    learning_rate: float | None
    samples: int
    engine_samples: int
    seconds: float = field(compare=False)


@dataclass(frozen=True)
class Expected:
    """What plain PyTorch makes of a ``Prediction``: the norms of the first update (L2), ``None`` where there is none.

    ``full_batch_gradient_norm`` and ``full_batch_update_norm`` are those of the right run. ``distance``: how far the
    weights are from their start when the run is over (L2), and ``difference``: the largest difference of any weight
    from the run's, both where that was asked for. ``first_loss``: of the first micro-batch, and ``first_error``: how
    far the first update is from the right one, as a share of it (L2), both where the entry is about them.
    """

    gradient_norm: float | None
    update_norm: float | None
    full_batch_gradient_norm: float
    full_batch_update_norm: float
    distance: float | None = None
    first_loss: float | None = None
    first_error: float | None = None
    difference: float | None = None


@dataclass
class RunResult:
    """One run, as far as it has come. ``ended`` is ``None`` while it goes on.

    ``sentence`` says how it ended, in words for a learner; ``engine_words`` is what DeepSpeed said where it refused,
    and ``our_words`` says the same with a remedy. ``log`` is the end of what the processes wrote, for the curious.
    ``optimum`` is the smallest evaluation loss that any weights can reach, where the task has one in closed form.
    ``distance``: how far the weights are from their start at the end (L2). ``first_error``: how far the first update is
    from the right one of plain PyTorch, as a share of it. ``reports``: what the script told its user, in order.
    ``seen``: the findings of the live observer, as in a JSON report, where the run was watched.
    ``weights`` (fp32, flat, in the order of ``module.parameters()``) is kept only on request.
    """

    code: str
    setting: Setting
    points: list[Point] = field(default_factory=list)
    expected: Expected | None = None
    ended: Ending | None = None
    sentence: str = ""
    engine_words: str = ""
    our_words: str = ""
    log: str = ""
    weights: Any = None
    distance: float | None = None
    first_error: float | None = None
    reports: list[float] = field(default_factory=list)
    seen: list[dict[str, Any]] | None = None
    micro_batches_read: int = 0
    optimum: float | None = None

    @property
    def steps(self) -> list[Point]:
        """The points behind real optimizer steps, without the one before training."""
        return [point for point in self.points if point.step > 0]

    @property
    def first(self) -> Point | None:
        """The first optimizer step, if there was one."""
        return next(iter(self.steps), None)
