"""From what became of each fault to the score: reasons are applied, survivors are explained."""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from kvproof.spec.declaration import Declaration
from kvproof.verify.mutation.fates import Fate, Outcome
from kvproof.verify.mutation.forgotten import forgotten
from kvproof.verify.mutation.justified import Justification, justify
from kvproof.verify.mutation.plan import Choice, Plan
from kvproof.verify.mutation.reasons import REASONS
from kvproof.verify.mutation.row_mutants import Mutant
from kvproof.verify.mutation.score import Score


def scored(
    declaration: Declaration,
    work: Plan,
    choice: Choice,
    outcomes: Sequence[Outcome],
    *,
    seconds: float,
    reasons: Sequence[Justification] = REASONS,
) -> Score:
    """Return the score of the faults that were chosen; reasons for others are left alone."""
    chosen = [_chosen(item, choice) for item in reasons]
    found, wrong = justify(outcomes, [item for part in chosen for item in part])
    survivors = [outcome.fault for outcome in found if outcome.fate is Fate.SURVIVED]
    sentences = {
        fault: forgotten(declaration, mutant)
        for fault in survivors
        if isinstance(mutant := work.mutants[fault], Mutant)
    }
    return Score(found, wrong, sentences, seconds)


def _chosen(reason: Justification, choice: Choice) -> list[Justification]:
    """Return the reason for those of its faults that are chosen, a fault each."""
    pairs = ((row, fault) for row in reason.rows for fault in reason.faults)
    return [
        evolve(reason, rows=(row,), faults=(fault,))
        for row, fault in pairs
        if choice.finds(f"{row} {fault}")
    ]
