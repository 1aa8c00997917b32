"""The batch explorer: three numbers and a world size; whichever two are set, the third follows."""

from __future__ import annotations

from functools import partial
from html import escape
from typing import Any

import ipywidgets as widgets

from dsaccum_helpers.batch import KEYS, Batch, BatchError, resolve_batch, worlds
from dsaccum_helpers.panels.fields import choice_field, message, mimebundle, number_field, read, table, typed
from dsaccum_helpers.panels.key_guard import guarded
from dsaccum_helpers.plots import equation

LABELS = {
    "train_batch_size": "Train batch (samples per optimizer step)",
    "train_micro_batch_size_per_gpu": "Micro-batch (samples per process)",
    "gradient_accumulation_steps": "Accumulation steps",
    "world_size": "World size (processes)",
}
STOPS = {
    "train_batch_size": (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024),
    "train_micro_batch_size_per_gpu": (1, 2, 4, 8, 16, 32, 64),
    "gradient_accumulation_steps": (1, 2, 4, 8, 16, 32, 64),
    "world_size": (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64),
}
NOTHING = ""  # all three numbers are given, and checked against each other


class BatchExplorer:
    """Set two of the three numbers and the world size, and see what DeepSpeed makes of them, or why it refuses.

    The number that is ``None`` is derived. ``run(**changes)`` is the same without a front end.
    """

    def __init__(
        self,
        train_batch_size: Any = 64,
        train_micro_batch_size_per_gpu: Any = None,
        gradient_accumulation_steps: Any = 4,
        world_size: Any = 2,
    ) -> None:
        given = (train_batch_size, train_micro_batch_size_per_gpu, gradient_accumulation_steps)
        numbers = dict(zip(KEYS, given, strict=True))
        self.batch: Batch | None = None
        self.error: BatchError | None = None
        self.fields = {
            name: number_field(LABELS[name], numbers.get(name, world_size), STOPS[name], label_width="290px")
            for name in LABELS
        }
        options = [(LABELS[key], key) for key in KEYS] + [("nothing: check all three", NOTHING)]
        derived = next((key for key in reversed(KEYS) if numbers[key] is None), NOTHING)
        self.derive = choice_field("Let DeepSpeed derive", options, derived)
        self.message, self.picture, self.hint, self.table = (widgets.HTML() for _ in range(4))
        self.remedies = widgets.VBox()
        for field in (*self.fields.values(), self.derive):
            field.layout.width, field.layout.max_width = "auto", "600px"
            field.observe(self._changed, "value")
        self.derive.style.description_width = "290px"
        self._busy = False
        self.widget = widgets.VBox(
            [self.derive, *self.fields.values(), self.message, self.remedies, self.picture, self.hint, self.table]
        )
        guarded(self.widget)
        self._changed()

    def run(self, **changes: Any) -> Batch | None:
        """Set numbers by name (those of the constructor) and return the ``Batch``.

        A number given as ``None`` is derived; where the derived one is given, one that is not given takes its place.
        Where the numbers are impossible, the reason is printed and ``None`` returned.
        """
        unknown = sorted(changes.keys() - self.fields.keys())
        if unknown:
            print(f"{unknown[0]} is no number of the explorer. Smallest fix: use one of {', '.join(self.fields)}.")
            return None
        self._busy = True
        derived = [key for key in reversed(KEYS) if key in changes and changes[key] is None]
        if self.derive.value in changes:  # it is given now, so one that is not given follows
            derived += [*(key for key in reversed(KEYS) if key not in changes), NOTHING]
        self.derive.value = derived[0] if derived else self.derive.value
        for name, value in changes.items():
            self.fields[name].value = typed(value)
        self._busy = False
        self._changed()
        if self.error:
            print(self.error)
        return self.batch

    @property
    def text(self) -> str:
        """All that the explorer shows, as text."""
        if self.error:
            return str(self.error)
        lines = [f"{size}: {answer}" for size, answer in self._worlds()]
        return "\n".join([str(self.batch), memory_hint(self.batch), "By world size:", *lines] if self.batch else lines)

    def _numbers(self) -> dict[str, Any]:
        """What is typed, as arguments of ``resolve_batch``; an empty number is left to DeepSpeed."""
        values: dict[str, Any] = {name: read(field.value) for name, field in self.fields.items()}
        missing = {key: None for key in KEYS if key == self.derive.value or values[key] == ""}
        return values | missing

    def _worlds(self) -> list[tuple[int, Batch | BatchError]]:
        return worlds(**{name: value for name, value in self._numbers().items() if name in KEYS})

    def _changed(self, _: Any = None) -> None:
        """Something was typed or chosen: work it out again and show it."""
        if self._busy:
            return
        self._busy = True
        try:
            self.batch, self.error = resolve_batch(**self._numbers()), None
            self._show_batch(self.batch)
        except BatchError as error:
            self.batch, self.error = None, error
            self._show_error(error)
        finally:
            self._busy = False
        for name, field in self.fields.items():
            field.disabled = name == self.derive.value

    def _show_batch(self, batch: Batch) -> None:
        if self.derive.value:
            self.fields[self.derive.value].value = typed(getattr(batch, self.derive.value))
        self.message.value = message(str(batch))
        self.remedies.children = ()
        self.picture.value = equation(batch).html
        self.hint.value = f"<p><strong>Memory:</strong> {escape(memory_hint(batch))}</p>"
        self._show_worlds()

    def _show_error(self, error: BatchError) -> None:
        if self.derive.value:
            self.fields[self.derive.value].value = ""
        self.message.value = message(str(error), wrong=True)
        self.remedies.children = [self._remedy_button(setting) for setting in error.nearest]
        self.picture.value = self.hint.value = ""
        if error.code == "batch-value-type":
            self.table.value = ""
        else:
            self._show_worlds()

    def _show_worlds(self) -> None:
        head = ("Processes", "What DeepSpeed makes of the same numbers")
        self.table.value = table("On other world sizes", head, self._worlds())

    def _remedy_button(self, setting: dict[str, int]) -> widgets.Button:
        text = ", ".join(f"{name} {value}" for name, value in setting.items())
        button = widgets.Button(description=f"Use {text}", layout={"width": "auto"})
        button.on_click(partial(self._use, setting))
        return button

    def _use(self, setting: dict[str, int], _: Any) -> None:
        self._busy = True
        for name, value in setting.items():
            self.fields[{"processes": "world_size"}.get(name, name)].value = typed(value)
        self._busy = False
        self._changed()

    def _repr_mimebundle_(self, **keywords: Any) -> dict[str, Any]:
        return mimebundle(self.widget, self.text, **keywords)


def memory_hint(batch: Batch) -> str:
    """What the micro-batch costs, and what accumulation does not cost."""
    micro, steps = batch.train_micro_batch_size_per_gpu, batch.gradient_accumulation_steps
    return (
        f"each process holds the activations of one micro-batch at a time, {micro} × those of a single sample. "
        f"They do not grow with the accumulation steps: {steps} or 1, it is the same. "
        "The memory for weights, gradients and optimizer state depends on neither of the two."
    )
