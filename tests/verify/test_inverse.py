"""Inverses: the undoing row can always follow, and nothing of the undone row is left."""

import pytest
from attrs import evolve

from kvproof.spec.declaration import Declaration
from kvproof.spec.expression import Number, NumberParameter
from kvproof.spec.location import DeclarationError
from kvproof.spec.scheduler import SCHEDULER
from kvproof.verify.inverse import check_inverses
from kvproof.verify.verdict import Method, Verdict


def failures(declaration: Declaration) -> list[str]:
    """Return the names of the inverse obligations that are not proved."""
    return [r.name for r in check_inverses(declaration) if r.verdict is not Verdict.PROVED]


@pytest.mark.rule("4")
def test_what_a_victim_got_in_a_step_is_undone_exactly() -> None:
    """After a row and the one that undoes it, every variable that either writes is what it was."""
    results = check_inverses(SCHEDULER)

    assert failures(SCHEDULER) == []
    assert {item.name for item in results} == {
        "unschedule can follow schedule",
        "unschedule restores scheduled",
        "unschedule restores budget_left",
        "unencode can follow encode",
        "unencode restores items_held",
        "unencode restores item_table",
        "unencode restores size",
        "unencode restores users",
        "unencode restores encoder_free",
        "unencode restores encoder_used",
        "unencode restores encoder_budget_left",
    }
    assert len(results) == 11
    assert {(item.method, item.property) for item in results} == {(Method.INVERSE, "N3")}


def test_a_changed_state_is_restored_too(lending: Declaration) -> None:
    """The state that source and target speak of is compared like any other variable."""
    names = [item.name for item in check_inverses(lending)]

    assert failures(lending) == []
    assert "give restores state" in names


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        (name, assignment.cell.variable)  # type: ignore[attr-defined]
        for name in ("unschedule", "unencode")
        for assignment in SCHEDULER.transition[name].effect
    ],
)
def test_a_forgotten_effect_is_found(name: str, variable: str) -> None:
    """An undoing row that leaves a variable as the first row made it is refuted."""
    row = SCHEDULER.transition[name]
    kept = tuple(a for a in row.effect if getattr(a.cell, "variable", "") != variable)

    mutant = SCHEDULER.with_transition(evolve(row, effect=kept))

    assert failures(mutant) == [f"{name} restores {variable}"]


def test_an_effect_on_every_other_instance_is_found(lending: Declaration) -> None:
    """An undoing row that also changes instances it was not given is refuted."""
    row = lending.transition["give"]
    x = lending.role["borrower"].index("x")
    held = lending.variable["held"][x]
    assert isinstance(held, Number)
    sweeping = evolve(row.effect[0], cell=held, value=held - 1, every=(x,))

    mutant = lending.with_transition(evolve(row, effect=(sweeping, row.effect[1])))

    assert failures(mutant) == ["give restores held"]


def test_an_undoing_row_that_may_be_refused_is_found(lending: Declaration) -> None:
    """An undoing row whose guard can fail right after the first row is refuted with that state."""
    row = lending.transition["give"]
    free = row.effect[1].cell
    assert isinstance(free, Number)
    mutant = lending.with_transition(evolve(row, guard=(free >= 1,)))

    results = {item.name: item for item in check_inverses(mutant)}

    found = results["give can follow take"].counterexample
    assert found is not None
    assert found.row == "take"
    assert dict(found.after)["free[till]"] == "0"


def test_a_parameter_of_its_own_is_refused(lending: Declaration) -> None:
    """An undoing row may only have parameters of the row that it undoes."""
    row = lending.transition["give"]
    amount = NumberParameter("amount", "how many to give")
    mutant = lending.with_transition(evolve(row, parameters=(*row.parameters, amount)))

    with pytest.raises(DeclarationError, match=r"undoes take but has parameters .*'amount'"):
        check_inverses(mutant)
