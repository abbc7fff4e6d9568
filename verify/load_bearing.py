"""Every invariant is needed: some proof fails without it.

An invariant is first dropped from the proofs that the rows keep it: if they all still hold, it
follows from the others. Then it is dropped from every other proof. One that even then is not
missed says nothing that the rest of the declaration does not say. Two-state invariants and
consequences are assumed by no proof, so nothing can miss them.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import z3
from attrs import define, field

from kvproof.spec.declaration import Declaration
from kvproof.spec.rows import Invariant
from kvproof.spec.walk import cells, speaks_of_before
from kvproof.verify.induction import Step, steps_of, touches
from kvproof.verify.measures import could_disobey, disobeyed
from kvproof.verify.progress import Stuck
from kvproof.verify.query import Query, Sat, any_state
from kvproof.verify.setting import instances_for
from kvproof.verify.solvers import conjunction
from kvproof.verify.terms import Term
from kvproof.verify.verdict import Counterexample, Method, Result, Verdict

NOBODY = "nothing needs it; delete it or declare it a consequence"


def check_load_bearing(declaration: Declaration) -> list[Result]:
    """Return, for each invariant that proofs may assume, that some proof fails without it."""
    proofs = Proofs(declaration)
    return [
        _is_load_bearing(proofs, invariant)
        for invariant in declaration.invariants
        if not invariant.consequence and not speaks_of_before(invariant.formula)
    ]


@define
class Proofs:
    """All the proofs of a declaration, each as a query and the claim that must have no model."""

    declaration: Declaration
    _steps: list[Step] = field(factory=list)

    @property
    def steps(self) -> list[Step]:
        """Return every row in every way in which its parameters can coincide."""
        if not self._steps:
            rows = self.declaration.complete_transitions.values()
            self._steps = [step for row in rows for step in steps_of(self.declaration, row)]
        return self._steps

    def of(self, invariant: Invariant) -> Iterator[tuple[str, Query, Term]]:
        """Yield the proofs that the rows keep an invariant."""
        for step in self.steps:
            if touches(step.row, invariant.formula):
                yield f"{step.row.name} keeps {invariant.name}", step.query, step.broken(invariant)

    def of_all_but(self, invariant: Invariant) -> Iterator[tuple[str, Query, Term]]:
        """Yield every other proof; first those of invariants that speak of the same variables."""
        yield from self._of_consequences()
        others = (row for row in self.declaration.all_invariants if not row.consequence)
        for other in sorted(others, key=lambda other: -_shared(invariant, other)):
            if other is not invariant:
                yield from self.of(other)
        yield from self._of_measures()
        yield from self._of_progress()

    def _of_consequences(self) -> Iterator[tuple[str, Query, Term]]:
        query = any_state(self.declaration, instances_for(self.declaration, {}))
        for row in self.declaration.invariants:
            if row.consequence:
                claim = z3.Not(conjunction(query.setting.instances_of(row)))
                yield f"{row.name} follows", query, claim

    def _of_measures(self) -> Iterator[tuple[str, Query, Term]]:
        for step in self.steps:
            for measure in self.declaration.measures:
                if could_disobey(step.row, measure):
                    yield measure.name, step.query, disobeyed(step, measure)

    def _of_progress(self) -> Iterator[tuple[str, Query, Term]]:
        for progress in self.declaration.progress:
            yield progress.name, Stuck(self.declaration, progress).query(), z3.BoolVal(val=True)


def _shared(one: Invariant, other: Invariant) -> int:
    return len(_variables(one) & _variables(other))


def _variables(invariant: Invariant) -> set[str]:
    return {cell.variable for cell in cells(invariant.formula)}


def _is_load_bearing(proofs: Proofs, invariant: Invariant) -> Result:
    start = time.process_time()
    missed = _first_that_fails(proofs.of(invariant), invariant) or _first_that_fails(
        proofs.of_all_but(invariant), invariant
    )
    return Result(
        f"{invariant.name} is needed" + (f": {missed}" if missed else ""),
        invariant.property,
        "",
        Method.LOAD_BEARING,
        Verdict.PROVED if missed else Verdict.REFUTED,
        time.process_time() - start,
        None if missed else Counterexample(NOBODY),
    )


def _first_that_fails(
    proofs: Iterator[tuple[str, Query, Term]], invariant: Invariant
) -> str | None:
    for name, query, claim in proofs:
        if query.check(claim, without=invariant.name) is Sat.YES:
            return name
    return None
