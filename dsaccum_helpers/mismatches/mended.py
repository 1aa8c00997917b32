"""The mended run of an entry: the same job with its mistake put right, as a run of its own."""

from __future__ import annotations

from dsaccum_helpers.mismatches.entry import Mismatch

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from dsaccum_helpers.mismatches.prediction import Prediction
    from dsaccum_helpers.setting import Setting
    from dsaccum_helpers.training.tasks import Task

SUFFIX = ":mended"


class Mended(Mismatch):
    """Code ``CODE:mended``. Its prediction is that of the right run: that is what mending means."""

    def __init__(self, entry: Mismatch) -> None:
        self.entry = entry
        self.code = entry.code + SUFFIX
        self.title = f"{entry.title}: mended"
        self.cause = entry.remedy
        self.learn = entry.learn
        self.loop = entry.mended_loop
        self.pipeline = entry.pipeline
        self.against_full_batch = entry.against_full_batch
        self.measures_direction = entry.measures_direction

    def needs(self, setting: Setting) -> str | None:
        """What the wrong run needs."""
        return self.entry.needs(setting)

    def config(self, setting: Setting) -> dict[str, Any]:
        """The mended configuration."""
        return self.entry.mended_config(setting)

    def loader_sizes(self, setting: Setting) -> tuple[int, ...]:
        """The mended loader's micro-batches."""
        return self.entry.mended_sizes(setting)

    def prepare(self, task: Task) -> Task:
        """The task of the wrong run: the two must differ in nothing but the mistake."""
        return self.entry.mended_prepare(task)

    def predict(self, setting: Setting) -> Prediction:
        """What the right run does, unless the entry comes to that in another way."""
        return self.entry.mended_prediction(setting, super().predict(setting))
