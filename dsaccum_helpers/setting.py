"""One training run of the course: its numbers, checked before anything starts (pure: no torch).

A setting is always *right*: its three numbers agree by construction. What goes wrong in a mismatched run is described
by the catalogue (``dsaccum_helpers.mismatches``), never by a broken setting.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from dsaccum_helpers.errors import DsaccumError

TASKS = {
    "regression": "linear regression on the diabetes measurements that ship with scikit-learn (11 parameters)",
    "digits": "digit images that ship with scikit-learn (a perceptron of 9,674 parameters)",
    "language": "a decoder-only language model over English text that ships with Python (33 thousand parameters)",
    "language-large": "the same language model with 0.8 million parameters: expect about a minute a run on a CPU",
}
OPTIMIZERS = ("SGD", "Adam")
DTYPES = ("fp32", "bf16")
SCHEDULES = ("linear", "constant")
ZERO_STAGES = (0, 1, 2, 3)

MAXIMUM = {
    "train_micro_batch_size_per_gpu": 1024,
    "gradient_accumulation_steps": 1024,
    "processes": 8,
    "optimizer_steps": 10_000,
    "seed": 2**31 - 1,
}
# The oracle puts the whole train batch through the model at once: about 1 GB of activations at these sizes.
MAXIMUM_TRAIN_BATCH = {"regression": 65_536, "digits": 65_536, "language": 4_096, "language-large": 1_024}
_MEANING = {
    "train_micro_batch_size_per_gpu": "samples per micro-batch",
    "gradient_accumulation_steps": "micro-batches per optimizer step",
    "processes": "training processes",
    "optimizer_steps": "optimizer steps",
    "seed": "",
}
# Chosen so that 60 optimizer steps show a clear descent and a gradient four times too large is still finite.
_LEARNING_RATE = {
    ("regression", "SGD"): 0.05,
    ("regression", "Adam"): 0.05,
    ("digits", "SGD"): 0.3,
    ("digits", "Adam"): 0.005,
    ("language", "SGD"): 0.2,
    ("language", "Adam"): 0.01,
    ("language-large", "SGD"): 0.1,
    ("language-large", "Adam"): 0.002,
}


class SettingError(DsaccumError):
    """A number or a name of a setting that cannot be run; the message names it and the smallest remedy."""


@dataclass(frozen=True)
class Setting:
    """Everything that decides a run. The same setting gives the same points, on one machine, bit for bit.

    ``train_micro_batch_size_per_gpu`` is in samples per process, ``gradient_accumulation_steps`` in micro-batches per
    optimizer step, ``processes`` is the data-parallel size. ``learning_rate=None`` takes the task's own.
    ``gradient_clipping`` is a norm; 0.0 means none (DeepSpeed itself clips at 1.0 where the key is missing).
    ``schedule`` is ``"linear"`` (falls to zero over the optimizer steps) or ``"constant"``.
    Raises ``SettingError`` for anything that cannot be run.
    """

    task: str = "digits"
    train_micro_batch_size_per_gpu: int = 16
    gradient_accumulation_steps: int = 4
    processes: int = 1
    zero_stage: int = 0
    dtype: str = "fp32"
    optimizer: str = "SGD"
    learning_rate: float | None = None
    gradient_clipping: float = 0.0
    optimizer_steps: int = 60
    schedule: str = "linear"
    seed: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (
            ("task", tuple(TASKS)),
            ("optimizer", OPTIMIZERS),
            ("dtype", DTYPES),
            ("schedule", SCHEDULES),
            ("zero_stage", ZERO_STAGES),
        ):
            _check_choice(name, getattr(self, name), allowed)
        for name in MAXIMUM:
            _check_whole(name, getattr(self, name), 0 if name == "seed" else 1)
        if self.train_batch_size > MAXIMUM_TRAIN_BATCH[self.task]:
            raise SettingError(
                f"train_batch_size would be {self.train_batch_size:,} = {self.train_micro_batch_size_per_gpu} × "
                f"{self.gradient_accumulation_steps} × {self.processes}, above the {MAXIMUM_TRAIN_BATCH[self.task]:,} "
                f"samples of a course run of {self.task}. "
                "Smallest fix: fewer gradient_accumulation_steps or a smaller micro-batch."
            )
        if self.learning_rate is not None:
            _check_number("learning_rate", self.learning_rate, above=0.0, most=100.0)
        _check_number("gradient_clipping", self.gradient_clipping, above=None, most=1e6)

    @property
    def train_batch_size(self) -> int:
        """Samples per optimizer step, over all processes."""
        return self.train_micro_batch_size_per_gpu * self.gradient_accumulation_steps * self.processes

    @property
    def micro_batches(self) -> int:
        """Micro-batches that one process reads in the whole run."""
        return self.gradient_accumulation_steps * self.optimizer_steps

    @property
    def rate(self) -> float:
        """The learning rate that is used: the given one, or the task's own for this optimizer."""
        return _LEARNING_RATE[self.task, self.optimizer] if self.learning_rate is None else self.learning_rate

    def rate_factor(self, step: int) -> float:
        """The schedule: the share of ``rate`` that is used after the scheduler was stepped ``step`` times."""
        return 1.0 if self.schedule == "constant" else max(0.0, 1.0 - step / self.optimizer_steps)

    def rate_at(self, step: int) -> float:
        """The learning rate after the scheduler has been stepped ``step`` times."""
        return self.rate * self.rate_factor(step)

    def ds_config(self) -> dict[str, Any]:
        """The DeepSpeed configuration of the right run, valid as ``ds_config.json``.

        The schedule is not part of it: the script hands it to ``deepspeed.initialize``.
        """
        adam = {"torch_adam": True, "adam_w_mode": False} if self.optimizer == "Adam" else {}
        return {
            "train_batch_size": self.train_batch_size,
            "train_micro_batch_size_per_gpu": self.train_micro_batch_size_per_gpu,
            "gradient_accumulation_steps": self.gradient_accumulation_steps,
            "gradient_clipping": float(self.gradient_clipping),
            "optimizer": {"type": self.optimizer, "params": {"lr": self.rate, **adam}},
            "zero_optimization": {"stage": self.zero_stage},
            # DeepSpeed asks for this under ZeRO with any optimizer but its own Adam; SGD is wanted here because it
            # shows a wrong gradient scale that Adam hides.
            "zero_allow_untested_optimizer": True,
            "bf16": {"enabled": self.dtype == "bf16"},
        }

    def to_dict(self) -> dict[str, Any]:
        """All fields by name, ready for JSON; ``Setting(**setting.to_dict())`` gives the same setting."""
        return asdict(self)

    def change(self, **changes: Any) -> Setting:
        """A copy with some fields changed and everything checked again. Raises ``SettingError``."""
        unknown = sorted(set(changes) - {field.name for field in fields(self)})
        if unknown:
            raise SettingError(
                f"{unknown[0]} is no part of a setting. Smallest fix: use one of "
                f"{', '.join(field.name for field in fields(self))}."
            )
        return replace(self, **changes)


