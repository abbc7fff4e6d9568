"""Declarations with one fault in one row: what a proof is worth is what it says about these.

A mutant drops one conjunct of a guard, one assignment of an effect, or the target state. Each must
make some check fail, without any help from the generated core (which would differ, and be caught
for that reason alone).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attrs import evolve, frozen

from kvproof.spec.declaration import Declaration
from kvproof.spec.rows import Transition
from kvproof.spec.text import assignment_text, text
from kvproof.verify.induction import check_row
from kvproof.verify.inverse import check_inverses
from kvproof.verify.measures import check_measures_of_row
from kvproof.verify.progress import check_progress
from kvproof.verify.verdict import Result, Verdict
from kvproof.verify.well_formed import check_well_formed
from kvproof.verify.witness import check_witnesses


@frozen
class Mutant:
    """A row with one fault; `fault` says which."""

    fault: str
    row: Transition


def mutants(row: Transition) -> Iterator[Mutant]:
    """Yield every mutant of a row that lacks one part of it."""
    for place, conjunct in enumerate(row.guard):
        guard = (*row.guard[:place], *row.guard[place + 1 :])
        yield Mutant(f"{row.name} without guard {text(conjunct)}", evolve(row, guard=guard))
    for place, assignment in enumerate(row.effect):
        effect = (*row.effect[:place], *row.effect[place + 1 :])
        yield Mutant(
            f"{row.name} without effect {assignment_text(assignment)}", evolve(row, effect=effect)
        )
    if row.target is not None:
        yield Mutant(f"{row.name} without target {row.target.name}", evolve(row, target=None))


def first_refutation(declaration: Declaration, mutant: Mutant) -> Result | None:
    """Return the first obligation that refutes a mutant, or None if every check is content."""
    faulty = declaration.with_transition(mutant.row)
    row = faulty.complete_transitions[mutant.row.name]
    checks: tuple[Callable[[], list[Result]], ...] = (
        lambda: check_row(faulty, row),
        lambda: check_well_formed(faulty),
        lambda: check_measures_of_row(faulty, row),
        lambda: check_inverses(faulty),
        lambda: check_witnesses(faulty),
        lambda: check_progress(faulty),
    )
    refuted = (item for check in checks for item in check() if item.verdict is Verdict.REFUTED)
    return next(refuted, None)
