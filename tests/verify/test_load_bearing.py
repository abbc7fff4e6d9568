"""Load-bearing: an invariant that no proof would miss is refused."""

from attrs import evolve

from kvproof.spec.declaration import Declaration
from kvproof.spec.expression import Number
from kvproof.spec.rows import Invariant
from kvproof.spec.scheduler import SCHEDULER
from kvproof.spec.walk import speaks_of_before
from kvproof.verify.load_bearing import NOBODY, check_load_bearing
from kvproof.verify.verdict import Method, Result, Verdict


def with_invariant(declaration: Declaration, invariant: Invariant) -> Declaration:
    """Return the declaration with one more invariant."""
    return evolve(declaration, invariants=(*declaration.invariants, invariant), checked=False)


def unneeded(declaration: Declaration) -> list[Result]:
    """Return the results for invariants that nothing needs."""
    return [r for r in check_load_bearing(declaration) if r.verdict is not Verdict.PROVED]


def free_cell(declaration: Declaration) -> Number:
    """Return the number of units in the till."""
    cell = declaration.variable["free"][declaration.role["till"]]
    assert isinstance(cell, Number)
    return cell


def test_every_invariant_of_the_scheduler_is_needed() -> None:
    """Some proof fails without each invariant that proofs may assume."""
    results = check_load_bearing(SCHEDULER)

    assert unneeded(SCHEDULER) == []
    assert {item.method for item in results} == {Method.LOAD_BEARING}


def test_only_what_is_assumed_must_be_needed() -> None:
    """Two-state invariants and consequences are assumed by no proof, and so are not asked about."""
    asked = [
        row.name
        for row in SCHEDULER.invariants
        if not row.consequence and not speaks_of_before(row.formula)
    ]

    names = [item.name for item in check_load_bearing(SCHEDULER)]

    assert [name.partition(" ")[0] for name in names] == asked


def test_an_invariant_that_follows_from_others_is_refused(lending: Declaration) -> None:
    """An invariant that the others imply is missed by no proof; the message says what to do."""
    weak = Invariant(
        "till_is_no_larger",
        "The till holds no more than there is.",
        free_cell(lending) <= lending.constants[0],
        property="S1",
    )

    (result,) = unneeded(with_invariant(lending, weak))

    assert result.name == "till_is_no_larger is needed"
    assert result.counterexample is not None
    assert result.counterexample.explanation == NOBODY


def test_of_two_equal_invariants_neither_is_needed(lending: Declaration) -> None:
    """An invariant that is said twice is needed neither here nor there."""
    twice = with_invariant(lending, evolve(lending.invariants[1], name="busy_holds_again"))

    names = [item.name for item in unneeded(twice)]

    assert names == ["busy_holds is needed", "busy_holds_again is needed"]


def test_a_needed_invariant_names_the_proof_that_needs_it(lending: Declaration) -> None:
    """The first proof that fails without an invariant is part of the result."""
    names = [item.name for item in check_load_bearing(lending)]

    assert "conserved is needed: take keeps conserved" in names
