"""Two numbers and a world size give the third, or the reason why not; by keyboard, by button and by a plain call."""

from __future__ import annotations

from typing import Any

import pytest

from dsaccum_helpers import resolve_batch
from dsaccum_helpers.batch import WORLD_SIZES
from dsaccum_helpers.panels import BatchExplorer


def shown(panel: BatchExplorer) -> list[str]:
    return [field.value for field in panel.fields.values()]


def test_the_third_number_follows() -> None:
    panel = BatchExplorer(train_batch_size=64, gradient_accumulation_steps=4, world_size=2)
    assert panel.batch == resolve_batch(64, None, 4, 2)
    assert shown(panel) == ["64", "8", "4", "2"]
    panel.fields["world_size"].value = "4"
    assert shown(panel) == ["64", "4", "4", "4"]


@pytest.mark.parametrize(
    ("derived", "expected"),
    [
        ("train_batch_size", ["64", "8", "4", "2"]),
        ("train_micro_batch_size_per_gpu", ["64", "8", "4", "2"]),
        ("gradient_accumulation_steps", ["64", "8", "4", "2"]),
    ],
)
def test_any_number_can_be_the_derived_one(derived: str, expected: list[str]) -> None:
    panel = BatchExplorer(64, 8, 4, 2)
    panel.derive.value = derived
    assert shown(panel) == expected
    assert [name for name, field in panel.fields.items() if field.disabled] == [derived]
    other = next(name for name in panel.fields if name not in (derived, "world_size"))
    panel.fields[other].value = "16"
    assert panel.batch is not None
    assert getattr(panel.batch, other) == 16
    assert panel.fields[derived].value == str(getattr(panel.batch, derived)) != expected[0]


def test_all_three_can_be_checked_against_each_other() -> None:
    panel = BatchExplorer(65, 8, 4, 2)
    assert panel.batch is None
    assert (
        "train_batch_size 65 is not 8 samples per micro-batch x 4 accumulation steps x 2 processes = 64" in panel.text
    )


def test_a_remedy_is_one_press_away() -> None:
    panel = BatchExplorer(train_batch_size=64, gradient_accumulation_steps=5, world_size=2)
    assert panel.error is not None
    wanted = panel.error.nearest
    assert [button.description.removeprefix("Use ") for button in panel.remedies.children] == [
        ", ".join(f"{name} {value}" for name, value in setting.items()) for setting in wanted
    ]
    for number, setting in enumerate(wanted):
        panel = BatchExplorer(train_batch_size=64, gradient_accumulation_steps=5, world_size=2)
        panel.remedies.children[number].click()
        assert panel.error is None
        assert panel.batch is not None
        assert panel.batch.as_config() == {name: value for name, value in setting.items() if name != "processes"}
        assert panel.batch.world_size == setting.get("processes", 2)
        assert panel.remedies.children == ()


@pytest.mark.parametrize("value", [0, -1, "abc", 2.5, True, "64 samples", pytest.param(10**5000, id="huge")])
@pytest.mark.parametrize("name", ["train_batch_size", "gradient_accumulation_steps", "world_size"])
def test_bad_input_gets_one_clear_message(name: str, value: Any, capsys: pytest.CaptureFixture[str]) -> None:
    panel = BatchExplorer(train_batch_size=64, gradient_accumulation_steps=4, world_size=2)
    assert panel.run(**{name: value}) is None
    printed = capsys.readouterr()
    assert printed.out.count("\n") == 1
    assert name in printed.out
    assert "Smallest fix: " in printed.out
    assert printed.err == ""
    assert panel.message.value.count('role="alert"') == 1
    assert panel.picture.value == ""
    again = panel.run(train_batch_size=64, gradient_accumulation_steps=4, world_size=2)
    assert again == resolve_batch(64, None, 4, 2), "the panel goes on working"


def test_huge_and_unusual_numbers_are_only_arithmetic() -> None:
    panel = BatchExplorer(train_batch_size=10**12, gradient_accumulation_steps=1000, world_size=1000)
    assert panel.batch == resolve_batch(10**12, None, 1000, 1000)
    panel.fields["train_batch_size"].value = "1e12"
    assert "1000000000000.0" in panel.text


def test_an_empty_number_is_left_to_deepspeed() -> None:
    panel = BatchExplorer(train_batch_size=64, world_size=2, gradient_accumulation_steps=None)
    assert panel.batch == resolve_batch(64, None, None, 2)


def test_plain_call_returns_the_batch(capsys: pytest.CaptureFixture[str]) -> None:
    panel = BatchExplorer()
    assert panel.run(train_batch_size=256, world_size=8) == resolve_batch(256, None, 4, 8)
    assert panel.run(train_micro_batch_size_per_gpu=4) == resolve_batch(256, 4, None, 8)
    assert panel.run(gradient_accumulation_steps=2) == resolve_batch(256, None, 2, 8)
    assert panel.run(train_micro_batch_size_per_gpu=4, train_batch_size=128) == resolve_batch(128, 4, None, 8)
    assert panel.run(train_batch_size=None, gradient_accumulation_steps=2) == resolve_batch(None, 4, 2, 8)
    assert capsys.readouterr().out == ""
    assert panel.run(micro=4) is None
    assert "micro is no number of the explorer. Smallest fix: use one of train_batch_size" in capsys.readouterr().out


def test_the_picture_has_alternative_text_in_numbers() -> None:
    value = BatchExplorer(64, None, 4, 2).picture.value
    assert 'alt="64 samples per optimizer step, drawn as a grid of 2 processes (rows) by 4 accumulation steps' in value


def test_other_world_sizes_are_a_table() -> None:
    panel = BatchExplorer(64, None, 4, 2)
    assert panel.table.value.count('<th scope="row"') == len(WORLD_SIZES)
    assert "<caption" in panel.table.value
    assert "leaves remainder 4" in panel.table.value
    panel.run(train_batch_size="abc")
    assert panel.table.value == "", "the same message seven times helps nobody"


def test_memory_hint_speaks_of_the_micro_batch_alone() -> None:
    panel = BatchExplorer(256, None, 4, 2)
    assert "32 × those of a single sample" in panel.hint.value
    panel.run(gradient_accumulation_steps=8)
    assert "16 × those of a single sample" in panel.hint.value


def test_panel_shows_itself_as_widget_and_as_text() -> None:
    panel = BatchExplorer()
    bundle = panel._repr_mimebundle_()
    assert bundle["text/plain"] == panel.text
    assert "application/vnd.jupyter.widget-view+json" in bundle


def test_what_is_typed_never_becomes_markup() -> None:
    panel = BatchExplorer()
    panel.fields["train_batch_size"].value = "<img src=x>"
    assert "<img" not in panel.message.value
    assert "&lt;img" in panel.message.value
