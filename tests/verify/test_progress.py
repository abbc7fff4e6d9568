"""Progress: no stuck state, for any number of instances, and what the proof of that rests on."""

import pytest
from attrs import evolve

from kvproof.spec.declaration import Declaration
from kvproof.spec.expression import Formula, all_of, no
from kvproof.spec.roles import TOKEN_BUDGET, TOTAL_BLOCKS, pool, request
from kvproof.spec.rows import Progress
from kvproof.spec.scheduler import SCHEDULER
from kvproof.spec.variables import free, held
from kvproof.verify.progress import Stuck, check_progress
from kvproof.verify.verdict import Method, Result, Verdict

FRESH = SCHEDULER.progress[0]


def only(declaration: Declaration, progress: Progress) -> Declaration:
    """Return the declaration with this progress claim only."""
    return evolve(declaration, progress=(progress,), checked=False)


def verdict(declaration: Declaration, progress: Progress) -> Verdict:
    """Return the verdict on a progress claim."""
    return proof(declaration, progress).verdict


def proof(declaration: Declaration, progress: Progress) -> Result:
    """Return the result of a progress claim, without that of its vacuity check."""
    return check_progress(only(declaration, progress))[1]


def test_the_scheduler_never_gets_stuck() -> None:
    """Every progress claim is proved, and speaks of states that exist."""
    results = check_progress(SCHEDULER)

    assert {item.verdict for item in results} == {Verdict.PROVED}
    assert [item.method for item in results] == [Method.SATISFIABLE, Method.PROGRESS] * len(
        SCHEDULER.progress
    )
    assert len(results) >= 12


@pytest.mark.parametrize(
    ("progress", "row"),
    [(progress, row) for progress in SCHEDULER.progress for row in progress.rows],
    ids=lambda value: getattr(value, "name", value),
)
def test_every_listed_row_is_needed(progress: Progress, row: str) -> None:
    """Without any one of the rows that a claim lists, some state is stuck."""
    fewer = evolve(progress, rows=tuple(name for name in progress.rows if name != row))

    assert verdict(SCHEDULER, fewer) is Verdict.REFUTED


@pytest.mark.parametrize(
    "name", ["fits_an_empty_pool", "only_running_holds", "references_are_counted", "conservation"]
)
def test_the_claim_fails_without_an_invariant(name: str) -> None:
    """Without an invariant that the argument needs, some state is stuck."""
    invariants = tuple(row for row in SCHEDULER.invariants if row.name != name)
    weaker = evolve(SCHEDULER, invariants=invariants, checked=False)

    assert verdict(weaker, FRESH) is Verdict.REFUTED


@pytest.mark.parametrize(
    ("row", "extra"),
    [
        ("preempt", held[request.index("victim")] >= 2),
        ("admit", free[pool] > TOTAL_BLOCKS),
        ("schedule", TOKEN_BUDGET >= 2),
    ],
    ids=["preempt", "admit", "schedule"],
)
def test_a_guard_that_refuses_too_much_is_found(row: str, extra: Formula) -> None:
    """A row that asks for a little too much leaves a state in which nothing can happen."""
    declared = SCHEDULER.transition[row]

    mutant = SCHEDULER.with_transition(evolve(declared, guard=(*declared.guard, extra)))

    assert verdict(mutant, FRESH) is Verdict.REFUTED


def test_a_stuck_state_is_shown(lending: Declaration) -> None:
    """A claim that forgets a row is refuted with a state in which the others are refused."""
    result = proof(lending, evolve(lending.progress[0], rows=("take",)))

    assert result.counterexample is not None
    assert result.counterexample.explanation == "none of take can happen in this state"
    cells = dict(result.counterexample.before)
    assert cells["free[till]"] == "0" or cells["state[b]"] == "BUSY"


def test_a_claim_about_no_state_is_refuted(lending: Declaration) -> None:
    """A claim whose condition no state satisfies is proved of nothing, and so refuted."""
    when = lending.progress[0].when
    claim = evolve(lending.progress[0], when=all_of(when, no(when)))

    vacuous, stuck = check_progress(only(lending, claim))

    assert stuck.verdict is Verdict.PROVED
    assert vacuous.verdict is Verdict.REFUTED
    assert vacuous.counterexample is not None
    assert "no state satisfies" in vacuous.counterexample.explanation


def test_totals_have_witnesses() -> None:
    """A request that holds blocks is named, and then the block and the fence's that it holds."""
    stuck = Stuck(SCHEDULER, FRESH)

    holder = stuck.witnesses["all request held[•] []"]
    fence = stuck.witnesses["all fence fenced[•] []"]
    assert stuck.witnesses[f"all block block_table[{holder.name}, •] []"].role == "block"
    assert stuck.witnesses[f"all block fence_table[{fence.name}, •] []"].role == "block"
    assert sum(map(len, stuck.instances.values())) < 40
