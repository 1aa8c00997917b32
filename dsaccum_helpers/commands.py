"""The command line. Each command loads what it needs when it is called."""

from __future__ import annotations

import sys


def main(arguments: list[str] | None = None) -> int:
    """Run ``dsaccum`` with these arguments, those of the command line by default; the exit status."""
    raise NotImplementedError(arguments or sys.argv[1:])
