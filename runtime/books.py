"""Everything a scheduler keeps: the core's state, and the orders in which it is gone through."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import numpy as np

from kvproof.core import State, batches
from kvproof.core import rows as core_rows
from kvproof.core.arrays import Integers
from kvproof.runtime.config import SchedulerConfig
from kvproof.runtime.errors import BrokenInvariant
from kvproof.runtime.fences import Fences
from kvproof.runtime.free_queue import FreeQueue
from kvproof.runtime.ordered_rows import OrderedRows
from kvproof.runtime.request_table import RequestTable


class Books:
    """The parts of one scheduler; only the core's rows change `state`.

    Attributes:
        state: what the declaration speaks of.
        table: which request is in which row, and its tokens.
        queue: the order of the free blocks.
        fences: blocks on their way back to the queue.
        running: rows of RUNNING requests, in the order in which a step visits them.
        waiting: rows of WAITING and PREEMPTED requests, the next to be admitted first.
        aborted_in_flight: some request has ended that the frame in flight still owes a sample.

    """

    def __init__(self, config: SchedulerConfig, on_free: Callable[[Integers], None] | None) -> None:
        """Make the books of a scheduler without requests."""
        self.config = config
        self.state = State(config.constants(), requests=64, fences=16)
        self.table = RequestTable(self.state)
        self.queue = FreeQueue(config.num_blocks)
        self.fences = Fences(self.state, self.queue, on_free)
        self.running = OrderedRows(config.max_num_seqs)
        self.waiting: deque[int] = deque()
        self.aborted_in_flight = False

    def growth(self, rows: Integers, ends: Integers) -> tuple[Integers, Integers]:
        """Return which places of `rows` lack blocks to hold `ends` tokens, and how many each.

        Both are int64 [k], k the number of rows that lack any.
        """
        lacking = ends - self.state.request.held[rows] * self.state.block_size
        places = (lacking > 0).nonzero()[0]
        return places, (lacking[places] + (self.state.block_size - 1)) // self.state.block_size

    def take_blocks(self, rows: Integers) -> Integers:
        """Give the next free block to each row in turn; return the blocks, int64 [len(rows)]."""
        taken = self.queue.take(len(rows))
        blocks = np.array(taken, dtype=np.int64)
        if len(taken) <= _FEW:
            pairs = zip(rows.tolist(), taken, strict=True)
            grown = all(core_rows.grow(self.state, row, block) for row, block in pairs)
        else:
            grown = batches.grow(self.state, rows, blocks)
        if not grown:
            raise BrokenInvariant(f"rows {rows.tolist()} may not take blocks {taken}.")
        return blocks


_FEW = 12  # Up to here the scalar row, again and again, costs less than its batch form.
