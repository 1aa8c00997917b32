"""The proof that accumulation is the full batch: on this machine, with the versions that are installed here.

One train batch is split into micro-batches in several ways, and DeepSpeed trains with each of them at every ZeRO stage.
The weights at the end are compared with those of plain PyTorch, which puts the whole batch through the model at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from html import escape
from itertools import product
from typing import Any

from dsaccum_helpers.setting import DTYPES, OPTIMIZERS, ZERO_STAGES, Setting, SettingError
from dsaccum_helpers.training.comparison import default_runner
from dsaccum_helpers.training.events import ORACLE, RunResult
from dsaccum_helpers.training.runner import begins_adam_ahead

TRAIN_BATCH = 32
UPDATES = 20
SPLITS = (1, 4, 8)
EXACT = 1e-6
"""How far an fp32 weight may end from the full batch's. Sums in another order part by 3e-8 an update (measured)."""
#: At torch's own rate. Adam divides a gradient by its size, so where one is hardly larger than its rounding, the weight
#: moves by a share of the rate that only the order of the sum decides; a large rate would amplify it.
ADAM_RATE = 0.001
ADAM_AHEAD = "DeepSpeed begins Adam one step ahead when it makes its bf16 optimizer at ZeRO-0"

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Row:
    """One split. ``distance`` from the full batch's weights, and what rounding explains (``allowed``).

    In fp32 both are the largest difference of any weight. In bf16 they are shares of the distance that the weights move
    in the training (root mean squares). ``distance`` is None where the run did not finish; ``words`` say why.
    """

    zero_stage: int
    dtype: str
    optimizer: str
    processes: int
    train_micro_batch_size_per_gpu: int
    gradient_accumulation_steps: int
    distance: float | None
    allowed: float
    words: str = ""

    @property
    def holds(self) -> bool:
        """Did the run end at the weights of the full batch?"""
        return self.distance is not None and self.distance <= self.allowed


class Verification:
    """All rows, and the machine and versions that they were measured with. ``holds``: every row does."""

    def __init__(self, rows: Sequence[Row], machine: dict[str, Any]) -> None:
        self.rows, self.machine = list(rows), machine

    @property
    def holds(self) -> bool:
        """Is accumulation the full batch in every row?"""
        return all(row.holds for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        """All of it, ready for JSON."""
        rows = [asdict(row) | {"holds": row.holds} for row in self.rows]
        return {"holds": self.holds, "machine": self.machine, "rows": rows}

    @property
    def summary(self) -> str:
        """The verdict in one sentence."""
        wrong = sum(not row.holds for row in self.rows)
        if wrong:
            return f"{wrong} of {len(self.rows)} settings do not end at the weights of the full batch."
        return f"All {len(self.rows)} settings end at the weights of the full batch."

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.machine["versions"].items())
        head = f"{'ZeRO':>4}  {'dtype':5} {'optimizer':9} {'micro-batch x accumulation x processes':38}"
        lines = [self.summary, f"Measured on {self.machine['accelerator']} with {versions}.", ""]
        lines.append(f"{head} {'distance':>9} {'allowed':>9}  same")
        for row in self.rows:
            numbers = f"{row.train_micro_batch_size_per_gpu} x {row.gradient_accumulation_steps} x {row.processes}"
            distance = "–" if row.distance is None else f"{row.distance:.1e}"
            start = f"{row.zero_stage:>4}  {row.dtype:5} {row.optimizer:9} {numbers:38}"
            lines.append(f"{start} {distance:>9} {row.allowed:>9.1e}  {'yes' if row.holds else 'no: ' + row.words}")
        return "\n".join(lines)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        head = ("ZeRO stage", "dtype", "optimizer", "processes", "micro-batch", "accumulation steps")
        cells = "".join(f"<th scope='col'>{name}</th>" for name in (*head, "distance", "allowed", "same"))
        lines = []
        for row in self.rows:
            distance = "–" if row.distance is None else f"{row.distance:.1e}"
            same = "yes" if row.holds else f"no: {row.words}"
            split = row.processes, row.train_micro_batch_size_per_gpu, row.gradient_accumulation_steps
            values = (row.zero_stage, row.dtype, row.optimizer, *split, distance, f"{row.allowed:.1e}", same)
            lines.append("<tr>" + "".join(f"<td>{escape(str(value))}</td>" for value in values) + "</tr>")
        return f"<table><caption>{escape(self.summary)}</caption><tr>{cells}</tr>{''.join(lines)}</table>"


