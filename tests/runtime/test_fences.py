"""Blocks behind a fence come back when its frame has been processed, all of them and once."""

import pytest

from kvproof.core import State, Status, rows
from kvproof.core.arrays import Integers
from kvproof.runtime import BrokenInvariant, SchedulerConfig
from kvproof.runtime.fences import Fences
from kvproof.runtime.free_queue import FreeQueue


def state_of(blocks: int, requests: int, fences: int = 16) -> State:
    """Return an empty state whose blocks hold one token each, the null block not counted."""
    config = SchedulerConfig(
        num_blocks=blocks + 1,
        block_size=1,
        max_num_batched_tokens=blocks,
        max_num_seqs=requests,
    )
    return State(config.constants(), requests, fences)


class Holder:
    """A state in which requests of three tokens hold a block for each, and a frame flies."""

    def __init__(self, requests: int, fences: int = 16) -> None:
        """Let so many requests run, each with all of its tokens in the frame."""
        blocks = 3 * requests
        self.state = state_of(blocks, requests, fences)
        self.queue = FreeQueue(blocks + 1)
        self.freed: list[list[int]] = []
        self.fences = Fences(self.state, self.queue, self.note)
        assert rows.begin(self.state, False)
        for row in range(requests):
            assert rows.arrive(self.state, row, 3, 1, 3)
            assert rows.admit(self.state, row, 0)
            for block in self.queue.take(3):
                assert rows.grow(self.state, row, block)
            assert rows.schedule(self.state, row, 3)
        assert rows.dispatch(self.state)

    def note(self, blocks: Integers) -> None:
        """Keep what was reported as freed."""
        self.freed.append(blocks.tolist())

    def abort(self, row: int) -> None:
        """Move a request's blocks behind a fence."""
        fence = self.fences.vacant()
        assert rows.abort(self.state, row, fence)
        self.fences.close(fence, "somebody")

    def process(self) -> None:
        """Let the frame come back and be over."""
        assert rows.come_back(self.state)
        for row in range(self.state.request.capacity):
            if self.state.request.status[row] == Status.RUNNING:
                assert rows.accept_one(self.state, row, False)
        assert rows.process(self.state)


@pytest.mark.rule("vllm#45357")
def test_fence_holds_blocks_until_its_frame_is_over() -> None:
    """Blocks that a frame in flight writes are not free before it has been processed."""
    holder = Holder(requests=2)
    holder.abort(0)
    holder.fences.drain()
    assert (len(holder.fences), len(holder.queue), holder.freed) == (1, 0, [])

    holder.process()
    holder.fences.drain()
    assert (len(holder.fences), len(holder.queue)) == (0, 3)


@pytest.mark.rule("7")
def test_last_block_of_a_table_is_taken_first() -> None:
    """Blocks return from the end of their table to the front of the queue, fence after fence."""
    holder = Holder(requests=2)
    holder.abort(0)
    holder.abort(1)
    holder.process()
    holder.fences.drain()

    assert holder.freed == [[3, 2, 1], [6, 5, 4]]
    assert list(holder.queue) == [6, 5, 4, 3, 2, 1]


def test_nothing_in_flight_means_at_once() -> None:
    """A fence that waits for no frame drains in the same call."""
    holder = Holder(requests=1)
    holder.process()
    holder.abort(0)
    holder.fences.drain()

    assert list(holder.queue) == [3, 2, 1]


def test_fence_without_blocks_frees_none() -> None:
    """A request that holds nothing passes through a fence like any other."""
    state = state_of(blocks=3, requests=1)
    freed: list[Integers] = []
    fences = Fences(state, FreeQueue(4), freed.append)
    assert rows.arrive(state, 0, 1, 1, 1)
    fence = fences.vacant()
    assert rows.abort(state, 0, fence)
    fences.close(fence, "somebody")
    fences.drain()

    assert (len(fences), freed) == (0, [])


def test_more_fences_are_made_when_all_are_used() -> None:
    """Any number of tables can wait for a frame at the same time."""
    holder = Holder(requests=20, fences=2)
    for row in range(20):
        holder.abort(row)
    assert len(holder.fences) == 20
    holder.process()
    holder.fences.drain()

    assert sorted(holder.queue) == list(range(1, 61))


def test_fence_that_cannot_drain_is_our_fault() -> None:
    """A fence that names a block twice is a fault that is not passed over."""
    holder = Holder(requests=1)
    holder.process()
    holder.abort(0)
    holder.state.fence.fence_table.rows[:, :2] = 1
    with pytest.raises(BrokenInvariant, match="its blocks cannot be released"):
        holder.fences.drain()
