"""The arithmetic: what DeepSpeed makes of its three batch numbers and a world size.

One optimizer step averages the gradients of ``train_batch_size`` samples, and DeepSpeed holds that

    train_batch_size = train_micro_batch_size_per_gpu x gradient_accumulation_steps x data-parallel size

Missing numbers are derived by floor division, then the equation is checked. The source of all this is
``DeepSpeedConfig._set_batch_related_parameters`` and ``_batch_assertion`` in ``deepspeed/runtime/config.py`` (0.19.8).
Only the standard library is imported, and neither dataclasses nor typing, which would double the start-up time.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections import namedtuple

from dsaccum_helpers.deepspeed_rules import engine_words
from dsaccum_helpers.errors import DsaccumError
from dsaccum_helpers.nearest import near_integers, near_multiples, near_settings

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    Asked = dict[str, Any]  # every one of KEYS and SIZES, as given
    Remedy = dict[str, int]  # KEYS, and those of SIZES that change

__all__ = ["KEYS", "SIZES", "Batch", "BatchError", "engine_words", "resolve_batch", "worlds"]

KEYS = ("train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps")
SIZES = ("processes", "tensor_parallel", "pipeline_parallel", "sequence_parallel")
WORLD_SIZES = (1, 2, 3, 4, 8, 16, 32)
_MOST_NEAREST = 6  # a longer list helps nobody

_BatchTuple = namedtuple(
    "_BatchTuple",
    "train_batch_size train_micro_batch_size_per_gpu gradient_accumulation_steps data_parallel_size world_size given",
)


class Batch(_BatchTuple):
    """The numbers DeepSpeed will use; immutable.

    ``train_batch_size``: samples per optimizer step, over all processes.
    ``train_micro_batch_size_per_gpu``: samples per forward pass of one process.
    ``gradient_accumulation_steps``: micro-batches of one process per optimizer step.
    ``data_parallel_size``: replicas that see different samples, = ``world_size`` / (tensor x pipeline x sequence).
    ``given``: the names of the numbers that were given; ``derived`` has the others.
    """

    __slots__ = ()
    train_batch_size: int
    train_micro_batch_size_per_gpu: int
    gradient_accumulation_steps: int
    data_parallel_size: int
    world_size: int
    given: tuple[str, ...]

    @property
    def derived(self) -> tuple[str, ...]:
        """The names of the numbers that DeepSpeed filled in."""
        return tuple(key for key in KEYS if key not in self.given)

    def as_config(self) -> dict[str, int]:
        """The three numbers under DeepSpeed's key names, ready to be merged into a config."""
        return {key: getattr(self, key) for key in KEYS}

    def __str__(self) -> str:
        train, *factors, _ = self
        text = f"{_count(train, 'sample')} per optimizer step = {_factors(*factors)}"
        return f"{text} (derived: {', '.join(self.derived)})" if self.derived else text

    def _repr_html_(self) -> str:
        origins = [*("given" if key in self.given else "derived" for key in KEYS), f"of {_processes(self.world_size)}"]
        rows = zip(self._fields, self, origins, strict=False)
        cells = "".join(f"<tr><th scope='row'>{key}</th><td>{n}</td><td>{how}</td></tr>" for key, n, how in rows)
        return f"<table><caption>{self}</caption>{cells}</table>"


