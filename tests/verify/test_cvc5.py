"""A second solver: cvc5 reads the text of every query and says the same as z3."""

import sys
from collections.abc import Iterator

import pytest
import z3
from attrs import evolve

from kvproof.spec.declaration import Declaration
from kvproof.spec.rows import Transition
from kvproof.spec.scheduler import SCHEDULER
from kvproof.verify.induction import (
    check_row,
    steps_of,
    touches,
)
from kvproof.verify.lemmas import LEMMAS, check_lemma
from kvproof.verify.query import Sat
from kvproof.verify.run import run, tasks
from kvproof.verify.solvers import Solver, SolverMissingError, chosen, use
from kvproof.verify.verdict import Result, Verdict

ABOUT_NO_SINGLE_ROW = {
    *("start", "consequences", "measures", "inverses", "progress", "load-bearing", "lemmas")
}


def verdicts(results: list[Result]) -> list[tuple[str, Verdict]]:
    """Return what each obligation is called and what became of it."""
    return [(item.name, item.verdict) for item in results]


def everything(declaration: Declaration) -> Iterator[Result]:
    """Yield the result of every obligation of the proofs."""
    for task in tasks(declaration):
        if task.label in {*ABOUT_NO_SINGLE_ROW, *declaration.transition}:
            yield from task.call()


def breaks_nothing(declaration: Declaration, row: Transition) -> set[Sat]:
    """Return the answers to whether some state lets the row break any of what it is to keep.

    One question about all invariants has the answer of one question about each.
    """
    kept = [
        invariant
        for invariant in declaration.all_invariants
        if touches(row, invariant.formula)
        and not invariant.consequence
        and invariant.name not in row.breaks
    ]
    steps = steps_of(declaration, row)
    return {step.query.check(z3.Or([step.broken(item) for item in kept])) for step in steps}


@pytest.fixture
def cvc5() -> None:
    """Skip the test where cvc5 is not installed."""
    pytest.importorskip("cvc5", reason="cvc5 is the optional part kvproof[cvc5]")


def test_z3_decides_unless_another_is_chosen() -> None:
    """The choice of a solver lasts for a block, and an unknown name is refused."""
    assert chosen() is Solver.Z3
    with pytest.raises(ValueError, match="no_solver"), use("no_solver"):
        pass
    assert chosen() is Solver.Z3


def test_a_missing_cvc5_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where cvc5 cannot be imported, the error says which extra to install."""
    monkeypatch.setitem(sys.modules, "cvc5", None)

    with pytest.raises(SolverMissingError, match=r"kvproof\[cvc5\]"), use("cvc5"):
        pass

    assert chosen() is Solver.Z3


@pytest.mark.slow
@pytest.mark.usefixtures("cvc5")
def test_cvc5_agrees_on_every_obligation() -> None:
    """Every obligation of the scheduler that is about more than a row is proved by cvc5 too."""
    work = [task for task in tasks(SCHEDULER) if task.label in ABOUT_NO_SINGLE_ROW]

    second = [item for _, found in run(work, jobs=2, solver="cvc5") for item in found]

    assert {item.verdict for item in second} == {Verdict.PROVED}
    assert len(second) > 600


@pytest.mark.usefixtures("cvc5")
@pytest.mark.parametrize("name", SCHEDULER.complete_transitions)
def test_cvc5_agrees_on_every_row(name: str) -> None:
    """Each row can happen, keeps every invariant that it is to keep, and breaks what it lists."""
    row = SCHEDULER.complete_transitions[name]
    broken = [item for item in SCHEDULER.all_invariants if item.name in row.breaks]
    steps = list(steps_of(SCHEDULER, row))

    with use("cvc5"):
        assert breaks_nothing(SCHEDULER, row) == {Sat.NO}
        assert Sat.YES in {step.query.check() for step in steps}
        for invariant in broken:
            assert Sat.YES in {step.query.check(step.broken(invariant)) for step in steps}


@pytest.mark.usefixtures("cvc5")
def test_cvc5_proves_the_small_declaration(lending: Declaration) -> None:
    """Every method works with cvc5, on the declaration that is small."""
    with use("cvc5"):
        assert {item.verdict for item in everything(lending)} == {Verdict.PROVED}


@pytest.mark.usefixtures("cvc5")
@pytest.mark.parametrize(("row", "guard"), [("grow", 0), ("schedule", 5), ("publish", 3)])
def test_cvc5_refutes_what_z3_refutes(row: str, guard: int) -> None:
    """A row without a conjunct is refuted by both, with a state that z3 finds."""
    declared = SCHEDULER.transition[row]
    kept = declared.guard[:guard] + declared.guard[guard + 1 :]
    mutant = SCHEDULER.with_transition(evolve(declared, guard=kept))
    changed = mutant.complete_transitions[row]

    with use("cvc5"):
        assert Sat.YES in breaks_nothing(mutant, changed)
        second = check_row(mutant, changed)

    assert verdicts(second) == verdicts(check_row(mutant, changed))
    refuted = [item for item in second if item.verdict is Verdict.REFUTED]
    assert refuted
    assert all(item.counterexample and item.counterexample.before for item in refuted)


@pytest.mark.usefixtures("cvc5")
def test_cvc5_needs_the_hypotheses_of_the_lemmas() -> None:
    """No lemma is provable without one of its hypotheses, for cvc5 either."""
    with use("cvc5"):
        found = {check_lemma(item).verdict for lemma in LEMMAS for item in lemma.opposites()}

    assert found == {Verdict.REFUTED}


@pytest.mark.usefixtures("cvc5")
def test_an_answer_that_is_neither_is_unknown() -> None:
    """A script that cvc5 gives no verdict on is unknown, never proved."""
    from kvproof.verify.cvc5_solver import answer

    assert answer("(declare-fun x () Int)(assert (> x 0))") == "unknown"
    assert answer("(declare-fun x () Int)(assert (> x 0))(check-sat)") == "sat"
    assert answer("(declare-fun x () Int)(assert (> x x))(check-sat)") == "unsat"
