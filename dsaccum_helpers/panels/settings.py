"""The controls for one ``Setting``: what is typed and chosen becomes a checked setting, and the other way round."""

from __future__ import annotations

from typing import Any

import ipywidgets as widgets

from dsaccum_helpers.batch import KEYS, resolve_batch
from dsaccum_helpers.errors import DsaccumError
from dsaccum_helpers.panels.fields import choice_field, message, number_field, read, typed
from dsaccum_helpers.setting import DTYPES, OPTIMIZERS, SCHEDULES, TASKS, ZERO_STAGES, Setting, check_setting

_CHOICES: dict[str, tuple[str, tuple[Any, ...]]] = {
    "task": ("Task", tuple(TASKS)),
    "zero_stage": ("ZeRO stage", ZERO_STAGES),
    "dtype": ("Precision", DTYPES),
    "optimizer": ("Optimizer", OPTIMIZERS),
    "schedule": ("Learning-rate schedule", SCHEDULES),
}
_NUMBERS: dict[str, tuple[str, tuple[float, ...]]] = {
    "train_micro_batch_size_per_gpu": ("Micro-batch (samples)", (1, 2, 4, 8, 16, 32, 64, 128)),
    "gradient_accumulation_steps": ("Accumulation steps", (1, 2, 4, 8, 16, 32)),
    "processes": ("Processes (world size)", (1, 2, 3, 4, 5, 6, 7, 8)),
    "optimizer_steps": ("Optimizer steps", (10, 20, 40, 60, 80, 100, 150, 200)),
    "learning_rate": ("Learning rate", (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)),
    "gradient_clipping": ("Clipping norm (0: none)", (0.0, 0.1, 0.3, 1.0, 3.0)),
}


class SettingFields:
    """One labelled control for each part of a setting, and a line that says what the parts multiply to."""

    def __init__(self, setting: Setting) -> None:
        check_setting(setting)
        self.seed = setting.seed
        self.fields: dict[str, widgets.ValueWidget] = {
            **{name: number_field(label, None, stops) for name, (label, stops) in _NUMBERS.items()},
            **{name: choice_field(*choice, None) for name, choice in _CHOICES.items()},
        }
        self.fields["learning_rate"].placeholder = "default"
        self.summary = widgets.HTML()
        grid = widgets.GridBox(
            list(self.fields.values()), layout={"grid_template_columns": "repeat(auto-fill, 420px)", "width": "100%"}
        )
        self.widget = widgets.VBox([grid, self.summary])
        self.write(setting.to_dict())
        for field in self.fields.values():
            field.observe(self._summarise, "value")
        self._summarise()

    @property
    def setting(self) -> Setting:
        """The setting as it stands in the controls. Raises ``SettingError``."""
        return Setting(**self._values())

    def changed(self, changes: dict[str, Any]) -> tuple[Setting, dict[str, Any]]:
        """The setting with some parts changed by their names, and what ``write`` takes. Raises ``SettingError``."""
        values = self._values()
        unknown = dict.fromkeys(changes.keys() - values.keys())
        if unknown:
            Setting().change(**unknown)  # raises, and names what there is
        values |= changes
        return Setting(**values), values

    def observe(self, action: Any) -> None:
        """Call ``action`` after each change of a control."""
        for field in self.fields.values():
            field.observe(action, "value")

    def _values(self) -> dict[str, Any]:
        values: dict[str, Any] = {name: self.fields[name].value for name in _CHOICES}
        values |= {name: read(self.fields[name].value) for name in _NUMBERS}
        values["learning_rate"] = None if values["learning_rate"] == "" else values["learning_rate"]
        return values | {"seed": self.seed}

    def write(self, values: dict[str, Any]) -> None:
        """Put checked values into the controls."""
        self.seed = values["seed"]
        for name in _CHOICES:
            self.fields[name].value = values[name]
        for name in _NUMBERS:
            self.fields[name].value = typed(values[name])

    def _summarise(self, _: Any = None) -> None:
        try:
            setting = self.setting
        except DsaccumError:
            self.summary.value = ""  # the panel says why
            return
        batch = resolve_batch(**{name: setting.ds_config()[name] for name in KEYS}, world_size=setting.processes)
        run = f"{setting.optimizer_steps:,} optimizer steps, learning rate {setting.rate:g}"
        self.summary.value = message(f"{batch}. {run}. Task {setting.task}: {TASKS[setting.task]}.")
