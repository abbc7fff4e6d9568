"""Measures: bounded below, lowered by the rows that say so, raised by no other."""

import pytest
from attrs import evolve

from kvproof.spec.declaration import Declaration
from kvproof.spec.expression import Number
from kvproof.spec.rows import Measure
from kvproof.spec.scheduler import SCHEDULER
from kvproof.verify.measures import check_measures, check_measures_of_row
from kvproof.verify.verdict import Method, Result, Verdict


def refuted(results: list[Result]) -> dict[str, Result]:
    """Return the results that are not proved, by name."""
    return {item.name: item for item in results if item.verdict is not Verdict.PROVED}


def with_measure(declaration: Declaration, measure: Measure) -> Declaration:
    """Return the declaration with this measure only."""
    return evolve(declaration, measures=(measure,), checked=False)


def test_every_measure_of_the_scheduler_falls_as_declared() -> None:
    """Every row lowers the measures that it says it lowers, and raises none but the named."""
    results = check_measures(SCHEDULER)

    assert refuted(results) == {}
    assert {item.method for item in results} == {Method.MEASURE}
    lowering = [item for item in results if " lowers " in item.name]
    assert len(lowering) == sum(len(measure.lowered_by) for measure in SCHEDULER.measures)


def test_a_row_has_an_obligation_for_every_measure_that_it_may_not_raise() -> None:
    """What is to be shown of a row is every measure that does not name it as raising."""
    names = {
        item.name
        for item in check_measures_of_row(SCHEDULER, SCHEDULER.complete_transitions["begin"])
    }

    assert "begin does not raise fenced_blocks" in names
    assert not any("budget" in name for name in names)


@pytest.mark.parametrize("measure", [m for m in SCHEDULER.measures if m.raised_by])
def test_a_measure_that_hides_a_row_that_raises_it_is_refuted(measure: Measure) -> None:
    """Each row that a measure names as raising it does raise it."""
    for name in measure.raised_by:
        hiding = evolve(measure, raised_by=tuple(row for row in measure.raised_by if row != name))
        changed = with_measure(SCHEDULER, hiding)
        results = check_measures_of_row(changed, changed.complete_transitions[name])
        assert set(refuted(results)) == {f"{name} does not raise {measure.name}"}


def test_a_row_that_does_not_lower_its_measure_is_refuted(lending: Declaration) -> None:
    """A row that leaves a measure as it is does not lower it, and the state found says so."""
    row = lending.transition["take"]
    changed = lending.with_transition(evolve(row, effect=row.effect[:1]))

    result = refuted(check_measures(changed))["take lowers units_in"]

    assert result.counterexample is not None
    assert result.counterexample.row == "take"
    assert result.counterexample.arguments == (("b", "borrower b"),)
    before, after = dict(result.counterexample.before), dict(result.counterexample.after)
    assert before["free[till]"] == after["free[till]"]
    assert "before the row" in result.counterexample.explanation


def test_a_measure_below_zero_is_refuted(lending: Declaration) -> None:
    """A measure that a state can bring below zero is refuted with that state."""
    free = lending.measures[0].value
    changed = with_measure(lending, evolve(lending.measures[0], value=free - 1))

    result = refuted(check_measures(changed))["units_in is never below zero"]

    assert result.counterexample is not None
    assert dict(result.counterexample.before)["free[till]"] == "0"


def test_a_sum_falls_with_the_term_of_the_acting_instance(lending: Declaration) -> None:
    """A measure that is a total is split, so a row that lowers two terms less is told apart."""
    row = lending.transition["give"]
    cell = row.effect[0].cell
    assert isinstance(cell, Number)
    idle = evolve(row, effect=(cell.becomes(cell), row.effect[1]))

    assert "give lowers units_out" in refuted(check_measures(lending.with_transition(idle)))
