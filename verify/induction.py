"""Every invariant holds at the start, and every row keeps it, for any number of instances."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

import z3
from attrs import define, frozen

from kvproof.spec.declaration import Declaration
from kvproof.spec.derive import written
from kvproof.spec.expression import (
    Constant,
    Expression,
    FlagParameter,
    Index,
    Literal,
    Member,
    NumberParameter,
    Truth,
)
from kvproof.spec.rows import Invariant, Parameter, Transition
from kvproof.spec.text import text
from kvproof.spec.walk import AnyCell, cells, rename, speaks_of_before
from kvproof.verify.counterexample import counterexample_to_induction, state_that_breaks
from kvproof.verify.query import Query, Sat, any_state
from kvproof.verify.setting import (
    Names,
    Setting,
    alias_cases,
    crowds,
    guard_of,
    instances_for,
)
from kvproof.verify.solvers import conjunction
from kvproof.verify.terms import Term
from kvproof.verify.trees import Effects, after, effects_of, simplify, substitute
from kvproof.verify.verdict import Counterexample, Method, Result, Verdict


@define
class Step:
    """One row with one way for its parameters to coincide, ready to be asked about claims."""

    declaration: Declaration
    row: Transition
    names: Names
    query: Query
    effects: Effects

    @property
    def setting(self) -> Setting:
        """Return the named instances and the terms over them."""
        return self.query.setting

    def before(self, tree: Expression) -> Term:
        """Return what a tree means before the row."""
        return self.setting.term(tree)

    def after(self, tree: Expression) -> Term:
        """Return what a tree means after the row, as a term about the state before it."""
        # What is assigned may itself be about a sum, so that the result is split again.
        result = self.setting.tree(after(self.setting.tree(tree), self.effects))
        return self.setting.terms.of(simplify(result))

    def broken(self, invariant: Invariant) -> Term:
        """Return the term that says the row breaks the invariant."""
        choices = self.setting.choices_for(invariant.formula)
        claims = [self.after(rename(invariant.formula, names)) for names in choices]
        return z3.Not(conjunction(claims))

    def counterexample(self, explanation: str, *read: Expression) -> Counterexample:
        """Return what the row makes of the state found last, in what it writes and in `read`."""
        if self.query.model is None:
            return Counterexample(explanation, self.row.name)
        variables = written(self.row) | {cell.variable for tree in read for cell in cells(tree)}
        trees = [cell for name in sorted(variables) for cell in self.setting.cells_of(name)]
        shown = self.query.shown
        return Counterexample(
            explanation,
            self.row.name,
            tuple((item.name, self._argument(item)) for item in self.row.parameters),
            tuple((text(cell), shown(self.before(cell), text(cell))) for cell in trees),
            tuple((text(cell), shown(self.after(cell), text(cell))) for cell in trees),
        )

    def _argument(self, parameter: Parameter) -> str:
        if isinstance(parameter, Index):
            return f"{parameter.role} {self.names[parameter].name}"
        return self.query.shown(self.before(parameter))


def steps_of(declaration: Declaration, row: Transition) -> Iterator[Step]:
    """Yield the row for each way in which its parameters, and all others, can coincide."""
    for names in alias_cases(row):
        effects = effects_of(row.effect, names)
        for instances in crowds(declaration, names):
            query = any_state(declaration, instances)
            query.assume([query.setting.term(part) for part in guard_of(row, names)])
            yield Step(declaration, row, names, query, effects)


def touches(row: Transition, tree: Expression) -> bool:
    """Return whether the row writes a variable that the tree reads."""
    return bool(written(row) & {cell.variable for cell in cells(tree)})


@frozen
class Outcome:
    """What became of a claim about a row in all the ways in which it can happen."""

    verdict: Verdict = Verdict.PROVED
    reason: Counterexample | None = None
    queries: tuple[str, ...] = ()


def settle(
    steps: Iterable[Step],
    broken: Callable[[Step], Term],
    explain: Callable[[Step], Counterexample],
) -> Outcome:
    """Return whether no step has a state in which the claim is broken; the first that has ends."""
    verdict, queries = Verdict.PROVED, []
    for step in steps:
        answer = step.query.check(broken(step))
        queries.append(step.query.last)
        if answer is Sat.YES:
            return Outcome(Verdict.REFUTED, explain(step), tuple(queries))
        if answer is Sat.UNKNOWN:
            verdict = Verdict.UNKNOWN
    return Outcome(verdict, None, tuple(queries))


def check_row(declaration: Declaration, row: Transition) -> list[Result]:
    """Return, for one row, that it can happen and that it keeps each invariant.

    Of an invariant that the row says it breaks, the opposite is shown.
    """
    return list(results_of_row(declaration, row, declaration.all_invariants))


def results_of_row(
    declaration: Declaration, row: Transition, invariants: Iterable[Invariant]
) -> Iterator[Result]:
    """Yield what `check_row` returns, for the invariants in the order in which they are given."""
    steps = list(steps_of(declaration, row))
    yield _can_happen(row, steps)
    for invariant in invariants:
        if invariant.name in row.breaks:
            yield _breaks(row, steps, invariant)
        elif not invariant.consequence:
            yield _keeps(row, steps, invariant)


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
    outcome = settle(
        steps if touches(row, invariant.formula) else (),
        lambda step: step.broken(invariant),
        lambda step: counterexample_to_induction(step, invariant),
    )
    return Result(
        f"{row.name} keeps {invariant.name}",
        invariant.property,
        row.name,
        Method.INDUCTION,
        outcome.verdict,
        time.process_time() - start,
        outcome.reason,
        outcome.queries,
    )


def _breaks(row: Transition, steps: list[Step], invariant: Invariant) -> Result:
    start = time.process_time()
    answers = [step.query.check(step.broken(invariant)) for step in steps]
    verdict, reason = Verdict.UNKNOWN, None
    if Sat.YES in answers:
        verdict = Verdict.PROVED
    elif all(answer is Sat.NO for answer in answers):
        verdict = Verdict.REFUTED
        reason = Counterexample(f"{row.name} keeps {invariant.name}; do not list it in breaks.")
    return Result(
        f"{row.name} breaks {invariant.name}",
        invariant.property,
        row.name,
        Method.DIFFERENCE,
        verdict,
        time.process_time() - start,
        reason,
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
    answer = query.check(z3.Not(conjunction(claims)))
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
    query = any_state(declaration, instances_for(declaration, {}))
    answer = query.check(z3.Not(conjunction(query.setting.instances_of(row))))
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
