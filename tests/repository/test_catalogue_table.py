"""Every entry of the catalogue has all its faces, or says why not; the table in the docs is the one built now."""

import pytest

from dsaccum_helpers.mismatches import CATALOGUE, GROUPS, RUNNABLE
from tools.catalogue_table import FACES, TABLE, YES, faces, table, taught_in

LOOPS = list(GROUPS["Training loop"])


@pytest.mark.parametrize("code", CATALOGUE)
def test_no_entry_has_a_gap(code: str) -> None:
    cells = faces(code)
    assert list(cells) == list(FACES)
    for face, cell in cells.items():
        assert cell == YES or (len(cell) > 40 and face in ("reproduced", "watched", "mended")), (face, cell)


def test_the_committed_table_is_todays() -> None:
    assert TABLE.read_text(encoding="utf-8") == table(), "run: make catalogue"


@pytest.mark.parametrize("code", LOOPS)
def test_every_loop_mistake_is_made_to_happen(code: str) -> None:
    assert code in RUNNABLE
    assert "04_loop_mistakes" in taught_in(code)


def test_an_entry_that_runs_gives_no_reason_why_it_does_not() -> None:
    assert [code for code, entry in RUNNABLE.items() if entry.not_reproduced] == []


@pytest.mark.parametrize("code", CATALOGUE)
def test_an_entry_sends_the_learner_to_a_notebook_that_names_it(code: str) -> None:
    notebook = CATALOGUE[code].learn.removeprefix("notebooks/").partition(".ipynb")[0]
    assert notebook in taught_in(code)
