"""One real comparison, measured once a session; most tests replay it, and no recording is shipped."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dsaccum_helpers import Comparison, Setting, compare
from dsaccum_helpers.panels import ComparePanel
from dsaccum_helpers.training import RecordedRunner, Runner

CODES = ("batch-product-mismatch", "loss-divided-twice", "scheduler-unit")
SETTING = Setting(optimizer_steps=12)


@pytest.fixture(scope="session")
def runner() -> Iterator[Runner]:
    runner = Runner()
    yield runner
    runner.close()


@pytest.fixture(scope="session")
def measured(runner: Runner) -> Comparison:
    """The right run, the oracle and three mismatches, one of them refused; measured with DeepSpeed just now."""
    comparison = compare(*CODES, setting=SETTING, runner=runner, oracle=True)
    assert [result.ended for result in comparison.results] == ["finished"] * 2 + ["refused"] + ["finished"] * 2
    return comparison


MakePanel = Callable[..., ComparePanel]


@pytest.fixture
def make_panel(measured: Comparison) -> Iterator[MakePanel]:
    """A panel that replays, with so many seconds before each point; no thread of it is left behind."""
    panels: list[ComparePanel] = []

    def make(delay: float = 0.0, runner: object = None, mismatches: tuple[str, ...] = CODES) -> ComparePanel:
        panel = ComparePanel(SETTING, mismatches, runner or RecordedRunner(measured.results, delay))
        panels.append(panel)
        return panel

    yield make
    for panel in panels:
        if panel.press is not None:
            panel.press.stop()
            assert panel.press.wait(20.0)
