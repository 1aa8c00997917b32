"""What a training script does, as the script reader understands it (pure)."""

from __future__ import annotations


class Program:
    """One program: the given scripts and notebooks together."""

    def __init__(self) -> None:
        self.reasons: list[str] = []
