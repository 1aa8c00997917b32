"""``python -m dsaccum_helpers.commands``: the same as ``dsaccum``."""

from __future__ import annotations

import sys

from dsaccum_helpers.commands import main

if __name__ == "__main__":
    sys.exit(main())
