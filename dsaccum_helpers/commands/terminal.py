"""What the commands that train share: options whose faults are one line, and a last line that shows progress."""

from __future__ import annotations

import argparse
import sys
import time

from dsaccum_helpers.job import JobError

TYPE_CHECKING = False  # type checkers read this name as true; importing it from typing would cost the start-up time
if TYPE_CHECKING:
    from typing import NoReturn

__all__ = ["LastLine", "Parser"]


class Parser(argparse.ArgumentParser):
    """Raises ``JobError`` with one line, where argparse would print its usage and leave."""

    def error(self, message: str) -> NoReturn:
        """What is off, and where the options are listed."""
        raise JobError(f"{message}. Smallest fix: {self.prog} --help shows the options.")


class LastLine:
    """The last line of a terminal, written anew ten times a second; nothing where there is no terminal."""

    def __init__(self) -> None:
        self.shown = 0.0

    def due(self) -> bool:
        """Is it time to show something?"""
        return sys.stderr.isatty() and time.monotonic() - self.shown >= 0.1

    def show(self, text: str) -> None:
        """Write this in place of what stands there."""
        self.shown = time.monotonic()
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Leave the line empty."""
        if self.shown:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
