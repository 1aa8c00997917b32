"""DeepSpeed's own treatment of its three batch numbers, step by step and word for word (pure).

A transcription of ``DeepSpeedConfig._set_batch_related_parameters`` and ``_batch_assertion`` in
``deepspeed/runtime/config.py`` (0.19.8); a test holds it against the real class. It is here to quote DeepSpeed;
``batch.py`` holds what is right.
"""

from __future__ import annotations

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import Any


def engine_words(
    train_batch_size: Any = None,
    train_micro_batch_size_per_gpu: Any = None,
    gradient_accumulation_steps: Any = None,
    world_size: Any = 1,
    tensor_parallel: Any = 1,
    pipeline_parallel: Any = 1,
    sequence_parallel: Any = 1,
) -> str | None:
    """The last line of the traceback with which DeepSpeed 0.19 refuses these numbers, or None where it accepts them.

    A ``sequence_parallel`` of 2 or more is the config key ``sequence_parallel_size``, which makes DeepSpeed's world
    size a float ("64 != 4 * 4 * 2.0", and inexact above 2**53). Tensor and pipeline sizes reach it as an ``mpu``
    object that counts whole replicas; where they leave none, DeepSpeedConfig is never asked, and the answer is None.
    """
    try:
        shared = tensor_parallel * pipeline_parallel
        if shared == 1:
            world = world_size if sequence_parallel == 1 else world_size / sequence_parallel
        elif world_size % (shared * sequence_parallel):
            return None
        else:
            world = world_size // (shared * sequence_parallel)
        _as_deepspeed(train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps, world)
    except Exception as error:  # whatever Python says to such operands is what the learner reads
        return f"{type(error).__name__}: {error}"
    return None


def _as_deepspeed(train: Any, micro: Any, steps: Any, world: Any) -> None:
    """DeepSpeed's own steps in DeepSpeed's own order, so that Python finds the same fault first; raises as it does."""
    if train is not None and micro is not None and steps is not None:
        pass
    elif train is not None and micro is not None:
        steps = train // micro
        steps //= world
    elif train is not None and steps is not None:
        micro = train // world
        micro //= steps
    elif micro is not None and steps is not None:
        train = _times(_times(micro, steps), world)
    elif train is not None:
        micro, steps = train // world, 1
    elif micro is not None:
        train, steps = _times(micro, world), 1
    else:
        raise AssertionError("Either train_batch_size or train_micro_batch_size_per_gpu needs to be provided")
    for name, value in (("Train batch size", train), ("Micro batch size per gpu", micro)):
        if not value > 0:
            raise AssertionError(f"{name}: {value} has to be greater than 0")
    if not steps > 0:
        raise AssertionError(f"Gradient accumulation steps: {steps} has to be greater than 0")
    if not train == micro * steps * world:
        raise AssertionError(
            "Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
            f"gradient_acc_step * world_size {train} != {micro} * {steps} * {world}"
        )


def _times(left: Any, right: Any) -> Any:
    """left x right. A text or list is not really repeated 10**9 times: only its type shows in what follows."""
    for value, count in ((left, right), (right, left)):
        if isinstance(value, str | bytes | list | tuple) and isinstance(count, int):
            return value
    return left * right
