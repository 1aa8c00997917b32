"""A fault in a rule is shown to its reader as one line; a test must see the fault itself."""

import pytest


@pytest.fixture(autouse=True)
def faults_are_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DSACCUM_DEBUG", "1")
