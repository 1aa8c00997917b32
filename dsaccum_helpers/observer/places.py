"""Which line of the person's own code made a call."""

from __future__ import annotations

import os
import sys
from types import FrameType

from dsaccum_helpers.job import Source

#: Packages between a person's line and the engine: a call is looked for above them.
_LIBRARIES = ("deepspeed", "torch", "accelerate", "transformers", "trl", "lightning", "pytorch_lightning")
_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_PYTHON = os.path.dirname(os.__file__) + os.sep
_own: dict[str, bool] = {}

Place = tuple[str, int]


def caller(depth: int = 2) -> Place:
    """File and line of the nearest frame that is neither ours nor a library's; of the nearest one if all are."""
    frame: FrameType | None = sys._getframe(depth)
    nearest = frame
    while frame is not None:
        file = frame.f_code.co_filename
        own = _own.get(file)
        if own is None:
            own = _own[file] = _is_own(file)
        if own:
            return file, frame.f_lineno
        frame = frame.f_back
    assert nearest is not None
    return nearest.f_code.co_filename, nearest.f_lineno


def source(place: Place | None) -> list[Source]:
    """The place as a finding names it, relative to the working folder where it lies below; nothing for None."""
    if place is None:
        return []
    file, line = place
    below = os.path.relpath(file) if os.path.isabs(file) else file
    return [Source(file if below.startswith("..") else below, line)]


def shown(place: Place | None) -> str:
    """``train.py:12`` for a sentence, an empty text for None."""
    return f"{os.path.basename(place[0])}:{place[1]}" if place else ""


def _is_own(file: str) -> bool:
    if file.startswith((_HERE, "<frozen")):
        return False
    if file.startswith("<"):  # a cell of a notebook, an interactive line
        return True
    parts = file.replace(os.sep, "/").split("/")
    if "site-packages" in parts or "dist-packages" in parts:
        place = max(i for i, part in enumerate(parts) if part in ("site-packages", "dist-packages"))
        return parts[place + 1] not in _LIBRARIES
    return not file.startswith(_PYTHON)