def _shown(value: object) -> str:
    """A value as a message quotes it: whole numbers with separators, and nothing longer than a line."""
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}" if abs(value) < 10**18 else f"a number of about {value.bit_length() * 3 // 10} digits"
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"


def check_setting(setting: object) -> None:
    """Raise ``SettingError`` for anything but a ``Setting``."""
    if not isinstance(setting, Setting):
        raise SettingError(f"The setting is {_shown(setting)}. Smallest fix: setting=Setting(task='digits').")


def _check_choice(name: str, value: object, allowed: tuple[object, ...]) -> None:
    # `True in (0, 1)` holds, and so does `1.0 in (0, 1)`: the type is part of the answer.
    if not any(value == one and type(value) is type(one) for one in allowed):
        raise SettingError(
            f"{name} is {_shown(value)}, which this course does not run. Smallest fix: use one of "
            f"{', '.join(map(repr, allowed))}."
        )


def _check_whole(name: str, value: object, least: int) -> None:
    most = MAXIMUM[name]
    meaning = f" ({_MEANING[name]})" if _MEANING[name] else ""
    if isinstance(value, bool) or not isinstance(value, int):
        raise SettingError(
            f"{name}{meaning} is {_shown(value)}, not a whole number. "
            f"Smallest fix: a whole number from {least} to {most:,}."
        )
    if not least <= value <= most:
        raise SettingError(
            f"{name}{meaning} is {_shown(value)}, outside {least} to {most:,}. "
            f"Smallest fix: {least if value < least else format(most, ',')}."
        )


def _check_number(name: str, value: object, above: float | None, most: float) -> None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SettingError(f"{name} is {_shown(value)}, not a number. Smallest fix: a number up to {most:g}.")
    too_low = value < 0 if above is None else value <= above
    if value != value or too_low or value > most:
        least = "0" if above is None else f"more than {above:g}"
        raise SettingError(f"{name} is {_shown(value)}. Smallest fix: a number from {least} to {most:g}.")
