"""The arithmetic against the real ``DeepSpeedConfig``: zero disagreements on acceptance, numbers and words.

Without an initialised process group DeepSpeedConfig silently counts one process, so the three questions that it asks of
``deepspeed.comm`` are answered here.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import deepspeed.comm
import pytest
from deepspeed.runtime.config import DeepSpeedConfig
from hypothesis import event, given, settings
from hypothesis import strategies as st

from dsaccum_helpers.batch import KEYS, Batch, BatchError, engine_words, resolve_batch

MISSING = object()  # the key is not in the config, where None is a null
Ask = Callable[..., tuple[tuple[Any, ...] | None, str | None]]


class ModelParallelUnit:
    """The part of a Megatron-like ``mpu`` that DeepSpeedConfig looks at."""

    def __init__(self, data_parallel_size: int) -> None:
        self.data_parallel_size = data_parallel_size

    def get_data_parallel_world_size(self) -> int:
        return self.data_parallel_size


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    """Ask DeepSpeed: (the three numbers, None) where it accepts, (None, its words) where it refuses."""
    counted = 1

    def ask_deepspeed(
        numbers: tuple[Any, ...], world_size: int, sequence_parallel: int = 1, mpu: object = None
    ) -> tuple[tuple[Any, ...] | None, str | None]:
        nonlocal counted
        counted = world_size
        config = {key: value for key, value in zip(KEYS, numbers, strict=True) if value is not MISSING}
        if sequence_parallel != 1:
            config["sequence_parallel_size"] = sequence_parallel
        try:
            resolved = DeepSpeedConfig(config, mpu=mpu)
        except Exception as error:
            return None, f"{type(error).__name__}: {error}"
        assert mpu is not None or resolved.world_size * sequence_parallel == world_size, "the patch has no effect"
        return tuple(getattr(resolved, key) for key in KEYS), None

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(deepspeed.comm, "is_initialized", lambda: True)
        patch.setattr(deepspeed.comm, "get_rank", lambda group=None: 0)
        patch.setattr(deepspeed.comm, "get_world_size", lambda group=None: counted)
        yield ask_deepspeed


def are_integers(numbers: tuple[Any, ...]) -> bool:
    return all(type(number) is int for number in numbers if number is not MISSING and number is not None)


def compare(
    theirs: tuple[tuple[Any, ...] | None, str | None], numbers: tuple[Any, ...], *sizes: int
) -> tuple[str, BatchError | None]:
    """How the two agree; fails where they do not. Sizes as for ``resolve_batch``."""
    accepted, words = theirs
    mine = [None if number is MISSING else number for number in numbers]
    assert engine_words(*mine, *sizes) == words
    answer: Batch | BatchError
    try:
        answer = resolve_batch(*mine, *sizes)
    except BatchError as error:
        answer = error
    if isinstance(answer, Batch):
        assert tuple(answer.as_config().values()) == accepted
        assert all(type(number) is int for number in answer[:5])
        return "both accept", None
    if accepted is None:
        return "both refuse", answer
    assert not are_integers(numbers), f"DeepSpeed makes {accepted} of {numbers} on {sizes}: {answer}"
    assert answer.code == "batch-value-type"
    return "non-integer, accepted silently", answer


MEASURED = (MISSING, None, 16, 8, 4, 2, 1, 3, 0, -1, -4, 4.0, 2.5, "4", "auto", True, [4])
FEWER = (MISSING, None, 48, 12, 8, 3, 2, 1, 0, -4, 2.5, "4", True)


def count_outcomes(ask: Ask, values: tuple[Any, ...], world_size: int) -> Counter[str]:
    """Every combination of the values for the three keys."""
    every = itertools.product(values, repeat=len(KEYS))
    return Counter(compare(ask(numbers, world_size), numbers, world_size)[0] for numbers in every)


@pytest.mark.parametrize(("world_size", "accepted", "silently"), [(1, 420, 215), (2, 323, 161)])
def test_every_combination_of_seventeen_values(ask: Ask, world_size: int, accepted: int, silently: int) -> None:
    """The counts were measured on DeepSpeed 0.19.8 by another program, before this package existed."""
    counts = count_outcomes(ask, MEASURED, world_size)
    assert counts == {
        "both accept": accepted - silently,
        "non-integer, accepted silently": silently,
        "both refuse": 17**3 - accepted,
    }


@pytest.mark.parametrize("world_size", range(3, 17))
def test_every_combination_on_more_processes(ask: Ask, world_size: int) -> None:
    counts = count_outcomes(ask, FEWER, world_size)
    assert counts.total() == 13**3
    assert set(counts) == {"both accept", "non-integer, accepted silently", "both refuse"}


POSITIVE = st.one_of(st.integers(1, 12), st.integers(1, 300), st.integers(1, 10**12))
ODD = st.one_of(
    st.sampled_from([MISSING, None, 0, True, False, "4", "auto", "", [4], 4.0, 2.5]),
    st.integers(max_value=0),
    st.floats(),
    st.text(max_size=3),
)


@st.composite
def any_numbers(draw: st.DrawFn, replicas: int) -> tuple[Any, ...]:
    """Three values; half the time they multiply out or nearly do, so that acceptance is met as often as refusal."""
    micro, steps = draw(POSITIVE), draw(POSITIVE)
    train = micro * steps * replicas + draw(st.sampled_from([0, 0, 0, 1, -1, replicas, micro]))
    spoilt = draw(st.booleans())
    numbers = tuple(
        draw(st.one_of(st.just(n), st.just(MISSING), *([st.just(float(n)), ODD, POSITIVE] if spoilt else [])))
        for n in (train, micro, steps)
    )
    if any(isinstance(value, str | list) for value in numbers):  # DeepSpeed would repeat it 10**12 times
        return tuple(value % 100 if type(value) is int else value for value in numbers)
    return numbers


@settings(max_examples=2000, deadline=None)
@given(st.data())
def test_any_values_on_1_to_16_processes(ask: Ask, data: st.DataObject) -> None:
    world_size = data.draw(st.integers(1, 16))
    numbers = data.draw(any_numbers(world_size))
    outcome, error = compare(ask(numbers, world_size), numbers, world_size)
    event(outcome)
    for setting in error.nearest if error else ():
        wanted = tuple(setting[key] for key in KEYS)
        assert ask(wanted, setting.get("processes", world_size)) == (wanted, None)


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_sequence_parallel_key_divides_the_world(ask: Ask, data: st.DataObject) -> None:
    replicas, sequence = data.draw(st.integers(1, 16)), data.draw(st.integers(2, 8))
    micro, steps = data.draw(st.integers(1, 64)), data.draw(st.integers(1, 64))
    train = micro * steps * replicas + data.draw(st.sampled_from([0, 0, 1, replicas]))
    keep = data.draw(st.tuples(*[st.booleans()] * 3))
    numbers = tuple(n if kept else MISSING for n, kept in zip((train, micro, steps), keep, strict=True))
    outcome, _ = compare(ask(numbers, replicas * sequence, sequence), numbers, replicas * sequence, 1, 1, sequence)
    event(outcome)


@settings(max_examples=500, deadline=None)
@given(st.data())
def test_tensor_and_pipeline_sizes_count_replicas(ask: Ask, data: st.DataObject) -> None:
    replicas, tensor = data.draw(st.integers(1, 16)), data.draw(st.integers(1, 4))
    pipeline = data.draw(st.integers(2 if tensor == 1 else 1, 4))
    numbers = data.draw(any_numbers(replicas))
    world_size = replicas * tensor * pipeline
    theirs = ask(numbers, world_size, mpu=ModelParallelUnit(replicas))
    event(compare(theirs, numbers, world_size, tensor, pipeline)[0])


def test_half_a_replica_is_accepted_by_deepspeed_and_refused_here(ask: Ask) -> None:
    accepted, _ = ask((MISSING, 4, 4), 1, 2)
    assert accepted == (8.0, 4, 4), "half a process"
    with pytest.raises(BatchError) as caught:
        resolve_batch(None, 4, 4, world_size=1, sequence_parallel=2)
    assert caught.value.code == "model-parallel-world"
