"""The live observer in a program: switched on in the process that runs it, and asked at the end."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from dsaccum_helpers.mismatches.framework_runs import FrameworkRun

#: What watches in this process; ``None`` where nobody is to watch.
WATCHES: list[Any] | None = None


def switch_on() -> None:
    """From now on the programs of this process are watched."""
    global WATCHES
    WATCHES = []


@contextlib.contextmanager
def watching(engine: Any, run: FrameworkRun) -> Iterator[None]:
    """Watch this engine, where somebody wants it watched, and tell the observer the batch that is meant."""
    if WATCHES is None:
        yield
        return
    from dsaccum_helpers.observer import watch

    with watch(engine, wanted_train_batch_size=run.train_batch_size, quiet=True) as seen:
        WATCHES.append(seen)
        yield


def watch_callbacks(framework: str, run: FrameworkRun) -> list[Any]:
    """The callback of ``transformers`` or ``lightning`` that watches, or none."""
    if WATCHES is None:
        return []
    from importlib import import_module

    module = import_module(f"dsaccum_helpers.observer.{framework}_callback")
    made = module.WatchCallback(wanted_train_batch_size=run.train_batch_size, quiet=True)
    WATCHES.append(made)
    return [made]


def findings() -> list[dict[str, Any]]:
    """What the observers of this process have found, as in a JSON report."""
    return [finding.to_dict() for one in WATCHES or () for finding in one.findings]
