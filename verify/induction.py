"""Every invariant holds at the start, and every row keeps it, for any number of instances."""

from __future__ import annotations

import time
from collections.abc import Iterator

import z3
from attrs import define, field

from kvproof.spec.declaration import Declaration
from kvproof.spec.derive import written
from kvproof.spec.expression import (
    Constant,
    Expression,
    FlagParameter,
    Literal,
    Member,
    NumberParameter,
    Truth,
)
from kvproof.spec.rows import Invariant, Transition
from kvproof.spec.walk import AnyCell, cells, rename, speaks_of_before
from kvproof.verify.counterexample import counterexample_to_induction, state_that_breaks
from kvproof.verify.query import Query, Sat
from kvproof.verify.setting import Names, Setting, alias_cases, crowds, guard_of, instances_for
from kvproof.verify.terms import Term
from kvproof.verify.trees import Effects, after, effects_of, simplify, substitute
from kvproof.verify.verdict import Method, Result, Verdict


@define
class Step:
    """One row with one way for its parameters to coincide, ready to be asked about invariants."""

    declaration: Declaration
    row: Transition
    names: Names
    setting: Setting
    effects: Effects
    query: Query = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Assert the guard and, each under a switch of its own, the invariants."""
        self.query = Query(self.setting)
        for name, terms in self.setting.hypotheses().items():
            self.query.assume_switched(name, terms)
        self.query.assume([self.setting.term(part) for part in guard_of(self.row, self.names)])

    def broken(self, invariant: Invariant) -> Term | None:
        """Return the term that says the row breaks the invariant, or None if it cannot touch it."""
        claims = []
        for names in self.setting.choices_for(invariant.formula):
            tree = self.setting.tree(rename(invariant.formula, names))
            claims.append(self.setting.terms.of(simplify(after(tree, self.effects))))
        return z3.Not(z3.And(claims))


def steps_of(declaration: Declaration, row: Transition) -> Iterator[Step]:
    """Yield the row for each way in which its parameters, and all others, can coincide."""
    for names in alias_cases(row):
        effects = effects_of(row.effect, names)
        for instances in crowds(declaration, names):
            yield Step(declaration, row, names, Setting(declaration, instances), effects)


def touches(row: Transition, invariant: Invariant) -> bool:
    """Return whether the row writes a variable that the invariant reads."""
    return bool(written(row) & {cell.variable for cell in cells(invariant.formula)})


def check_row(declaration: Declaration, row: Transition) -> list[Result]:
    """Return, for one row, that it can happen and that it keeps each invariant."""
    steps = list(steps_of(declaration, row))
    results = [_can_happen(row, steps)]
    invariants = [item for item in declaration.all_invariants if not item.consequence]
    results.extend(_keeps(row, steps, invariant) for invariant in invariants)
    return results


def _can_happen(row: Transition, steps: list[Step]) -> Result:
    start = time.process_time()
    answers = [step.query.check() for step in steps]
    verdict = Verdict.UNKNOWN
    if Sat.YES in answers:
        verdict = Verdict.PROVED
    elif all(answer is Sat.NO for answer in answers):
        verdict = Verdict.REFUTED
    return Result(
        f"{row.name} can happen",
        "L2",
        row.name,
        Method.SATISFIABLE,
        verdict,
        time.process_time() - start,
    )


def _keeps(row: Transition, steps: list[Step], invariant: Invariant) -> Result:
    start = time.process_time()
    verdict, reason, queries = Verdict.PROVED, None, []
    if touches(row, invariant):
        for step in steps:
            broken = step.broken(invariant)
            answer = step.query.check(broken)
            queries.append(step.query.last)
            if answer is Sat.YES:
                verdict = Verdict.REFUTED
                reason = counterexample_to_induction(step, invariant)
                break
            if answer is Sat.UNKNOWN:
                verdict = Verdict.UNKNOWN
    return Result(
        f"{row.name} keeps {invariant.name}",
        invariant.property,
        row.name,
        Method.INDUCTION,
        verdict,
        time.process_time() - start,
        reason,
        tuple(queries),
    )


def check_initial(declaration: Declaration) -> list[Result]:
    """Return, for each invariant, that it holds in the initial state."""
    rows = (row for row in declaration.all_invariants if not speaks_of_before(row.formula))
    return [_holds_initially(declaration, row) for row in rows]


def initial_value(declaration: Declaration, cell: AnyCell) -> Expression:
    """Return what the cell holds at the start."""
    variable = declaration.variable[cell.variable]
    if isinstance(variable.initial, Constant):
        return variable.initial
    if variable.enumeration is not None:
        name = variable.enumeration.members[variable.initial][0]
        return Member(variable.enumeration.name, name, variable.initial)
    return Truth(bool(variable.initial)) if variable.flag else Literal(variable.initial)


def _holds_initially(declaration: Declaration, row: Invariant) -> Result:
    start = time.process_time()
    setting = Setting(declaration, instances_for(declaration, {}))
    query = Query(setting)
    claims = []
    for names in setting.choices_for(row.formula):
        tree = setting.tree(rename(row.formula, names))
        start_tree = substitute(tree, lambda cell: initial_value(declaration, cell))
        claims.append(setting.terms.of(simplify(start_tree)))
    answer = query.check(z3.Not(z3.And(claims)))
    reason = state_that_breaks(query, row) if answer is Sat.YES else None
    return Result(
        f"start has {row.name}",
        row.property,
        "",
        Method.INITIAL,
        answer.as_unsatisfiable,
        time.process_time() - start,
        reason,
        (query.last,),
    )


def check_consequences(declaration: Declaration) -> list[Result]:
    """Return, for each declared consequence, that the invariants imply it."""
    rows = (row for row in declaration.invariants if row.consequence)
    return [_follows(declaration, row) for row in rows]


def _follows(declaration: Declaration, row: Invariant) -> Result:
    start = time.process_time()
    setting = Setting(declaration, instances_for(declaration, {}))
    query = Query(setting)
    for name, terms in setting.hypotheses().items():
        query.assume_switched(name, terms)
    answer = query.check(z3.Not(z3.And(setting.instances_of(row))))
    reason = state_that_breaks(query, row) if answer is Sat.YES else None
    return Result(
        f"{row.name} follows",
        row.property,
        "",
        Method.CONSEQUENCE,
        answer.as_unsatisfiable,
        time.process_time() - start,
        reason,
        (query.last,),
    )


def parameters_of(row: Transition) -> list[NumberParameter | FlagParameter]:
    """Return the parameters of a row that are values, not instances."""
    return [p for p in row.parameters if isinstance(p, NumberParameter | FlagParameter)]