class BatchError(DsaccumError):
    """Numbers that DeepSpeed refuses, or accepts silently although they are no positive integers.

    ``code``: the name in the catalogue of mismatches. Where the catalogue has no closer one, numbers of which none
    fixes the batch (all missing, or the accumulation alone) and an impossible world size are ``batch-value-type``.
    ``given``: what was given, under DeepSpeed's key names, with ``processes`` and the parallel sizes other than 1.
    ``nearest``: complete settings that work, the smallest remedy first, each a dict of the three keys, with
    ``processes`` (the ``world_size`` of ``resolve_batch``) or a parallel size where that changes too.
    ``remainder``: samples (or processes) left over by the division that failed; None where nothing is divided.
    """

    def __init__(
        self,
        message: str,
        code: str = "batch-value-type",
        given: dict[str, Any] | None = None,
        nearest: Iterable[Remedy] = (),
        remainder: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code, self.given, self.nearest, self.remainder = code, given or {}, list(nearest), remainder


def resolve_batch(
    train_batch_size: int | None = None,
    train_micro_batch_size_per_gpu: int | None = None,
    gradient_accumulation_steps: int | None = None,
    world_size: int = 1,
    tensor_parallel: int = 1,
    pipeline_parallel: int = 1,
    sequence_parallel: int = 1,
) -> Batch:
    """What DeepSpeed will use; ``None`` means the key is missing or null.

    ``world_size`` counts the training processes; the parallel sizes count those that share the same samples.
    Raises ``BatchError`` for all that DeepSpeed refuses, for the non-integers (2.5, 4.0, true) that it silently
    accepts, and for a world size that the parallel sizes do not divide.

    >>> print(resolve_batch(64, 4, 4, world_size=4))
    64 samples per optimizer step = 4 samples per micro-batch x 4 accumulation steps x 4 processes
    """
    numbers = (train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps)
    sizes = (world_size, tensor_parallel, pipeline_parallel, sequence_parallel)
    return _resolve(dict(zip(KEYS + SIZES, numbers + sizes, strict=True)))


def worlds(world_sizes: Iterable[int] = WORLD_SIZES, **arguments: Any) -> list[tuple[int, Batch | BatchError]]:
    """The same numbers on several world sizes: (world size, Batch or the BatchError), in the order asked for.

    ``arguments`` are those of ``resolve_batch`` other than ``world_size``.
    """
    rows: list[tuple[int, Batch | BatchError]] = []
    for world_size in world_sizes:
        try:
            rows.append((world_size, resolve_batch(world_size=world_size, **arguments)))
        except BatchError as error:
            rows.append((world_size, error))
    return rows


def _resolve(asked: Asked) -> Batch:
    """``resolve_batch`` on one dict."""
    asked = asked | _integers(asked, SIZES)
    world_size = asked["processes"]
    replicas, remainder = divmod(world_size, _shared(asked))
    if remainder:
        raise _world_error(asked, remainder)
    asked = asked | _integers(asked, [key for key in KEYS if asked[key] is not None])
    train, micro, steps = (asked[key] for key in KEYS)
    if train is None and micro is None:
        text = "Neither train_batch_size nor train_micro_batch_size_per_gpu is given, so nothing fixes the batch."
        raise _error(text, "batch-value-type", asked, [_resolve({**asked, KEYS[1]: 1}).as_config()])
    if None not in (train, micro, steps):
        if train != micro * steps * replicas:
            raise _product_error(asked, replicas)
    elif train is None:
        steps = steps or 1
        train = micro * steps * replicas
    else:
        count, remainder = divmod(train, (micro or 1) * (steps or 1) * replicas)
        if remainder:
            raise _division_error(asked, replicas, count, remainder)
        micro, steps = (micro, count) if micro else (count, steps or 1)
    return Batch(train, micro, steps, replicas, world_size, tuple(key for key in KEYS if asked[key] is not None))


def _shared(asked: Asked) -> int:
    """How many processes work on the same samples."""
    return math.prod(asked[size] for size in SIZES[1:])


def _integers(asked: Asked, names: Iterable[str]) -> dict[str, int]:
    """The named values as plain ints; raises BatchError where one is no positive integer."""
    found, wrong = {}, {}
    for name in names:
        try:  # index() takes NumPy's integers too
            found[name] = 0 if isinstance(asked[name], bool) else operator.index(asked[name])
        except TypeError:
            found[name] = 0
        if found[name] < 1:
            wrong[name] = asked[name]
    if wrong:
        raise _value_error(asked, wrong)
    return found


def _value_error(asked: Asked, wrong: dict[str, Any]) -> BatchError:
    values = " and ".join(f"{name} is {value!a:.60}" for name, value in wrong.items())
    text = f"{values.replace('processes is', 'world_size (processes) is')}, where a positive integer is needed"
    if wrong.keys() <= {*KEYS}:
        words = engine_words(*asked.values())
        text += f'; DeepSpeed stops with "{words}"' if words else "; DeepSpeed accepts this without a word"
        if any(isinstance(value, str) and value == "auto" for value in wrong.values()):
            text += ' ("auto" is for a trainer that fills it in)'
    code = "model-parallel-world" if wrong.keys() & {*SIZES[1:]} else "batch-value-type"
    # a number that cannot be guessed is left to DeepSpeed, a size that cannot be guessed becomes 1
    choices: dict[str, list[Any]] = {name: [None] if name in KEYS else [1] for name in wrong}
    choices |= {name: near for name, value in wrong.items() if (near := near_integers(value))}
    return _error(f"{text}.", code, asked, _settled(asked, choices))


def _settled(asked: Asked, choices: dict[str, list[Any]]) -> Iterator[Remedy]:
    """Settings that work once each unusable value is replaced by one of its choices."""
    for values in itertools.islice(itertools.product(*choices.values()), 4 * _MOST_NEAREST):
        trial = {**asked, **dict(zip(choices, values, strict=True))}
        sizes = {name: trial[name] for name in choices if name in SIZES}
        try:
            yield {**_resolve(trial).as_config(), **sizes}
        except BatchError as error:
            yield from ({**sizes, **setting} for setting in error.nearest[:1])


def _world_error(asked: Asked, remainder: int) -> BatchError:
    shared, world_size = _shared(asked), asked["processes"]
    sizes = " x ".join(f"{name} {asked[name]}" for name in SIZES[1:] if asked[name] > 1)
    text = f"{_processes(world_size)} cannot be divided by {shared} ({sizes}): remainder {remainder}."
    choices = {"processes": [count * shared for count in near_multiples(world_size, shared)]}
    return _error(text, "model-parallel-world", asked, _settled(asked, choices), remainder)


def _product_error(asked: Asked, replicas: int) -> BatchError:
    """All three numbers are given and do not agree."""
    (train, micro, steps), shared = (asked[key] for key in KEYS), _shared(asked)
    fits, remainder = divmod(train, micro * steps)
    product = micro * steps * replicas
    text = f"train_batch_size {train} is not {_factors(micro, steps, replicas, asked['processes'])} = {product}; "
    if remainder:
        code = "batch-product-mismatch"
        text += f"{train} / ({micro} x {steps}) is {fits} with remainder {remainder}, so no number of processes fits."
    elif fits == asked["processes"]:
        code = "model-parallel-world"
        text += f"it counts all {fits} processes, but every {shared} of them share the same samples."
    else:
        code = "written-for-other-world-size"
        text += f"these numbers fit {_processes(fits * shared)}."
    return _error(text, code, asked, _near(asked, replicas), remainder)


def _division_error(asked: Asked, replicas: int, count: int, remainder: int) -> BatchError:
    """One number is derived, and the division leaves a remainder or nothing at all."""
    train, micro, steps = (asked[key] for key in KEYS)
    derived = KEYS[2] if micro else KEYS[1]
    unit = (micro or 1) * (steps or 1) * replicas
    divisor = f"{unit} ({_factors(micro, steps, replicas, asked['processes'])})"
    code = "batch-not-divisible" if count else "batch-below-world-size"
    text = f"train_batch_size {train} is smaller than {divisor}, so DeepSpeed rounds {derived} down to 0."
    if count:
        text = f"train_batch_size {train} divided by {divisor} leaves remainder {remainder}; "
        text += f"DeepSpeed rounds {derived} down to {count}, which makes only {count * unit}, and refuses."
    return _error(text, code, asked, _near(asked, replicas), remainder)


def _near(asked: Asked, replicas: int) -> list[Remedy]:
    """The near settings under their names, with ``processes`` where another number of replicas is meant."""
    train, micro, steps = (asked[key] for key in KEYS)
    return [
        dict(zip(KEYS, numbers, strict=True)) | ({} if n == replicas else {"processes": n * _shared(asked)})
        for *numbers, n in near_settings(train, micro, steps, replicas)
    ]


def _error(text: str, code: str, asked: Asked, settings: Iterable[Remedy], remainder: int | None = None) -> BatchError:
    """The BatchError whose message ends in its two nearest settings."""
    nearest: list[Remedy] = []
    for setting in settings:
        if setting not in nearest and len(nearest) < _MOST_NEAREST:
            nearest.append(setting)
    usual = dict.fromkeys(KEYS) | dict.fromkeys(SIZES[1:], 1)
    given = {name: value for name, value in asked.items() if name == "processes" or value is not usual[name]}
    text += f" Smallest fix: {', or '.join(_remedy(asked, setting) for setting in nearest[:2])}."
    return BatchError(text, code, given, nearest, remainder)


def _remedy(asked: Asked, setting: Remedy) -> str:
    """What has to be typed: given numbers that change. Those that DeepSpeed derives show in the product."""
    wanted = {name for name in KEYS if asked[name] is None} | {n for n in setting if ascii(asked[n]) == str(setting[n])}
    changes = [f"{name} {value}" for name, value in setting.items() if name not in wanted]
    train, micro, steps, replicas, *_ = _resolve(asked | setting)
    return f"{' and '.join(changes) or f'{KEYS[1]} {micro}'} ({train} = {micro} x {steps} x {replicas})"


def _factors(micro: int | None, steps: int | None, replicas: int, world_size: int) -> str:
    """The factors that are known, with their units: 4 samples per micro-batch x 4 accumulation steps x 4 processes."""
    known = [f"{_count(micro, 'sample')} per micro-batch"] if micro else []
    known += [_count(steps, "accumulation step")] if steps else []
    if replicas == world_size:
        return " x ".join([*known, _processes(replicas)])
    return " x ".join([*known, _count(replicas, "data-parallel replica")]) + f" (of {world_size} processes)"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + "s" * (number != 1)


def _processes(number: int) -> str:
    return f"{number} process" + "es" * (number != 1)
