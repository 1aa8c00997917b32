"""The proof for a person's config: its runs, and the comparison with the full batch in plain PyTorch."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from dsaccum_helpers.setting import Setting, SettingError
from dsaccum_helpers.training.events import ORACLE, RunResult
from dsaccum_helpers.training.processes import ProcessSet
from dsaccum_helpers.training.run import Run
from dsaccum_helpers.verification.faults import known_fault
from dsaccum_helpers.verification.person import Plan, read_plan
from dsaccum_helpers.verification.rows import Row, Verification
from dsaccum_helpers.verification.running import (
    CONFIG_UPDATES,
    EXACT,
    Progress,
    bf16_share,
    run_all,
    same_norm,
    spread,
    worst,
)

MARGIN = 10
"""The engine may part from the full batch by so many times what another order of the same samples makes in PyTorch."""
MOST_SHARE = 0.05
"""Where rounding alone moves the weights by more than this share of their way, nothing can be proved with them."""


class ConfigRun(Run):
    """A run of the person's config, or of its full batch in plain PyTorch (``oracle``)."""

    def __init__(self, setting: Setting, plan: dict[str, Any]) -> None:
        super().__init__(setting, ORACLE if plan["oracle"] else "matched", keep_weights=True)
        self.plan = plan

    def begin(self, one: ProcessSet) -> None:
        """Hand the job to a set of processes. Raises ``RunError`` where the disk is full."""
        self.set, self.heard = one, time.monotonic()
        job = {"setting": self.result.setting.to_dict(), "plan": self.plan}
        one.give(job | {"module": "dsaccum_helpers.verification.full_batch"})
        if self.cancelled.is_set():
            self.kill()


@dataclass(frozen=True)
class Truth:
    """What plain PyTorch says: weights at the end, how far they went, and what another order of the sum changes.

    ``moved`` and ``rounding`` are root mean squares for bf16 and largest differences for fp32.
    """

    weights: Any
    norms: list[float]
    moved: float
    rounding: float
    norm_rounding: float


def verify_config(given: Any, processes: int | None, runner: Any, progress: Progress | None) -> Verification:
    """Train as the config says, made small, and compare with the full batch. See ``matrix.verify``."""
    plan = read_plan(given, processes)
    if isinstance(plan, list):
        return _wrong(given, plan)
    machine = runner.machine
    devices = machine["gpus"] if machine["accelerator"] == "cuda" else machine["cores"]
    plan = plan.fit(min(devices, runner.most_processes()))
    rates = plan.schedule.rates(plan.optimizer.parameters["lr"], CONFIG_UPDATES)
    clipping = plan.oracle_clipping(machine["versions"])
    factor = plan.loss_factor(clipping)
    oracle = {"optimizer": plan.optimizer.name, "parameters": plan.optimizer.parameters, "clipping": clipping}
    whole = plan.setting(plan.micro * plan.steps * plan.processes, 1, 1).change(zero_stage=0)
    runs = [ConfigRun(whole, {"oracle": True, "rates": rates, "factor": factor, **oracle})]
    for split in plan.splits().values():
        config = plan.config(*split)
        runs.append(ConfigRun(plan.setting(*split), {"oracle": False, "config": config, "factor": factor}))
    full, *results = run_all(runner, runs, progress)
    truth = _truth(full, plan)
    rows = [
        _row(what, result, truth, plan, rates, machine["versions"])
        for what, result in zip(plan.splits(), results, strict=True)
    ]
    return _described(Verification(rows, machine), plan, truth, clipping, factor)


def _wrong(config: Any, findings: list[str]) -> Verification:
    proof = Verification([], {})  # nothing is started to say this
    proof.source = "The config" if isinstance(config, dict) else str(config)
    proof.findings = findings
    return proof


def _truth(full: RunResult, plan: Plan) -> Truth:
    """Raises ``SettingError`` where the full batch itself says nothing: it did not finish, or rounding drowns it."""
    if full.ended != "finished":
        raise SettingError(f"The full batch did not finish: {full.sentence}")
    (start, right, turned), norms = full.weights[:, :-CONFIG_UPDATES], full.weights[1:, -CONFIG_UPDATES:]
    size = spread if plan.dtype == "bf16" else _largest
    moved, rounding = size(right - start), size(turned - right)
    lr = plan.optimizer.parameters["lr"]
    if not moved < float("inf"):
        raise SettingError(
            f"The small task does not stay finite with this optimizer (lr {lr:g}), in plain PyTorch either. "
            "Smallest fix: verify a copy of the config with a tenth of the learning rate."
        )
    if plan.dtype == "fp32" and MARGIN * rounding > max(EXACT, MOST_SHARE * moved):
        raise SettingError(
            f"With this optimizer (lr {lr:g}) the order of the samples alone moves the small task's weights by "
            f"{rounding:.1e} of {moved:.1e}, so nothing can be told by them. "
            "Smallest fix: verify a copy of the config with a tenth of the learning rate."
        )
    first, second = ([float(norm) for norm in row] for row in norms)
    return Truth(right, first, moved, rounding, worst(second, first))


def _row(what: str, result: RunResult, truth: Truth, plan: Plan, rates: list[float], versions: dict[str, str]) -> Row:
    setting = result.setting
    steps, processes = setting.gradient_accumulation_steps, setting.processes
    distance = norm = rate = None
    allowed = max(EXACT, MARGIN * truth.rounding)
    if plan.dtype == "bf16":
        allowed = max(bf16_share(steps, processes), 2 * truth.rounding / truth.moved if truth.moved else 0.0)
    if result.ended == "finished":
        difference = result.weights - truth.weights
        distance = _largest(difference)
        if plan.dtype == "bf16":
            distance = spread(difference) / truth.moved if truth.moved else float(difference.any())
        norm = worst([point.gradient_norm for point in result.steps], truth.norms)
        rate = worst([point.learning_rate for point in result.steps], rates)
    row = Row(
        setting.zero_stage,
        setting.dtype,
        plan.optimizer.name,
        processes,
        setting.train_micro_batch_size_per_gpu,
        steps,
        distance,
        allowed,
        gradient_norm=norm,
        gradient_norm_allowed=max(same_norm(plan.dtype, steps, processes), MARGIN * truth.norm_rounding),
        learning_rate=rate,
        what=what,
    )
    config = plan.config(setting.train_micro_batch_size_per_gpu, steps, processes)
    return row.because(known_fault(config, processes, versions), None if distance is not None else result.sentence)


def _described(proof: Verification, plan: Plan, truth: Truth, clipping: float, factor: int) -> Verification:
    proof.source, proof.left_out = plan.source, plan.left_out
    proof.kept, proof.scaled = list(plan.kept), list(plan.scaled)
    proof.scaled.append("the model and its data: a perceptron of 9,674 weights on digit images; none of the person's.")
    if factor > 1:
        proof.scaled.append(f"the small task's loss is multiplied by {factor}, so that clipping has something to do.")
    if clipping:
        count = sum(norm > clipping for norm in truth.norms)
        proof.kept.append(f"clipping at {clipping:g} shortened the gradient of {count} of {CONFIG_UPDATES} updates.")
    if plan.dtype == "fp32" and MOST_SHARE * truth.moved < EXACT:
        proof.scaled.append(
            f"no weight moves by more than {truth.moved:.1e} in {CONFIG_UPDATES} updates at this learning rate: "
            "what could show a fault here is the gradient norm."
        )
    return proof


def _largest(difference: Any) -> float:
    return float(abs(difference).max())
