"""Every measure stays at or above zero, falls by the rows that lower it, and rises by no other."""

from __future__ import annotations

import time

from kvproof.spec.declaration import Declaration
from kvproof.spec.rows import Measure, Transition
from kvproof.verify.induction import Step, settle, steps_of, touches
from kvproof.verify.query import Sat, any_state
from kvproof.verify.setting import instances_for
from kvproof.verify.terms import Term
from kvproof.verify.verdict import Counterexample, Method, Result


def check_measures(declaration: Declaration) -> list[Result]:
    """Return, for each measure, its bound, and what each row does to it."""
    results = [_never_below_zero(declaration, measure) for measure in declaration.measures]
    for row in declaration.complete_transitions.values():
        results.extend(check_measures_of_row(declaration, row))
    return results


def check_measures_of_row(declaration: Declaration, row: Transition) -> list[Result]:
    """Return, for each measure that the row may not raise, that it obeys."""
    steps = list(steps_of(declaration, row))
    return [
        _obeys(row, steps, measure)
        for measure in declaration.measures
        if row.name not in measure.raised_by or row.name in measure.lowered_by
    ]


def could_disobey(row: Transition, measure: Measure) -> bool:
    """Return whether there is something to prove: the frame alone does not settle it."""
    if row.name in measure.lowered_by:
        return True
    return row.name not in measure.raised_by and touches(row, measure.value)


def disobeyed(step: Step, measure: Measure) -> Term:
    """Return the term that says the row does to the measure what it must not."""
    before, after = step.before(measure.value), step.after(measure.value)
    return after >= before if step.row.name in measure.lowered_by else after > before


def _never_below_zero(declaration: Declaration, measure: Measure) -> Result:
    start = time.process_time()
    query = any_state(declaration, instances_for(declaration, {}))
    answer = query.check(query.setting.term(measure.value) < 0)
    reason = None
    if answer is Sat.YES:
        reason = Counterexample(f"{measure.name} can be below zero", before=query.values())
    return Result(
        f"{measure.name} is never below zero",
        measure.property,
        "",
        Method.MEASURE,
        answer.as_unsatisfiable,
        time.process_time() - start,
        reason,
        (query.last,),
    )


def _obeys(row: Transition, steps: list[Step], measure: Measure) -> Result:
    start = time.process_time()
    outcome = settle(
        steps if could_disobey(row, measure) else (),
        lambda step: disobeyed(step, measure),
        lambda step: _explained(step, measure),
    )
    return Result(
        f"{row.name} {'lowers' if row.name in measure.lowered_by else 'does not raise'}"
        f" {measure.name}",
        measure.property,
        row.name,
        Method.MEASURE,
        outcome.verdict,
        time.process_time() - start,
        outcome.reason,
        outcome.queries,
    )


def _explained(step: Step, measure: Measure) -> Counterexample:
    duty = "must lower" if step.row.name in measure.lowered_by else "must not raise"
    sentence = f"{step.row.name} {duty} {measure.name}"
    if step.query.model is not None:
        before = step.query.shown(step.before(measure.value))
        after = step.query.shown(step.after(measure.value))
        sentence = f"{sentence}, which is {before} before the row and {after} after it"
    return step.counterexample(sentence, measure.value)
