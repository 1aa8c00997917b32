"""Calls of `make` from a test must not inherit what the `make` that runs the tests was told."""

import pytest


@pytest.fixture(autouse=True)
def fresh_make(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MAKEFLAGS", "MAKEOVERRIDES", "MFLAGS", "MAKELEVEL", "PYTHON", "PORT", "ARGS", "DSACCUM_SPACE_NEEDED"):
        monkeypatch.delenv(name, raising=False)
