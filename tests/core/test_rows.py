"""The functions of rows do what the interpreter does, and keep tables in order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.core import rows
from kvproof.core.state import Configuration, State
from kvproof.spec.rows import Witness
from kvproof.spec.scheduler import SCHEDULER

CHOICES = st.lists(st.integers(0, 10**6), min_size=2, max_size=12)


@given(CHOICES, st.lists(st.integers(0, 10**6), min_size=5, max_size=5))
def test_rows_agree_with_the_interpreter(tools: Any, choices: list[int], any_: list[int]) -> None:
    """After the same calls, accepted and refused ones, core and interpreter hold the same."""
    twins = tools.Twins.somewhere(choices)
    for choice in any_:
        move = twins.any_move(choice)
        accepts = move.is_enabled(twins.model)

        assert twins.take(move) is accepts
        assert twins.differences() == []


@given(CHOICES, st.integers(0, 10**6))
def test_refused_row_changes_nothing(tools: Any, choices: list[int], choice: int) -> None:
    """A row whose guard is false returns False and leaves every column and table as it was."""
    twins = tools.Twins.somewhere(choices)
    before = tools.snapshot(twins.core)

    if not twins.take(twins.any_move(choice)):
        assert tools.snapshot(twins.core) == before


def test_every_row_happens_in_the_runs_of_these_tests(tools: Any) -> None:
    """The random runs of this folder lead to each row often, so that none is compared in vain."""
    assert {row for row, runs in tools.prepared().items() if len(runs) < 25} == set()
    safe = {row for row, runs in tools.prepared(safe=True).items() if len(runs) >= 25}
    late = {"accept_late"}  # It breaks nothing, but only what the reference does leads to it.
    assert safe == set(SCHEDULER.transition) - set(tools.REFERENCE) - late


@pytest.mark.parametrize("name", SCHEDULER.transition)
def test_each_row_agrees_with_the_interpreter_where_it_can_happen(tools: Any, name: str) -> None:
    """Where a row can happen, with all arguments, core and interpreter do the same."""
    for choice in range(5):
        twins = tools.Twins.ready_for(name, choice * 7919)
        for move in twins.all_moves(name):
            core, accepts = twins.copy(), move.is_enabled(twins.model)
            before = tools.snapshot(core)

            assert tools.apply(core, (move.row, move.arguments)) is accepts
            if accepts:
                after = tools.Twins(twins.run.after(move))
                assert after.differences() == []
            else:
                assert tools.snapshot(core) == before


@pytest.mark.parametrize("witness", SCHEDULER.witnesses, ids=lambda witness: witness.name)
def test_witness_runs_on_the_core(tools: Any, witness: Witness) -> None:
    """Each run that the declaration says is possible is possible for the core."""
    constants = {name.lower(): value for name, value in witness.constants.items()}
    core = State(Configuration(**constants))

    for name, *arguments in witness.steps:
        assert tools.apply(core, (name, tuple(arguments))), (name, arguments)


def running(tools: Any, prompt: int) -> State:
    """Return a state in which request 0 runs and holds nothing yet."""
    core: State = tools.new_state()
    assert rows.arrive(core, 0, prompt, 2, 6)
    assert rows.begin(core, throttled=False)
    assert rows.admit(core, 0, 0)
    return core


def test_tables_keep_the_order_in_which_blocks_came(tools: Any) -> None:
    """A table lists its blocks in the order of the tokens they hold, and so does its fence."""
    core = running(tools, prompt=5)
    for block in (3, 1, 4):
        assert rows.grow(core, 0, block)
    assert tools.entries(core, "block_table", 0) == [3, 1, 4]

    assert rows.abort(core, 0, 1)

    assert tools.entries(core, "block_table", 0) == []
    assert tools.entries(core, "fence_table", 1) == [3, 1, 4]


def test_drained_block_leaves_the_others_in_order(tools: Any) -> None:
    """A fence that gives up a block in its middle keeps the others in order."""
    core = running(tools, prompt=5)
    for block in (3, 1, 4):
        assert rows.grow(core, 0, block)
    assert rows.abort(core, 0, 1)

    assert rows.drain(core, 1, 1)

    assert tools.entries(core, "fence_table", 1) == [3, 4]
    assert [bool(core.block.queued[block]) for block in (1, 3, 4)] == [True, False, False]


def test_values_stay_plain(tools: Any) -> None:
    """Counts of the pool and the step stay plain Python values, whatever wrote them."""
    for name in SCHEDULER.transition:
        twins = tools.Twins.ready_for(name, 0)
        core = twins.core
        move = next(move for move in twins.all_moves(name) if move.is_enabled(twins.model))
        assert twins.take(move)
        singles = (core.pool, core.step)
        values = {n: getattr(item, n) for item in singles for n in type(item).__slots__}

        assert {type(value) for value in values.values()} == {int, bool}
