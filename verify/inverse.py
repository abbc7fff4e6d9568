"""A row that undoes another can always follow it, and leaves nothing of it."""

from __future__ import annotations

import time

import z3

from kvproof.spec.declaration import Declaration
from kvproof.spec.derive import written
from kvproof.spec.expression import Index
from kvproof.spec.location import DeclarationError
from kvproof.spec.rows import Parameter, Transition
from kvproof.spec.walk import AnyCell
from kvproof.verify.induction import Outcome, Step, settle, steps_of
from kvproof.verify.setting import Names, guard_of
from kvproof.verify.solvers import conjunction
from kvproof.verify.terms import Term
from kvproof.verify.trees import after, effects_of
from kvproof.verify.verdict import Method, Result

PROPERTY = "N3"


def check_inverses(declaration: Declaration) -> list[Result]:
    """Return, for each row that undoes another, that it always can, and that it does."""
    return [
        result
        for row in declaration.complete_transitions.values()
        if row.undoes is not None
        for result in check_inverse(declaration, row, row.undoes)
    ]


def check_inverse(declaration: Declaration, row: Transition, undone: str) -> list[Result]:
    """Return that `row` can follow the row `undone`, and restores each variable either writes."""
    first = declaration.complete_transitions[undone]
    _refuse_strangers(row, first)
    steps = list(steps_of(declaration, first))
    results = [_can_follow(row, steps)]
    variables = (v.name for v in declaration.variables if v.name in written(row) | written(first))
    results.extend(_restores(row, steps, variable) for variable in variables)
    return results


def _refuse_strangers(row: Transition, first: Transition) -> None:
    known = {_kind(parameter) for parameter in first.parameters}
    strangers = [p.name for p in row.parameters if _kind(p) not in known]
    if strangers:
        raise DeclarationError(
            row.where,
            f"{row.name} undoes {first.name} but has parameters of its own: {strangers};"
            f" give it only parameters of {first.name}.",
        )


def _kind(parameter: Parameter) -> tuple[type, str, str]:
    return type(parameter), parameter.name, getattr(parameter, "role", "")


def _can_follow(row: Transition, steps: list[Step]) -> Result:
    start = time.process_time()
    outcome = settle(
        steps,
        lambda step: z3.Not(conjunction(map(step.after, guard_of(row, _names(row, step))))),
        lambda step: step.counterexample(f"{row.name} cannot follow {step.row.name} here"),
    )
    return _result(row, f"{row.name} can follow {row.undoes}", outcome, start)


def _restores(row: Transition, steps: list[Step], variable: str) -> Result:
    start = time.process_time()
    outcome = settle(
        steps,
        lambda step: z3.Or([_differs(row, step, c) for c in step.setting.cells_of(variable)]),
        lambda step: step.counterexample(f"{row.name} does not give {variable} its value back"),
    )
    return _result(row, f"{row.name} restores {variable}", outcome, start)


def _differs(row: Transition, step: Step, cell: AnyCell) -> Term:
    """Return the term that says a cell is not after both rows what it was before them."""
    second = effects_of(row.effect, _names(row, step))
    return step.after(after(cell, second)) != step.before(cell)


def _names(row: Transition, step: Step) -> Names:
    """Return the instances that the undoing row is given: those of the same names."""
    acting = {parameter for parameter in row.parameters if isinstance(parameter, Index)}
    return {index: name for index, name in step.names.items() if index in acting}


def _result(row: Transition, name: str, outcome: Outcome, start: float) -> Result:
    return Result(
        name,
        PROPERTY,
        row.name,
        Method.INVERSE,
        outcome.verdict,
        time.process_time() - start,
        outcome.reason,
        outcome.queries,
    )
