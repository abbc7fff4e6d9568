"""Every part of every row is needed: without it, some proof fails."""

import pytest

from kvproof.spec.scheduler import SCHEDULER
from kvproof.verify.mutants import Mutant, first_refutation, mutants

MUTANTS = [mutant for row in SCHEDULER.transitions for mutant in mutants(row)]


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.fault)
def test_dropping_any_part_of_a_row_is_refuted(mutant: Mutant) -> None:
    """A row that lacks one conjunct, one assignment or its target state breaks an obligation."""
    refutation = first_refutation(SCHEDULER, mutant)

    assert refutation is not None, f"nothing notices {mutant.fault}"


def test_whole_rows_are_not_refuted() -> None:
    """The checks that find mutants find nothing wrong with the rows as they are declared."""
    row = SCHEDULER.transition["preempt"]

    assert first_refutation(SCHEDULER, Mutant("no fault", row)) is None
