"""The arithmetic by hand; tests/training/test_batch_against_deepspeed.py holds it against DeepSpeed itself."""

import doctest
import pickle

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dsaccum_helpers.batch
from dsaccum_helpers.batch import KEYS, Batch, BatchError, engine_words, resolve_batch, worlds
from dsaccum_helpers.errors import DsaccumError

TRAIN, MICRO, STEPS = KEYS


def refusal(*numbers: object, **sizes: object) -> BatchError:
    with pytest.raises(BatchError) as caught:
        resolve_batch(*numbers, **sizes)
    return caught.value


def answer_to(numbers: tuple[object, ...], sizes: tuple[object, ...]) -> Batch | BatchError:
    try:
        return resolve_batch(*numbers, *sizes)
    except BatchError as error:
        return error


def numbers_of(setting: dict[str, int]) -> tuple[int, ...]:
    return tuple(setting[key] for key in KEYS)


def resolve_again(error: BatchError, setting: dict[str, int]) -> Batch:
    """What becomes of one of the nearest settings, with the sizes that were given where it does not change them."""
    sizes = {name: value for name, value in error.given.items() if name not in KEYS} | setting
    return resolve_batch(world_size=sizes.pop("processes"), **sizes)


# (train, micro, steps, world size) -> the three numbers; every line multiplies out to its train batch
@pytest.mark.parametrize(
    ("numbers", "world_size", "expected"),
    [
        ((64, 4, 4), 4, (64, 4, 4)),
        ((64, 4, None), 4, (64, 4, 4)),
        ((64, None, 4), 2, (64, 8, 4)),
        ((None, 4, 4), 4, (64, 4, 4)),
        ((None, 4, None), 8, (32, 4, 1)),
        ((32, None, None), 8, (32, 4, 1)),
        ((252, 2, None), 7, (252, 2, 18)),
        ((1, 1, 1), 1, (1, 1, 1)),
        ((3 * 10**12, None, 10**6), 3, (3 * 10**12, 10**6, 10**6)),
        ((None, 10**12, 10**12), 16, (16 * 10**24, 10**12, 10**12)),
    ],
)
def test_what_deepspeed_will_use(numbers: tuple[int | None, ...], world_size: int, expected: tuple[int, ...]) -> None:
    batch = resolve_batch(*numbers, world_size=world_size)
    assert tuple(batch.as_config().items()) == tuple(zip(KEYS, expected, strict=True))
    assert (batch.data_parallel_size, batch.world_size) == (world_size, world_size)
    assert batch.given == tuple(key for key, number in zip(KEYS, numbers, strict=True) if number is not None)
    assert sorted(batch.given + batch.derived) == sorted(KEYS)


@pytest.mark.parametrize(
    ("sizes", "replicas"),
    [
        ({"tensor_parallel": 2}, 8),
        ({"pipeline_parallel": 4}, 4),
        ({"sequence_parallel": 8}, 2),
        ({"tensor_parallel": 2, "pipeline_parallel": 2, "sequence_parallel": 2}, 2),
        ({"tensor_parallel": 16}, 1),
    ],
)
def test_parallel_sizes_divide_the_world(sizes: dict[str, int], replicas: int) -> None:
    batch = resolve_batch(train_micro_batch_size_per_gpu=3, gradient_accumulation_steps=5, world_size=16, **sizes)
    assert (batch.data_parallel_size, batch.train_batch_size) == (replicas, 15 * replicas)


def test_batch_says_itself_with_units() -> None:
    assert str(resolve_batch(64, 4, 4, world_size=4)) == (
        "64 samples per optimizer step = 4 samples per micro-batch x 4 accumulation steps x 4 processes"
    )
    assert str(resolve_batch(1)) == (
        "1 sample per optimizer step = 1 sample per micro-batch x 1 accumulation step x 1 process "
        "(derived: train_micro_batch_size_per_gpu, gradient_accumulation_steps)"
    )
    assert "x 2 data-parallel replicas (of 8 processes)" in str(resolve_batch(64, None, 4, 8, sequence_parallel=4))
    html = resolve_batch(64, None, 4, 2)._repr_html_()
    assert f"<th scope='row'>{MICRO}</th><td>8</td><td>derived</td>" in html
    assert "<th scope='row'>data_parallel_size</th><td>2</td><td>of 2 processes</td>" in html


