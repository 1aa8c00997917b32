"""Every ZeRO stage, type, optimizer, number of processes and split of one batch against the full batch."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import Any

from dsaccum_helpers.setting import DTYPES, OPTIMIZERS, ZERO_STAGES, Setting, SettingError
from dsaccum_helpers.training.comparison import default_runner
from dsaccum_helpers.training.events import ORACLE, RunResult
from dsaccum_helpers.verification.faults import known_fault
from dsaccum_helpers.verification.rows import Row, Verification
from dsaccum_helpers.verification.running import EXACT, TASK, UPDATES, Progress, bf16_share, run_all, same_norm, spread
from dsaccum_helpers.verification.running import worst as worst_share

TRAIN_BATCH = 32
SPLITS = (1, 4, 8)
PROCESSES = (1, 2)
#: At torch's own rate. Adam divides a gradient by its size, so where one is hardly larger than its rounding, the weight
#: moves by a share of the rate that only the order of the sum decides; a large rate would amplify it.
ADAM_RATE = 0.001


def verify(
    *,
    config: Any = None,
    stages: Iterable[int] = ZERO_STAGES,
    dtypes: Iterable[str] = DTYPES,
    optimizers: Iterable[str] = OPTIMIZERS,
    processes: int | Iterable[int] | None = None,
    splits: Iterable[int] = SPLITS,
    task: str = TASK,
    train_batch_size: int = TRAIN_BATCH,
    runner: Any = None,
    progress: Progress | None = None,
) -> Verification:
    """Train every combination, 10 updates each, and compare its weights with those of the full batch in plain PyTorch.

    ``processes``: numbers of training processes, (1, 2) unless given. ``splits``: accumulation steps, each of which
    must divide the batch into whole micro-batches for every number of processes.

    ``config``: a DeepSpeed config (a path, or a dict) to verify in place of all combinations, made small; ``processes``
    is then the number of processes that the person starts, and the other options have no part in it.

    ``progress`` is called with (runs that are over, runs in all). Interrupting cancels all runs. Raises
    ``SettingError`` for what cannot be verified here, or ``RunError``; then nothing has been started.
    """
    runner = default_runner() if runner is None else runner
    if config is not None:
        from dsaccum_helpers.verification.proof import verify_config

        return verify_config(config, _one(processes), runner, progress)
    several = PROCESSES if processes is None else (processes,) if isinstance(processes, int) else processes
    combinations = list(product(optimizers, dtypes, stages, several, splits))
    return _matrix([_setting(task, train_batch_size, *one) for one in combinations], runner, progress)


def _matrix(settings: list[Setting], runner: Any, progress: Progress | None) -> Verification:
    full = {(one.optimizer, one.dtype): one for one in map(_whole, settings)}
    # An update so small that no weight moves: from there the others are measured.
    still = {key: one.change(optimizer_steps=1, learning_rate=1e-30) for key, one in full.items() if key[1] == "bf16"}
    wanted = [*((one, ORACLE) for one in (*full.values(), *still.values())), *((one, None) for one in settings)]
    runs = [runner.start(setting, code, keep_weights=True) for setting, code in wanted]
    results = iter(run_all(runner, runs, progress))
    oracles = dict(zip(full, results, strict=False))
    starts = dict(zip(still, results, strict=False))
    machine = runner.machine
    return Verification([_row(one, oracles, starts, machine["versions"]) for one in results], machine)


def _one(processes: Any) -> int | None:
    if processes is None or (isinstance(processes, int) and processes >= 1):
        return processes
    several = list(processes) if isinstance(processes, Iterable) else []
    if len(several) == 1 and isinstance(several[0], int) and several[0] >= 1:
        return several[0]
    raise SettingError(
        f"processes is {processes!r:.60}, and a config is started with one number of them. Smallest fix: processes=8."
    )


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


def _row(
    result: RunResult, oracles: dict[Any, RunResult], starts: dict[Any, RunResult], versions: dict[str, str]
) -> Row:
    setting = result.setting
    steps, processes = setting.gradient_accumulation_steps, setting.processes
    oracle, start = oracles[setting.optimizer, setting.dtype], starts.get((setting.optimizer, setting.dtype))
    distance = norm = None
    unfinished = next((one for one in (oracle, start, result) if one is not None and one.ended != "finished"), None)
    if unfinished is None:
        distance = float(abs(result.weights - oracle.weights).max())
        if start is not None:
            distance = spread(result.weights - oracle.weights) / spread(oracle.weights - start.weights)
        norm = worst_share(*([point.gradient_norm for point in one.steps] for one in (result, oracle)))
    row = Row(
        setting.zero_stage,
        setting.dtype,
        setting.optimizer,
        processes,
        setting.train_micro_batch_size_per_gpu,
        steps,
        distance,
        EXACT if setting.dtype == "fp32" else bf16_share(steps, processes),
        gradient_norm=norm,
        gradient_norm_allowed=same_norm(setting.dtype, steps, processes),
    )
    fault = known_fault(setting.ds_config(), processes, versions)
    return row.because(fault, unfinished.sentence if unfinished else None)
