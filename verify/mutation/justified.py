"""Faults that no obligation has to notice, each with the reason in one line.

A fault is named by its text, so that a reason falls away with the part of the row that it is about.
A reason that is not needed is an error: the fault is noticed by now, or no longer exists.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import product

from attrs import evolve, frozen

from kvproof.verify.mutation.fates import Fate, Outcome


@frozen
class Justification:
    """Why some faults of some rows may survive; each fault is one of each of the rows."""

    reason: str
    rows: tuple[str, ...]
    faults: tuple[str, ...]

    def named(self) -> Iterator[str]:
        """Yield the faults as mutants are named."""
        yield from (f"{row} {fault}" for row, fault in product(self.rows, self.faults))


def justify(
    outcomes: Iterable[Outcome], justifications: Sequence[Justification]
) -> tuple[list[Outcome], list[str]]:
    """Return the outcomes with survivors justified, and what is wrong with the justifications.

    One is wrong if it names a fault that is no mutant, or one that is noticed without it.
    """
    reasons = {fault: item.reason for item in justifications for fault in item.named()}
    found, seen, wrong = [], set(), []
    for outcome in outcomes:
        seen.add(outcome.fault)
        if outcome.fault not in reasons:
            found.append(outcome)
        elif outcome.fate is Fate.SURVIVED:
            found.append(evolve(outcome, fate=Fate.JUSTIFIED, by=reasons[outcome.fault]))
        else:
            found.append(outcome)
            wrong.append(f"{outcome.fault}: is {outcome.fate} by {outcome.by}; remove its reason.")
    missing = (fault for fault in reasons if fault not in seen)
    return found, [*wrong, *(f"{fault}: is no mutant; remove its reason." for fault in missing)]
