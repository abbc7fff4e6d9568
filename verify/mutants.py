"""Declarations with one fault in one row: what a proof is worth is what it says about these.

A mutant drops one conjunct of a guard, one assignment of an effect, or the target state. Each must
make some check fail, without any help from the generated core (which would differ, and be caught
for that reason alone).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import chain

from attrs import evolve, frozen

from kvproof.spec.declaration import Declaration
from kvproof.spec.expression import Expression
from kvproof.spec.rows import Invariant, Transition
from kvproof.spec.text import assignment_text, text
from kvproof.spec.walk import cells
from kvproof.verify.induction import results_of_row
from kvproof.verify.inverse import check_inverses
from kvproof.verify.measures import check_measures_of_row
from kvproof.verify.progress import check_progress
from kvproof.verify.verdict import Result, Verdict
from kvproof.verify.well_formed import check_well_formed
from kvproof.verify.witness import check_witnesses


@frozen
class Mutant:
    """A row with one fault; `fault` says which, and `about` names the variables that it is about.

    Those only say where to look first.
    """

    fault: str
    row: Transition
    about: frozenset[str] = frozenset()


def mutants(row: Transition) -> Iterator[Mutant]:
    """Yield every mutant of a row that lacks one part of it."""
    for place, conjunct in enumerate(row.guard):
        guard = (*row.guard[:place], *row.guard[place + 1 :])
        fault = f"{row.name} without guard {text(conjunct)}"
        yield Mutant(fault, evolve(row, guard=guard), _read(conjunct))
    for place, assignment in enumerate(row.effect):
        effect = (*row.effect[:place], *row.effect[place + 1 :])
        fault = f"{row.name} without effect {assignment_text(assignment)}"
        yield Mutant(fault, evolve(row, effect=effect), _read(assignment.cell))
    if row.target is not None:
        yield Mutant(f"{row.name} without target {row.target.name}", evolve(row, target=None))


def _read(tree: Expression) -> frozenset[str]:
    return frozenset(cell.variable for cell in cells(tree))


def first_refutation(declaration: Declaration, mutant: Mutant) -> Result | None:
    """Return the first obligation that refutes a mutant, or None if every check is content."""
    faulty = declaration.with_transition(mutant.row)
    results = chain.from_iterable(_checks(faulty, mutant))
    return next((item for item in results if item.verdict is Verdict.REFUTED), None)


def _checks(faulty: Declaration, mutant: Mutant) -> Iterator[Iterable[Result]]:
    """Yield the results of each check; one that comes later is made only if it is asked for."""
    row = faulty.complete_transitions[mutant.row.name]
    yield results_of_row(faulty, row, _nearest_first(faulty, mutant))
    yield check_well_formed(faulty)
    yield check_measures_of_row(faulty, row)
    yield check_inverses(faulty)
    yield check_witnesses(faulty)
    yield check_progress(faulty)


def _nearest_first(faulty: Declaration, mutant: Mutant) -> list[Invariant]:
    """Return the invariants, those that speak of what the fault is about before the others."""
    return sorted(
        faulty.all_invariants,
        key=lambda row: mutant.about.isdisjoint(cell.variable for cell in cells(row.formula)),
    )