def verify(
    *,
    stages: Iterable[int] = ZERO_STAGES,
    dtypes: Iterable[str] = DTYPES,
    optimizers: Iterable[str] = OPTIMIZERS,
    processes: Iterable[int] = (1, 2),
    splits: Iterable[int] = SPLITS,
    task: str = "digits",
    train_batch_size: int = TRAIN_BATCH,
    runner: Any = None,
    progress: Progress | None = None,
) -> Verification:
    """Train every combination, 20 updates each, and compare its weights with those of the full batch in plain PyTorch.

    ``splits``: accumulation steps, each of which must divide the batch into whole micro-batches for every number of
    processes. ``progress`` is called with (runs that are over, runs in all). Interrupting cancels all runs. Raises
    ``SettingError`` or ``RunError``; then nothing has been started.
    """
    runner = default_runner() if runner is None else runner
    combinations = list(product(optimizers, dtypes, stages, processes, splits))
    settings = [_setting(task, train_batch_size, *combination) for combination in combinations]
    full = {(one.optimizer, one.dtype): one for one in map(_whole, settings)}
    # An update so small that no weight moves: from there the others are measured.
    still = {key: one.change(optimizer_steps=1, learning_rate=1e-30) for key, one in full.items() if key[1] == "bf16"}
    wanted = [*((one, ORACLE) for one in (*full.values(), *still.values())), *((one, None) for one in settings)]
    runs = [runner.start(setting, code, keep_weights=True) for setting, code in wanted]
    over = 0
    with closing(runner.stream(runs)) as events:
        for _, point in events:
            over += point is None
            if point is None and progress is not None:
                progress(over, len(runs))
    results = iter(run.result for run in runs)
    oracles = dict(zip(full, results, strict=False))
    starts = dict(zip(still, results, strict=False))
    return Verification([_row(one, oracles, starts) for one in results], runner.machine)


def _setting(task: str, batch: int, optimizer: str, dtype: str, stage: int, processes: int, steps: int) -> Setting:
    setting = Setting(
        task=task,
        optimizer=optimizer,
        dtype=dtype,
        zero_stage=stage,
        processes=processes,
        gradient_accumulation_steps=steps,
        train_micro_batch_size_per_gpu=1,
        optimizer_steps=UPDATES,
        learning_rate=ADAM_RATE if optimizer == "Adam" else None,
    )
    if batch % (processes * steps):
        raise SettingError(
            f"{batch} samples do not divide into {steps} accumulation steps on {processes} processes. "
            f"Smallest fix: a train_batch_size that is a multiple of {processes * steps}."
        )
    return setting.change(train_micro_batch_size_per_gpu=batch // steps // processes)


def _whole(setting: Setting) -> Setting:
    """The full batch at once, on one process."""
    return setting.change(
        train_micro_batch_size_per_gpu=setting.train_batch_size,
        gradient_accumulation_steps=1,
        processes=1,
        zero_stage=0,
    )


def _row(result: RunResult, oracles: dict[Any, RunResult], starts: dict[Any, RunResult]) -> Row:
    setting = result.setting
    key = setting.optimizer, setting.dtype
    distance, words = None, result.sentence
    oracle, start = oracles[key], starts.get(key)
    unfinished = next((one for one in (oracle, start, result) if one is not None and one.ended != "finished"), None)
    if unfinished is not None:
        words = unfinished.sentence
    elif start is None:
        distance = float(abs(result.weights - oracle.weights).max())
    else:
        distance = _spread(result.weights - oracle.weights) / _spread(oracle.weights - start.weights)
    if distance is not None:
        words = ADAM_AHEAD if begins_adam_ahead(setting) else "the weights part by more than rounding explains"
    return Row(
        setting.zero_stage,
        setting.dtype,
        setting.optimizer,
        setting.processes,
        setting.train_micro_batch_size_per_gpu,
        setting.gradient_accumulation_steps,
        distance,
        _allowed(setting),
        words,
    )


def _spread(difference: Any) -> float:
    return float((difference**2).mean() ** 0.5)


def _allowed(setting: Setting) -> float:
    """What rounding explains.

    bf16 keeps 8 significant bits, so each rounding is off by at most 2**-9 of a value. A gradient is rounded on its way
    through the layers (six matrix products) and once for each micro-batch that is added, and the terms are larger than
    their sum (a factor of two). The fp32 masters lose nothing, so the weights part by that share. Adam divides each
    gradient by its own size, which keeps the share but for the few gradients that are no larger than their rounding; at
    the small rate they do not show (measured: 0.02, while the known fault at ZeRO-0 parts the weights by 0.11).
    """
    if setting.dtype == "fp32":
        return EXACT
    return float((setting.gradient_accumulation_steps * setting.processes + 6) * 2.0**-8)
