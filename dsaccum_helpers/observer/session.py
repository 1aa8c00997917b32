"""One watch over one engine: from the first hook to the report."""

from __future__ import annotations

from types import TracebackType
from typing import Any

from dsaccum_helpers.findings import Finding, Report


def watch(
    engine: Any,
    loader: Any = None,
    *,
    wanted_train_batch_size: int | None = None,
    sample_every: int = 1,
    json: Any = None,
    quiet: bool = False,
) -> Watch:
    """Observe a live DeepSpeed engine; use as a context manager, or ``start`` and ``stop`` what it returns."""
    return Watch(
        engine,
        loader,
        wanted_train_batch_size=wanted_train_batch_size,
        sample_every=sample_every,
        json=json,
        quiet=quiet,
    )


class Watch:
    """What is seen of one engine between ``start`` and ``stop``."""

    def __init__(
        self,
        engine: Any,
        loader: Any = None,
        *,
        wanted_train_batch_size: int | None = None,
        sample_every: int = 1,
        json: Any = None,
        quiet: bool = False,
    ) -> None:
        self.engine, self.loader = engine, loader
        self.wanted_train_batch_size, self.sample_every = wanted_train_batch_size, sample_every
        self.json, self.quiet = json, quiet
        self.findings: list[Finding] = []

    def start(self) -> Watch:
        """Hang the hooks in; nothing happens where they hang already."""
        return self

    def stop(self) -> None:
        """Take the hooks out, print the summary once on rank 0; nothing happens where they are out already."""

    def report(self) -> Report:
        """What was found so far: shows as text, as HTML in a notebook, and as JSON with ``to_dict``."""
        return Report(self.findings)

    def __enter__(self) -> Watch:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