def test_batch_cannot_be_changed() -> None:
    batch = resolve_batch(64, 4, 4, 4)
    with pytest.raises(AttributeError):
        batch.train_batch_size = 32  # type: ignore[misc]
    with pytest.raises(AttributeError):
        batch.something = 1  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("numbers", "sizes", "code", "remainder"),
    [
        ((18, 4), {}, "batch-not-divisible", 2),
        ((256, 2, None), {"world_size": 7}, "batch-not-divisible", 4),
        ((10, None, 3), {}, "batch-not-divisible", 1),
        ((10,), {"world_size": 4}, "batch-not-divisible", 2),
        ((2, 2), {"world_size": 8}, "batch-below-world-size", 2),
        ((4,), {"world_size": 8}, "batch-below-world-size", 4),
        ((2, None, 4), {}, "batch-below-world-size", 2),
        # all three: 32 / (4 x 4) = 2 processes, 16 / (4 x 4) = 1 process, 18 and 100 fit no number of processes
        ((32, 4, 4), {}, "written-for-other-world-size", 0),
        ((16, 4, 4), {"world_size": 2}, "written-for-other-world-size", 0),
        ((18, 4, 4), {}, "batch-product-mismatch", 2),
        ((100, 4, 2), {"world_size": 8}, "batch-product-mismatch", 4),
        ((8, 4, 4), {}, "batch-product-mismatch", 8),
        # 64 = 1 x 8 x 8 counts all eight processes, where four share each sample
        ((64, 1, 8), {"world_size": 8, "sequence_parallel": 4}, "model-parallel-world", 0),
        ((32, 1, 8), {"world_size": 8, "sequence_parallel": 4}, "written-for-other-world-size", 0),
        ((16, 4), {"world_size": 6, "tensor_parallel": 4}, "model-parallel-world", 2),
        ((16, 4), {"world_size": 1, "pipeline_parallel": 2}, "model-parallel-world", 1),
        ((16, 4), {"world_size": 4, "tensor_parallel": 0}, "model-parallel-world", None),
        ((), {}, "batch-value-type", None),
        ((None, None, 4), {}, "batch-value-type", None),
        ((2.5,), {}, "batch-value-type", None),
        ((16, 4.0), {}, "batch-value-type", None),
        ((True,), {}, "batch-value-type", None),
        (("64", 4), {}, "batch-value-type", None),
        (("auto", "auto", "auto"), {"world_size": 8}, "batch-value-type", None),
        ((0, 4), {}, "batch-value-type", None),
        ((16, -4), {}, "batch-value-type", None),
        ((float("nan"), float("inf"), -float("inf")), {}, "batch-value-type", None),
        (([4], {"a": 1}), {}, "batch-value-type", None),
        *(((16, 4), {"world_size": bad}, "batch-value-type", None) for bad in (0, -1, True, 2.5, "2", None)),
    ],
)
def test_what_is_wrong(numbers: tuple[object, ...], sizes: dict[str, object], code: str, remainder: int | None) -> None:
    error = refusal(*numbers, **sizes)
    assert (error.code, error.remainder) == (code, remainder)
    assert error.nearest
    for setting in error.nearest:
        assert numbers_of(setting) == numbers_of(resolve_again(error, setting).as_config())


def test_eighteen_in_fours() -> None:
    error = refusal(18, 4)
    assert [numbers_of(setting) for setting in error.nearest] == [(16, 4, 4), (20, 4, 5), (18, 3, 6), (18, 6, 3)]
    assert error.given == {TRAIN: 18, MICRO: 4, "processes": 1}
    assert str(error) == (
        "train_batch_size 18 divided by 4 (4 samples per micro-batch x 1 process) leaves remainder 2; DeepSpeed rounds "
        "gradient_accumulation_steps down to 4, which makes only 16, and refuses. "
        "Smallest fix: train_batch_size 16 (16 = 4 x 4 x 1), or train_batch_size 20 (20 = 4 x 5 x 1)."
    )


def test_256_on_seven() -> None:
    """256 = 14 x 18 + 4, and 256 / 2 = 128 is divided by 4 and by 8, but by nothing between."""
    assert refusal(256, 2, world_size=7).nearest == [
        {TRAIN: 252, MICRO: 2, STEPS: 18},
        {TRAIN: 266, MICRO: 2, STEPS: 19},
        {TRAIN: 256, MICRO: 2, STEPS: 32, "processes": 4},
        {TRAIN: 256, MICRO: 2, STEPS: 16, "processes": 8},
    ]


