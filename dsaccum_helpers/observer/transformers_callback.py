"""The live observer as a callback of Hugging Face's Trainer. Imports transformers.

from dsaccum_helpers.observer.transformers_callback import WatchCallback

Trainer(model, arguments, train_dataset=rows, callbacks=[WatchCallback()]).train()
"""

from __future__ import annotations

import gc
from typing import Any

from transformers import TrainerCallback

from dsaccum_helpers.observer.callbacks import WatchWhileTraining

__all__ = ["WatchCallback"]


class WatchCallback(WatchWhileTraining, TrainerCallback):
    """Watches the engine from ``on_train_begin`` to ``on_train_end``; takes the options of ``watch``."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """The Trainer has made its engine."""
        self._begin(engine_of(given.get("model")), given.get("train_dataloader"))

    def on_train_end(self, args: Any, state: Any, control: Any, **given: Any) -> None:
        """The last update is over."""
        self._end()


def engine_of(model: Any) -> Any:
    """The living DeepSpeed engine around this model, or ``None``: the Trainer hands callbacks the bare model."""
    from deepspeed import DeepSpeedEngine

    if isinstance(model, DeepSpeedEngine):
        return model
    # By type and not by isinstance, which would ask proxies that warn when they are touched.
    engines = (one for one in gc.get_objects() if issubclass(type(one), DeepSpeedEngine))
    return next((engine for engine in engines if engine.module is model), None)
