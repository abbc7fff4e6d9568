"""What a survivor says about the declaration: the sentence that it forgot."""

from __future__ import annotations

from kvproof.spec.declaration import Declaration
from kvproof.verify.mutation.row_mutants import Mutant
from kvproof.verify.mutation.sameness import Difference, difference
from kvproof.verify.query import Sat


def forgotten(declaration: Declaration, mutant: Mutant) -> str:
    """Return the sentence that no invariant, witness, measure or progress claim of it says.

    A row that can do less than it should is missed only by a claim that it is possible; one that
    can do more, by a claim that it is not.
    """
    name = mutant.row.name
    original = declaration.complete_transitions[name]
    faulty = declaration.with_transition(mutant.row).complete_transitions[name]
    return _sentence(mutant, difference(declaration, original, faulty))


def _sentence(mutant: Mutant, found: Difference) -> str:
    name, part, instead = mutant.row.name, mutant.part, mutant.instead
    besides = f", not only where {instead}" if instead else ""
    if found.other is Sat.YES:
        return f"after {name}: {part}" + (f", and not {instead}" if instead else "")
    if found.less is Sat.YES:
        return f"{name} can happen where {part}{besides}"
    where = f"where {part}" if part else f"in other states than {instead}"
    return f"{name} can happen only {where}" + (
        f", not where {instead}" if part and instead else ""
    )