def test_numbers_for_two_processes_on_one() -> None:
    error = refusal(32, 4, 4)
    assert error.nearest == [
        {TRAIN: 32, MICRO: 4, STEPS: 8},
        {TRAIN: 32, MICRO: 8, STEPS: 4},
        {TRAIN: 32, MICRO: 4, STEPS: 4, "processes": 2},
        {TRAIN: 16, MICRO: 4, STEPS: 4},
    ]
    assert "these numbers fit 2 processes" in str(error)


def test_four_ranks_that_share_a_sample_are_one_replica() -> None:
    error = refusal(64, 1, 8, world_size=8, sequence_parallel=4)
    assert "it counts all 8 processes, but every 4 of them share the same samples" in str(error)
    assert error.given == {TRAIN: 64, MICRO: 1, STEPS: 8, "processes": 8, "sequence_parallel": 4}
    assert {TRAIN: 16, MICRO: 1, STEPS: 8} in error.nearest
    assert {TRAIN: 64, MICRO: 1, STEPS: 32} in error.nearest
    assert {TRAIN: 64, MICRO: 4, STEPS: 8} in error.nearest
    assert {TRAIN: 64, MICRO: 1, STEPS: 8, "processes": 32} in error.nearest


def test_a_parallel_size_that_is_none_is_named_and_mended() -> None:
    error = refusal(64, 4, 4, world_size=4, tensor_parallel=0)
    assert error.nearest == [{TRAIN: 64, MICRO: 4, STEPS: 4, "tensor_parallel": 1}]
    assert str(error).endswith("tensor_parallel is 0, where a positive integer is needed. "
                               "Smallest fix: tensor_parallel 1 (64 = 4 x 4 x 4).")  # fmt: skip


def test_silently_accepted_values_are_named() -> None:
    assert str(refusal(None, 4, 2.5)) == (
        "gradient_accumulation_steps is 2.5, where a positive integer is needed; "
        "DeepSpeed accepts this without a word. Smallest fix: "
        "gradient_accumulation_steps 2 (8 = 4 x 2 x 1), or gradient_accumulation_steps 3 (12 = 4 x 3 x 1)."
    )
    assert "train_batch_size is True" in str(refusal(True))
    assert "Smallest fix: train_batch_size 1 (1 = 1 x 1 x 1)." in str(refusal(True))


def test_refused_values_come_with_the_words_of_deepspeed() -> None:
    text = str(refusal("64", 4))
    assert "DeepSpeed stops with \"TypeError: unsupported operand type(s) for //: 'str' and 'int'\"" in text
    assert text.endswith("Smallest fix: train_batch_size 64 (64 = 4 x 16 x 1).")
    assert '"auto" is for a trainer that fills it in' in str(refusal("auto", 4))


def test_nothing_given_asks_for_a_micro_batch() -> None:
    error = refusal(None, None, 4, world_size=2)
    assert error.nearest == [{TRAIN: 8, MICRO: 1, STEPS: 4}]
    assert str(error).endswith("Smallest fix: train_micro_batch_size_per_gpu 1 (8 = 1 x 4 x 2).")


def test_huge_numbers_need_no_search() -> None:
    """10**12 + 1 = 12 x 83333333333 + 5. Two distant primes have no near divisor, and none is looked for at length."""
    error = refusal(10**12 + 1, 4, world_size=3)
    assert [numbers_of(setting) for setting in error.nearest] == [
        (999_999_999_996, 4, 83_333_333_333),
        (1_000_000_000_008, 4, 83_333_333_334),
    ]
    assert refusal((2**61 - 1) * (2**89 - 1), 10**15, world_size=5).nearest
    assert refusal(10**30, 10**12, 10**12, 7).code == "written-for-other-world-size"


def test_a_text_times_a_huge_number_is_not_written_out() -> None:
    assert engine_words(None, "4" * 10, 10**15) == "TypeError: '>' not supported between instances of 'str' and 'int'"
    assert refusal(None, "4", 10**15).nearest == [{TRAIN: 4 * 10**15, MICRO: 4, STEPS: 10**15}]


def test_the_worked_example_on_many_world_sizes() -> None:
    rows = worlds(train_batch_size=64, gradient_accumulation_steps=4)
    assert [size for size, _ in rows] == [1, 2, 3, 4, 8, 16, 32]
    micro = {size: row.train_micro_batch_size_per_gpu for size, row in rows if isinstance(row, Batch)}
    assert micro == {1: 16, 2: 8, 4: 4, 8: 2, 16: 1}
    codes = {size: (row.code, row.remainder) for size, row in rows if isinstance(row, BatchError)}
    assert codes == {3: ("batch-not-divisible", 4), 32: ("batch-below-world-size", 64)}
    assert worlds(train_batch_size=64, world_sizes=[5])[0][0] == 5


