"""A batch form is its row applied to each position in turn: all of them, or none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.core import batches, rows
from kvproof.core.state import State
from kvproof.spec.expression import FlagParameter
from kvproof.spec.scheduler import SCHEDULER

BATCHED = [row.name for row in SCHEDULER.transitions if row.batched]
NUMBERS = st.integers(0, 10**6)


def positions(twins: Any, name: str, picks: list[int]) -> list[tuple[int, ...]]:
    """Return arguments for each position: mostly what can happen after the positions before it."""
    model, found = twins.model, []
    moves = twins.all_moves(name)
    for pick in picks:
        possible = [move for move in moves if move.is_enabled(model)] if pick % 8 else []
        move = (possible or moves)[pick // 8 % len(possible or moves)]
        model = move.applied(model) if move.is_enabled(model) else model
        found.append(move.arguments)
    return found


def arrays(name: str, calls: list[tuple[int, ...]]) -> list[np.ndarray]:
    """Return the arguments of all positions as one array for each parameter."""
    parameters = SCHEDULER.transition[name].parameters
    kinds = [np.bool_ if isinstance(item, FlagParameter) else np.int64 for item in parameters]
    columns = zip(*calls, strict=True)
    return [np.array(column, dtype=kind) for column, kind in zip(columns, kinds, strict=True)]


@pytest.mark.parametrize("name", BATCHED)
@settings(max_examples=200)
@given(choice=NUMBERS, picks=st.lists(NUMBERS, min_size=1, max_size=5))
def test_batch_equals_its_row_in_turn(tools: Any, name: str, choice: int, picks: list[int]) -> None:
    """The batch is accepted exactly if each position is in turn, and then leaves the same state."""
    twins = tools.Twins.ready_for(name, choice)
    calls = positions(twins, name, picks)
    before, one_by_one = tools.snapshot(twins.core), twins.copy()
    accepts = all(tools.apply(one_by_one, (name, call)) for call in calls)

    assert getattr(batches, name)(twins.core, *arrays(name, calls)) is accepts
    assert tools.snapshot(twins.core) == (tools.snapshot(one_by_one) if accepts else before)


@pytest.mark.parametrize("name", BATCHED)
@given(choice=NUMBERS, picks=st.lists(NUMBERS, min_size=1))
def test_batch_of_any_arguments_is_all_or_nothing(
    tools: Any, name: str, choice: int, picks: list[int]
) -> None:
    """Arguments that nothing vouches for are refused, or do what they do one by one."""
    twins = tools.Twins.ready_for(name, choice)
    moves = twins.all_moves(name)
    calls = [moves[pick % len(moves)].arguments for pick in picks]
    before, one_by_one = tools.snapshot(twins.core), twins.copy()
    accepts = all(tools.apply(one_by_one, (name, call)) for call in calls)

    assert getattr(batches, name)(twins.core, *arrays(name, calls)) is accepts
    assert tools.snapshot(twins.core) == (tools.snapshot(one_by_one) if accepts else before)


@settings(max_examples=200)
@given(choice=NUMBERS, fence=st.integers(0, 1))
def test_drain_equals_draining_from_the_end(tools: Any, choice: int, fence: int) -> None:
    """Draining a whole fence gives its blocks back as draining the last one, again and again."""
    twins = tools.Twins.ready_for("drain", choice)
    before, one_by_one = tools.snapshot(twins.core), twins.copy()
    blocks = tools.entries(one_by_one, "fence_table", fence)[::-1]
    accepts = all(rows.drain(one_by_one, fence, block) for block in blocks)

    drained = batches.drain(twins.core, fence)

    if blocks:
        assert (drained is not None) is accepts
    if drained is not None:
        assert drained.tolist() == blocks
    assert tools.snapshot(twins.core) == (tools.snapshot(one_by_one) if accepts else before)


def two_running(tools: Any, drafts: int = 2) -> State:
    """Return a state in which two requests run."""
    core: State = tools.new_state(drafts)
    assert rows.arrive(core, 0, 3, 3, 6)
    assert rows.arrive(core, 1, 1, 2, 2)
    assert rows.begin(core, throttled=False)
    assert rows.admit(core, 0, 0)
    assert rows.admit(core, 1, 0)
    return core


def test_one_step_in_batches(tools: Any) -> None:
    """Two requests grow, one of them twice, are scheduled, and have their samples accepted."""
    core = two_running(tools, drafts=0)

    assert batches.grow(core, np.array([0, 1, 0]), np.array([3, 1, 2]))
    assert batches.schedule(core, np.array([1, 0]), np.array([1, 3]))
    assert rows.dispatch(core)
    assert rows.come_back(core)
    assert batches.accept_one(core, np.array([0, 1]), np.array([False, True]))

    assert tools.entries(core, "block_table", 0) == [3, 2]
    assert tools.entries(core, "block_table", 1) == [1]
    assert (core.pool.free, core.pool.referenced, core.step.budget_left) == (1, 3, 1)
    assert core.request.known.tolist() == [4, 2, 0]
    assert core.request.stopped.tolist() == [False, True, False]


def test_drafts_in_batches(tools: Any) -> None:
    """Blocks are published, drafts are proposed, tried and in part rejected; hits are forgotten."""
    core = two_running(tools)
    both = np.array([0, 1])
    assert batches.grow(core, np.array([0, 0, 1]), np.array([3, 2, 1]))
    assert batches.schedule(core, both, np.array([3, 1]))
    assert rows.dispatch(core)
    assert rows.come_back(core)
    assert batches.accept(core, both, np.array([1, 1]), np.array([False, True]))
    assert batches.publish(core, np.array([0]), np.array([0]), np.array([3]), np.array([7]))
    assert rows.finish_stopped(core, 1, 0)
    assert rows.process(core)
    assert batches.drain(core, 0) is not None

    assert batches.propose(core, np.array([0]), np.array([2]))
    assert rows.begin(core, throttled=False)
    assert batches.grow(core, np.array([0, 0]), np.array([4, 1]))
    assert batches.schedule(core, np.array([0]), np.array([3]))
    assert rows.dispatch(core)
    assert rows.come_back(core)
    assert batches.accept(core, np.array([0]), np.array([2]), np.array([False]))

    assert core.request.known.tolist() == [6, 2, 0]
    assert core.request.computed.tolist() == [5, 1, 0]
    assert core.request.drafts.tolist() == [0, 0, 0]
    assert rows.finish_length(core, 0, 0)
    assert rows.process(core)
    assert batches.drain(core, 0) is not None
    assert core.block.content.tolist() == [0, 0, 0, 7, 0]
    assert batches.forget(core, np.array([3]))
    assert core.block.content.tolist() == [0, 0, 0, 0, 0]


def test_whole_fence_is_drained_in_one_call(tools: Any) -> None:
    """A fence with nothing in flight gives all its blocks back, the last one first."""
    core = two_running(tools)
    assert batches.grow(core, np.array([0, 0]), np.array([3, 2]))
    assert rows.abort(core, 0, 1)

    drained = batches.drain(core, 1)

    assert drained is not None
    assert drained.tolist() == [2, 3]
    assert core.pool.free == 4
    assert core.fence.fenced.tolist() == [0, 0]


@pytest.mark.parametrize(
    ("name", "bad"),
    [
        ("grow", ([0, 1], [3, 3])),
        ("schedule", ([0, 0], [1, 1])),
        ("schedule", ([0, 1], [5, 1])),
        ("publish_early", ([0, 0], [0, 0], [1, 1], [7, 8])),
        ("publish_early", ([0, 0], [0, 0], [1, 2], [7, 8])),
        ("publish", ([0], [0], [1], [7])),
        ("forget", ([1, 2],)),
    ],
)
def test_one_bad_position_refuses_the_batch(
    tools: Any, name: str, bad: tuple[list[int], ...]
) -> None:
    """What is given twice, is not there, or is one token too many changes nothing at all."""
    core = two_running(tools)
    if name != "grow":
        assert batches.grow(core, np.array([0, 0, 1]), np.array([1, 2, 3]))
    before = tools.snapshot(core)

    assert getattr(batches, name)(core, *map(np.array, bad)) is False
    assert tools.snapshot(core) == before
