"""The live observer as a callback of PyTorch Lightning. Imports pytorch_lightning, or its newer name lightning.

from dsaccum_helpers.observer.lightning_callback import WatchCallback

Trainer(strategy="deepspeed_stage_2", callbacks=[WatchCallback()])
"""

from __future__ import annotations

from typing import Any

try:
    from pytorch_lightning import Callback
except ImportError:  # the same library under the name of its newer package
    from lightning.pytorch import Callback

from dsaccum_helpers.observer.callbacks import WatchWhileTraining

__all__ = ["WatchCallback"]


class WatchCallback(WatchWhileTraining, Callback):
    """Watches the engine from ``on_train_start`` to ``on_train_end``; takes the options of ``watch``."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """The strategy has made its engine."""
        self._begin(getattr(trainer.strategy, "deepspeed_engine", None), trainer.train_dataloader)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """The last update is over."""
        self._end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """What was seen up to an error is reported too."""
        self._end()
