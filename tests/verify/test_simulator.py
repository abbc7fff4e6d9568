"""The simulator: what a row does to a state, what it refuses, and what it says of a state."""

import pytest

from kvproof.spec.expression import Formula, all_of, any_of, choose, count_if, no, total
from kvproof.spec.roles import BLOCK_SIZE, block, fence, pool, request, step
from kvproof.spec.scheduler import SCHEDULER
from kvproof.spec.statuses import RUNNING, WAITING
from kvproof.spec.variables import block_table, free, held, known, queued, status, until
from kvproof.verify.simulator import Refused, Simulator

SMALL = {
    "BLOCK_SIZE": 2,
    "TOTAL_BLOCKS": 3,
    "TOKEN_BUDGET": 4,
    "MAX_RUNNING": 2,
    "WATERMARK": 0,
    "MAX_DRAFTS": 2,
    "LOOKAHEAD": 0,
    "ENCODER_SLOTS": 3,
    "ENCODER_BUDGET": 2,
}

first = request.index("0")
second = request.index("1")
x = request.index("x")
y = block.index("y")


def new_run() -> Simulator:
    """Return a run of two requests on three blocks of two tokens."""
    return Simulator(SCHEDULER, SMALL, {"request": 2, "fence": 2})


def run_with_a_table() -> Simulator:
    """Return a run in which request 0 holds blocks 1 and 3, request 1 waits, and a step is open."""
    run = new_run()
    run.arrive(0, prompt=3, max_tokens=2, most=4)
    run.arrive(1, prompt=1, max_tokens=1, most=1)
    run.begin(throttled=False)
    run.admit(0, shared=0)
    run.grow(0, 1)
    run.grow(0, 3)
    return run


def test_row_changes_the_cells_it_names() -> None:
    """A row that is allowed has exactly the effect that it declares."""
    run = run_with_a_table()
    assert (run.value("free"), run.value("referenced"), run.value("held", 0)) == (1, 2, 2)
    assert [run.value("queued", block_id) for block_id in (1, 2, 3)] == [False, True, False]
    assert [run.value("block_table", 0, block_id) for block_id in (1, 2, 3)] == [1, 0, 1]
    assert run.value("status", 0) == "RUNNING"


def test_refused_row_changes_nothing() -> None:
    """A row whose guard is false leaves every cell as it was, in both ways to call it."""
    run = run_with_a_table()
    earlier = run.snapshot()
    assert not run.run("grow", 0, 2)
    with pytest.raises(Refused):
        run.grow(0, 2)
    assert run.snapshot() == earlier


def test_refusal_says_what_was_false() -> None:
    """A refusal names the call, the first false part of the guard, and what its cells hold."""
    with pytest.raises(Refused) as refusal:
        run_with_a_table().grow(0, 1)
    assert str(refusal.value) == "grow(0, 1) is refused: queued[b] is false; queued[1] = false"
    assert refusal.value.seen == {"queued[1]": "false"}


def test_refusal_shows_members_by_name_and_sums_by_their_terms() -> None:
    """A refusal shows a state as RUNNING, and for a sum every cell that is added."""
    run = run_with_a_table()
    with pytest.raises(Refused, match=r"status\[0\] = RUNNING"):
        run.admit(0, shared=0)
    run.schedule(0, tokens=3)
    run.dispatch()
    run.come_back()
    with pytest.raises(Refused, match=r"status\[0\] = RUNNING.*, status\[1\] = WAITING.*"):
        run.process()


def test_effects_are_simultaneous() -> None:
    """A table that moves behind a fence is read before it is emptied."""
    run = run_with_a_table()
    run.abort(0, 1)
    assert [run.value("fence_table", 1, block_id) for block_id in (1, 2, 3)] == [1, 0, 1]
    assert [run.value("block_table", 0, block_id) for block_id in (1, 2, 3)] == [0, 0, 0]
    assert (run.value("fenced", 1), run.value("held", 0)) == (2, 0)


def test_row_over_every_instance_reaches_all_of_them() -> None:
    """Dispatching a step counts the tokens of each request in it, and of no other."""
    run = run_with_a_table()
    run.admit(1, shared=0)
    run.grow(1, 2)
    run.schedule(0, tokens=2)
    run.schedule(1, tokens=1)
    run.dispatch()
    assert [run.value("computed", r) for r in (0, 1)] == [2, 1]
    assert [run.value("last_frame", r) for r in (0, 1)] == [1, 1]
    assert [run.value("scheduled", r) for r in (0, 1)] == [0, 0]


def test_ghosts_are_simulated() -> None:
    """What only the proofs know is kept too: where a block was put, and who touched it when."""
    run = run_with_a_table()
    run.schedule(0, tokens=1)
    run.dispatch()
    assert [run.value("place", 0, block_id) for block_id in (1, 3)] == [0, 1]
    assert [run.value("touched", 0, block_id) for block_id in (1, 2, 3)] == [1, 0, 1]
    assert run.value("touched", 1, 1) == 0


def test_witness_has_the_values_computed_by_hand() -> None:
    """The declared run with a preemption has, where it preempts and at its end, known values."""
    witness = next(w for w in SCHEDULER.witnesses if w.name.startswith("a_preempted_request"))
    run = Simulator(SCHEDULER, witness.constants, {"request": 2, "fence": 2})
    seen = []
    for row, *arguments in witness.steps:
        assert run.run(str(row), *(int(value) for value in arguments)), row
        if row in {"preempt", "finish_length"}:
            counts = tuple(run.value(name) for name in ("free", "referenced", "running", "waiting"))
            seen.append((counts, run.value("known", 0), run.value("known", 1)))
    # Preempted: both blocks of request 0 and the fenced block are referenced, none is free.
    assert seen[0] == ((0, 3, 1, 1), 3, 3)
    # Request 0 ends with 5 tokens; block 2 of the victim has come back.
    assert seen[1] == ((1, 2, 0, 1), 5, 3)
    # Request 1 ends too, both of its blocks behind a fence.
    assert seen[2] == ((1, 2, 0, 0), 5, 5)