def test_engine_words_quote_the_assertion() -> None:
    assert engine_words(32, 4, 4) == (
        "AssertionError: Check batch related parameters. train_batch_size is not equal to micro_batch_per_gpu * "
        "gradient_acc_step * world_size 32 != 4 * 4 * 1"
    )
    assert engine_words(64, 4, 4, 8, sequence_parallel=4).endswith("64 != 4 * 4 * 2.0")
    assert engine_words(64, 4, 4, 8, tensor_parallel=2, pipeline_parallel=2).endswith("64 != 4 * 4 * 2")
    assert engine_words(64, 4, 4, 4) is None
    assert engine_words(16, 4, world_size=6, tensor_parallel=4) is None, "no replicas, so DeepSpeedConfig is not asked"


def test_error_is_one_for_learners_and_travels_between_processes() -> None:
    error = refusal(18, 4)
    assert isinstance(error, DsaccumError)
    assert isinstance(error, ValueError)
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), again.code, again.given, again.nearest, again.remainder) == (
        str(error), error.code, error.given, error.nearest, error.remainder,
    )  # fmt: skip


def test_integers_of_other_libraries_count_as_integers() -> None:
    class Index:
        def __index__(self) -> int:
            return 4

    batch = resolve_batch(train_micro_batch_size_per_gpu=Index(), gradient_accumulation_steps=2)  # type: ignore[arg-type]
    assert batch.as_config() == {TRAIN: 8, MICRO: 4, STEPS: 2}
    assert type(batch.train_micro_batch_size_per_gpu) is int


def test_docstrings_show_what_happens() -> None:
    assert doctest.testmod(dsaccum_helpers.batch) == doctest.TestResults(failed=0, attempted=1)


WHOLE = st.one_of(st.integers(1, 100), st.integers(1, 10**15))
ANYTHING = st.one_of(
    st.none(),
    WHOLE,
    st.integers(),
    st.booleans(),
    st.floats(),
    st.text(max_size=4),
    st.sampled_from(["4", "auto", [4]]),
)
SIZE = st.one_of(st.integers(1, 16), st.sampled_from([1, 1, 1, 0, True, 2.5, "2"]))


@settings(max_examples=600, deadline=None)
@given(st.tuples(ANYTHING, ANYTHING, ANYTHING), st.tuples(SIZE, SIZE, SIZE, SIZE))
def test_each_answer_multiplies_out_and_each_nearest_setting_works(
    numbers: tuple[object, ...], sizes: tuple[object, ...]
) -> None:
    answer = answer_to(numbers, sizes)
    if isinstance(answer, Batch):
        train, micro, steps, replicas, world_size, _ = answer
        world, tensor, pipeline, sequence = sizes
        assert all(type(number) is int and number > 0 for number in answer[:5])
        assert train == micro * steps * replicas
        assert replicas * tensor * pipeline * sequence == world == world_size
        assert all(value in (None, mine) for value, mine in zip(numbers, answer[:3], strict=True))
        return
    assert 1 <= len(answer.nearest) <= 6
    assert "Smallest fix: " in str(answer)
    for setting in answer.nearest:
        assert numbers_of(setting) == numbers_of(resolve_again(answer, setting).as_config())
        if type(answer.given["processes"]) is int:
            assert setting.get("processes") != answer.given["processes"], "named although it does not change"


@settings(max_examples=300, deadline=None)
@given(WHOLE, WHOLE, st.integers(1, 64))
def test_nearest_train_batch_is_the_nearest(train: int, micro: int, world_size: int) -> None:
    """With the micro-batch kept, exactly the multiples of micro x world_size samples work."""
    unit = micro * world_size
    answer = answer_to((train, micro, None), (world_size,))
    if isinstance(answer, Batch):
        assert answer.gradient_accumulation_steps * unit == train
        return
    best = answer.nearest[0]
    assert (best[MICRO], best[TRAIN] % unit, "processes" in best) == (micro, 0, False)
    assert best[TRAIN] == unit if train < unit else abs(best[TRAIN] - train) * 2 <= unit
    assert answer.remainder == train % unit
