"""Which obligation notices a faulty row: the likely ones are asked first, idle ones not at all.

No obligation is about the generated core: that would differ from a faulty declaration, and notice
it for that reason alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from attrs import evolve

from kvproof.spec.declaration import Declaration
from kvproof.spec.rows import Invariant
from kvproof.spec.walk import cells
from kvproof.verify.induction import results_of_row
from kvproof.verify.inverse import check_inverses
from kvproof.verify.measures import check_measures_of_row
from kvproof.verify.mutation.row_mutants import Mutant
from kvproof.verify.mutation.sameness import Difference
from kvproof.verify.progress import check_progress
from kvproof.verify.query import Sat
from kvproof.verify.verdict import Result, Verdict
from kvproof.verify.well_formed import check_well_formed
from kvproof.verify.witness import check_witnesses

# What can be said of a row before it has been compared with its original.
UNCOMPARED = Difference(Sat.UNKNOWN, Sat.UNKNOWN, Sat.UNKNOWN)


def first_refutation(
    declaration: Declaration, mutant: Mutant, difference: Difference = UNCOMPARED
) -> Result | None:
    """Return the first obligation that refutes a mutant; else one that is unknown, or None.

    An obligation that cannot fail because of the difference is not asked: it is proved of the
    original, and what it says of the mutant follows.
    """
    unknown = None
    for result in chain.from_iterable(_checks(declaration, mutant, difference)):
        if result.verdict is Verdict.REFUTED:
            return result
        unknown = result if result.verdict is Verdict.UNKNOWN else unknown
    return unknown


def _checks(
    declaration: Declaration, mutant: Mutant, difference: Difference
) -> Iterator[Iterable[Result]]:
    """Yield the results of each check; one that comes later is made only if it is asked for."""
    faulty = _about(declaration.with_transition(mutant.row), mutant.row.name)
    row = faulty.complete_transitions[mutant.row.name]
    can_do_more = Sat.NO is not difference.more or Sat.NO is not difference.other
    can_stop_a_run = Sat.NO is not difference.less or Sat.NO is not difference.other
    if can_do_more:
        yield results_of_row(faulty, row, _nearest_first(faulty, mutant))
    if can_stop_a_run:
        yield check_witnesses(faulty)
    if not can_do_more:
        broken = [item for item in faulty.all_invariants if item.name in row.breaks]
        yield results_of_row(faulty, row, broken)
    yield check_well_formed(declaration.with_transition(mutant.row))
    if can_do_more:
        yield check_measures_of_row(faulty, row)
    if any(mutant.row.name in {item.name, item.undoes} for item in faulty.transitions):
        yield check_inverses(faulty)
    if difference.less is not Sat.NO:
        yield check_progress(faulty)


def _about(faulty: Declaration, name: str) -> Declaration:
    """Return the declaration with those witnesses and progress claims that use the row.

    Runs are only executed: that each step keeps the invariants is asked of the row as such.
    """
    uses = (item for item in faulty.witnesses if any(step[0] == name for step in item.steps))
    witnesses = (evolve(item, unsafe=True) for item in uses)
    progress = (item for item in faulty.progress if name in item.rows)
    return evolve(faulty, witnesses=tuple(witnesses), progress=tuple(progress), checked=False)


def _nearest_first(faulty: Declaration, mutant: Mutant) -> list[Invariant]:
    """Return the invariants, those that speak of what the fault is about before the others."""
    return sorted(
        faulty.all_invariants,
        key=lambda row: mutant.about.isdisjoint(cell.variable for cell in cells(row.formula)),
    )