def test_arguments_are_given_by_position_or_by_name() -> None:
    """A call by position and a call by name lead to the same state."""
    by_position, by_name = new_run(), new_run()
    by_position.arrive(1, 3, 2, 4)
    by_name.arrive(most=4, max_tokens=2, prompt=3, r=1)
    assert by_position.snapshot() == by_name.snapshot() != new_run().snapshot()


def test_a_state_can_be_kept_and_hashed() -> None:
    """Going back to a snapshot undoes everything done since."""
    run = run_with_a_table()
    earlier = run.snapshot()
    run.abort(0, 0)
    assert len({earlier, run.snapshot()}) == 2
    run.restore(earlier)
    assert run.value("held", 0) == 2


@pytest.mark.parametrize(
    ("row", "arguments", "error", "message"),
    [
        ("grow", (0, 0), ValueError, "there is no block 0; they go from 1 to 3"),
        ("grow", (2, 1), ValueError, "there is no request 2; they go from 0 to 1"),
        ("grow", (0,), TypeError, "grow takes r, b"),
        ("shrink", (0, 1), ValueError, "'shrink' is no row; the rows are arrive, arrive_u"),
    ],
)
def test_wrong_call_is_no_refusal(
    row: str, arguments: tuple[int, ...], error: type[Exception], message: str
) -> None:
    """A call that makes no sense raises an error of its own, with what would make sense."""
    with pytest.raises(error, match=message):
        new_run().run(row, *arguments)


def test_unknown_row_is_no_attribute() -> None:
    """A name that is neither a method nor a row is refused like any missing attribute."""
    with pytest.raises(AttributeError, match="neither a method nor a row"):
        new_run().shrink(0)


def test_constants_are_checked() -> None:
    """A missing constant, or one that the declaration rules out, is refused before any step."""
    with pytest.raises(ValueError, match="TOTAL_BLOCKS has no value"):
        Simulator(SCHEDULER, {"BLOCK_SIZE": 1})
    with pytest.raises(ValueError, match="BLOCK_SIZE is at least 1"):
        Simulator(SCHEDULER, {**SMALL, "BLOCK_SIZE": 0})


def test_enabled_lists_the_arguments_that_are_allowed() -> None:
    """Every choice of instances and flags is tried, and numbers from the given domain."""
    run = run_with_a_table()
    assert list(run.enabled("admit", numbers=(-1, 0, 1))) == [(1, 0), (1, 1)]
    assert list(run.enabled("schedule")) == [(0, 1), (0, 2), (0, 3)]
    assert list(run.enabled("schedule", numbers=(2, 9))) == [(0, 2)]
    assert list(run.enabled("drain")) == []
    run.schedule(0, tokens=3)
    run.dispatch()
    assert list(run.enabled("accept")) == []
    run.come_back()
    assert list(run.enabled("accept")) == [(0, 1, False), (0, 1, True)]
    assert list(run.enabled("accept_one")) == []


def test_violations_name_the_invariants_that_are_false() -> None:
    """A state in which a count is wrong is reported under the names of the laws it breaks."""
    run = run_with_a_table()
    assert run.violations() == []
    broken = list(run.snapshot())
    broken[run.layout.slots["free", (0,)]] -= 2
    run.restore(tuple(broken))
    assert run.violations() == ["free_minimum", "conservation", "free_is_counted"]


def test_step_violations_compare_two_states() -> None:
    """A move along no declared edge is reported for the step, though both states are fine."""
    run = run_with_a_table()
    running = run.snapshot()
    run.abort(0, 0)
    assert run.step_violations(running) == []
    aborted = run.snapshot()
    run.restore(running)
    assert "legal_edges" in run.step_violations(aborted)


@pytest.mark.parametrize(
    ("formula", "truth"),
    [
        (held[first] * BLOCK_SIZE + 1 == 5, True),
        (7 - known[first] > held[first] + 1, True),
        (choose(queued[block.index("2")], known[first], held[first]) != 3, False),
        (total(x, known[x]) == 4, True),
        (total(x, total(y, block_table[x, y])) == 2, True),
        (total(y, queued[y]) == free[pool], True),
        (all_of(status[first] == RUNNING, status[second] == WAITING), True),
        (any_of(status[second] == RUNNING, no(queued[block.index("3")])), True),
        (queued[block.index("1")] == (free[pool] == 0), True),
        (count_if(until[fence.index("1")] < 0) >= 1, False),
        (block_table.stands_at(first, 1, block.index("3")), True),
        (block_table.stands_at(first, 0, block.index("3")), False),
        (block_table.stands_at(second, 0, block.index("1")), False),
        (all_of(), True),
        (any_of(), False),
    ],
)
def test_every_kind_of_tree_is_read(formula: Formula, truth: bool) -> None:
    """Each operator of the language means in a state what arithmetic and logic say."""
    assert run_with_a_table().holds(formula) is truth


def test_role_without_a_number_has_one_instance() -> None:
    """A role that is not mentioned has one instance, and a counted one as many as its constant."""
    run = Simulator(SCHEDULER, SMALL)
    assert run.layout.numbers == {
        "request": range(1),
        "block": range(1, 4),
        "fence": range(1),
        "item": range(1),
        pool.name: range(1),
        step.name: range(1),
    }
