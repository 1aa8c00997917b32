"""What the callbacks for Transformers and Lightning share: one watch from the begin of the training to its end."""

from __future__ import annotations

import warnings
from typing import Any

from dsaccum_helpers.findings import Finding, Report
from dsaccum_helpers.observer.session import Watch, watch


class WatchWhileTraining:
    """Holds the watch of one training; ``options`` are those of ``watch``, without engine and loader.

    ``findings`` and ``report()`` are those of the watch, and empty before the training begins.
    """

    def __init__(self, **options: Any) -> None:
        self.options = options
        self.watch: Watch | None = None

    @property
    def findings(self) -> list[Finding]:
        """What was found so far."""
        return self.watch.findings if self.watch is not None else []

    def report(self) -> Report:
        """What was found so far: shows as text, as HTML in a notebook, and as JSON with ``to_dict``."""
        return self.watch.report() if self.watch is not None else Report()

    def _begin(self, engine: Any, loader: Any) -> None:
        if engine is None:
            warnings.warn(
                "WatchCallback finds no DeepSpeed engine in this training, and watches nothing.", stacklevel=3
            )
            return
        self.watch = watch(engine, loader, **self.options).start()

    def _end(self) -> None:
        if self.watch is not None:
            self.watch.stop()
