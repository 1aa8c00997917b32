"""Runs of real frameworks as plain data: which program shows an entry, with which wrong and which mended arguments.

``dsaccum_helpers.frameworks.run_program`` trains a FrameworkRun; nothing here imports torch or a framework.
"""

from __future__ import annotations

from collections import namedtuple

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import Any

__all__ = ["AUTO", "MICRO_BATCH_SIZE", "OPTIMIZER_STEPS", "FrameworkRun", "Shown"]
__all__ += ["accelerate", "differing", "lightning", "trainer"]

#: What a right run means: 4 samples x 4 micro-batches for each of 6 optimizer steps, on each process.
MICRO_BATCH_SIZE, ACCUMULATION_STEPS, OPTIMIZER_STEPS = 4, 4, 6
#: The three keys as a framework fills them in.
AUTO = dict.fromkeys(("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps"), "auto")

_Fields = namedtuple(
    "_Fields",
    "program config arguments script accumulation_steps processes",
    defaults=({}, ACCUMULATION_STEPS, 1),
)


class FrameworkRun(_Fields):
    """One run of a program of ``dsaccum_helpers.frameworks``.

    ``program``: ``accelerate_loop``, ``transformers_trainer`` or ``lightning_module``. ``config``: that of DeepSpeed.
    ``arguments``: those of Accelerator, TrainingArguments or Lightning's Trainer. ``script``: what the script does
    otherwise than usual; the program's docstring lists it. ``accumulation_steps``: what is *meant*, and with that what
    plain PyTorch trains for comparison. ``processes``: how many, over gloo.
    """

    __slots__ = ()

    @property
    def train_batch_size(self) -> int:
        """Samples per optimizer step over all processes, as they are meant."""
        return MICRO_BATCH_SIZE * self.accumulation_steps * self.processes

    def job_options(self) -> dict[str, Any]:
        """What ``dsaccum check`` is told beside ``config``: ``check(run.config, **run.job_options())``."""
        framework, _, _ = self.program.partition("_")
        owner = "accelerator" if framework == "accelerate" else "trainer"
        facts: dict[str, Any] = {f"{owner}.{name}": value for name, value in self.arguments.items()}
        facts |= {f"plugin.{name}": value for name, value in self.script.get("plugin", {}).items()}
        facts |= {f"environment.{name}": value for name, value in self.script.get("environment", {}).items()}
        facts["loader.has_batch_size"] = "loader" not in self.script
        if "loader" not in self.script:
            facts["loader.batch_size"] = MICRO_BATCH_SIZE
        return {"framework": framework, "processes": self.processes, "set": facts}


Shown = namedtuple("Shown", "what wrong mended words optimizer_steps norm_ratio", defaults=("", 0, None))
Shown.__doc__ = """What a wrong run shows, beside the mended one; ``dsaccum check`` names each from the arguments alone.

``words``: a part of what the framework says; empty where it is silent. ``optimizer_steps``: how many the wrong run
makes; 0 where it is refused, which no live observer can see. ``norm_ratio``: the first gradient norm of the wrong run
over that of the batch that is meant, where it can be said before the run.
"""


def accelerate(config: dict[str, Any], accumulation_steps: int | None = 4, **script: Any) -> FrameworkRun:
    """A loop under ``Accelerator(gradient_accumulation_steps=...)``, ZeRO-2, no clipping; ``None``: not given."""
    arguments = {} if accumulation_steps is None else {"gradient_accumulation_steps": accumulation_steps}
    rest = {"gradient_clipping": 0.0, "zero_optimization": {"stage": 2}}
    return FrameworkRun("accelerate_loop", {**rest, **config}, arguments, script)


def trainer(config: dict[str, Any], arguments: dict[str, Any] | None = None, **script: Any) -> FrameworkRun:
    """Hugging Face's Trainer with 4 samples a device and 4 accumulation steps, ZeRO-2, no clipping."""
    counts = {"per_device_train_batch_size": MICRO_BATCH_SIZE, "gradient_accumulation_steps": ACCUMULATION_STEPS}
    rest = {"gradient_clipping": "auto", "zero_optimization": {"stage": 2}}
    return FrameworkRun(
        "transformers_trainer", {**rest, **config}, {**counts, "max_grad_norm": 0.0, **(arguments or {})}, script
    )


def lightning(config: dict[str, Any], accumulation_steps: int = 4, **script: Any) -> FrameworkRun:
    """Lightning's Trainer with its DeepSpeed strategy, ZeRO-2. What is meant are ``accumulation_steps``.

    Lightning refuses the CPU; with ``cuda_check=False`` the program sets that one check aside.
    """
    rest = {"zero_optimization": {"stage": 2}, "zero_allow_untested_optimizer": True}
    arguments = {"accumulate_grad_batches": accumulation_steps}
    return FrameworkRun("lightning_module", {**rest, **config}, arguments, script, accumulation_steps)


def differing(key: str, value: Any, argument: str, wanted: Any, mended: dict[str, Any]) -> Shown:
    """A config whose ``key`` is not what the Trainer's argument wants, and a config that is."""
    what = f"{key} {value} in the config, {wanted} by the arguments"
    return Shown(what, trainer({**AUTO, key: value}), trainer(mended), f"- ds {key}={value} vs hf {argument}={wanted}")
