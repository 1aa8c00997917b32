"""The controls for what is known of a job: pasted texts, chosen files, framework, sizes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets as widgets

from dsaccum_helpers.errors import DsaccumError
from dsaccum_helpers.job import FRAMEWORKS
from dsaccum_helpers.panels.evidence_field import EvidenceField
from dsaccum_helpers.panels.fields import choice_field, message, number_field, read, typed

_TEXTS: dict[str, tuple[str, str]] = {
    "config": ("Configuration", "DeepSpeed JSON, Accelerate or trainer YAML."),
    "launch": ("Launch command", "The line that starts the training, or the whole job script."),
    "log": ("Log or error message", "The whole of it, or the question you would post."),
    "script": ("Training script", "The file with the training loop. It is read, never run."),
    "versions": ("Installed versions", "What pip freeze prints."),
}
_SIZES: dict[str, tuple[str, tuple[float, ...]]] = {
    "processes": ("Processes (GPUs in all)", (1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 64)),
    "tensor_parallel": ("Tensor parallel size", (1, 2, 4, 8)),
    "pipeline_parallel": ("Pipeline parallel size", (1, 2, 4, 8)),
    "sequence_parallel": ("Sequence parallel size", (1, 2, 4, 8)),
}
_RARE = ("tensor_parallel", "pipeline_parallel", "sequence_parallel", "versions")
#: What the doctor calls a pasted text: its ending says what it was pasted as.
_NAMES = {"launch": "launch.sh", "log": "log.txt", "script": "train.py", "versions": "requirements.txt"}
GUESS = ""
_FRAMEWORKS = [("guess from what is given", GUESS), *((name, name) for name in FRAMEWORKS)]


class EvidenceFields:
    """A field for each kind of evidence; ``files`` and ``options`` are what ``check`` takes."""

    def __init__(self) -> None:
        self.given: list[Any] = []  # files given by a plain call
        self.fields: dict[str, widgets.ValueWidget] = {
            **{
                name: EvidenceField(description=label, hint=hint, rows=3 if name == "launch" else 8)
                for name, (label, hint) in _TEXTS.items()
            },
            **{name: number_field(label, None, stops, placeholder="?") for name, (label, stops) in _SIZES.items()},
            "framework": choice_field("Framework", _FRAMEWORKS, GUESS),
        }
        self.upload = widgets.FileUpload(multiple=True, description="Choose files", layout={"width": "auto"})
        self.chosen = widgets.HTML()
        self.more = widgets.Checkbox(description="More: model parallelism, installed versions", indent=False)
        self.more.layout.width = "auto"
        self.rare = widgets.VBox([self.fields[name] for name in _RARE], layout={"display": "none"})
        self.more.observe(self._show_more, "value")
        self.upload.observe(self._show_chosen, "value")
        self.widget = self._assemble()

    def _assemble(self) -> widgets.VBox:
        texts = [self.fields[name] for name in ("config", "launch", "log", "script")]
        grid = {"grid_template_columns": "repeat(auto-fit, minmax(min(100%, 420px), 1fr))", "width": "100%"}
        files = widgets.HBox([self.upload, self.chosen], layout={"flex_flow": "row wrap", "align_items": "center"})
        known = widgets.VBox([self.fields["framework"], self.fields["processes"]])
        return widgets.VBox([widgets.GridBox(texts, layout=grid), files, known, self.more, self.rare])

    @property
    def files(self) -> list[Any]:
        """Everything that is to be read: files of a plain call, chosen files, pasted texts."""
        pairs = [(one.name, bytes(one.content)) for one in self.upload.value]
        taken = {name for name, _ in pairs} | {one[0] for one in self.given if isinstance(one, tuple)}
        for name in _TEXTS:
            text = self.fields[name].value
            if text.strip():
                called = _NAMES.get(name) or _config_name(text)
                pairs.append((f"pasted-{called}" if called in taken else called, text))
        return [*self.given, *pairs]

    @property
    def options(self) -> dict[str, Any]:
        """The framework and the sizes that are given."""
        sizes = {name: read(self.fields[name].value) for name in _SIZES}
        framework = self.fields["framework"].value
        return {name: size for name, size in sizes.items() if size != ""} | (
            {"framework": framework} if framework else {}
        )

    def write(self, files: Sequence[Any], changes: dict[str, Any]) -> None:
        """What a plain call gives. Raises ``DsaccumError`` for a name that is none."""
        unknown = [name for name in changes if name not in self.fields]
        if unknown:
            raise DsaccumError(f"{unknown[0]} is nothing to give. Smallest fix: use one of {', '.join(self.fields)}.")
        framework = changes.get("framework")
        if framework and framework not in FRAMEWORKS:
            raise DsaccumError(f"framework is {framework!r:.60}. Smallest fix: use one of {', '.join(FRAMEWORKS)}.")
        if files:
            self.given = list(files)
        for name, value in changes.items():
            self.fields[name].value = typed(value) if name in _SIZES else (value or "")
        self.more.value = self.more.value or any(self.fields[name].value for name in _RARE)

    def clear(self) -> None:
        """Empty every field."""
        self.given, self.upload.value = [], ()
        for field in self.fields.values():
            field.value = ""

    def observe(self, action: Callable[[Any], None]) -> None:
        """Call ``action`` after each change."""
        for field in (*self.fields.values(), self.upload):
            field.observe(action, "value")

    def _show_more(self, change: Any) -> None:
        self.rare.layout.display = None if change["new"] else "none"

    def _show_chosen(self, _: Any) -> None:
        names = ", ".join(one.name for one in self.upload.value)
        self.chosen.value = message(f"Chosen: {names}" if names else "")


def _config_name(text: str) -> str:
    """A name whose ending fits the text; none for what the doctor has to look at, such as a posted question."""
    if text.lstrip("\ufeff \t\r\n")[:1] == "{" or re.search(r"^\s*(?://|#).*\n\s*\{", text):
        return "ds_config.json"
    return "config.yaml" if re.match(r"(?:\s*#.*\n|---\s*\n|\s*\n)*[\w.-]+:(?:\s|$)", text) else "config"
