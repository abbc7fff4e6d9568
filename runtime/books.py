"""Everything a scheduler keeps: the core's state, and the orders in which it is gone through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from kvproof.core import State, batches
from kvproof.core import rows as core_rows
from kvproof.core.arrays import ZERO, Integers
from kvproof.runtime.block_hash import block_hash
from kvproof.runtime.config import SchedulerConfig
from kvproof.runtime.connector import Connector
from kvproof.runtime.encoder_cache import EncoderCache
from kvproof.runtime.errors import BrokenInvariant
from kvproof.runtime.fences import Fences
from kvproof.runtime.free_queue import FreeQueue
from kvproof.runtime.ordered_rows import OrderedRows
from kvproof.runtime.prefix_cache import PrefixCache
from kvproof.runtime.request import Request
from kvproof.runtime.request_table import RequestTable
from kvproof.runtime.skipped_queue import SkippedQueue
from kvproof.runtime.state_image import Sizes, StateImage
from kvproof.runtime.transfers import Transfers
from kvproof.runtime.waiting_queue import (
    FirstComeQueue,
    OrderedQueue,
    PriorityQueue,
    WaitingQueue,
)
from kvproof.runtime.waiting_request import Order, WaitingRequest


class Books:
    """The parts of one scheduler; only the core's rows change `state`.

    Attributes:
        state: what the declaration speaks of.
        table: which request is in which row, and its tokens.
        queue: the order of the free blocks.
        fences: blocks on their way back to the queue.
        running: rows of RUNNING requests, in the order in which a step visits them.
        waiting: rows of WAITING and PREEMPTED requests, the next to be admitted first.
        skipped: the same of requests that a pass has skipped, because they are being loaded or
            their loads are not decided yet.
        landed: the same of requests that wait with loaded blocks; each is in one of the three.
        cut_rows: rows that compute anew in place, until a step has scheduled them again.
        started_over: rows whose load brought nothing, until they are admitted; only the reference
            counts what they need.
        miscounted: rows of which a sample was dropped and is still expected, as only vLLM does,
            with the tokens that were expected to be known; see `miscounts`.
        prefix: the prefix cache, if it is enabled, or what a connector needs of it.
        transfers: the scheduler's side of the connector, if there is one.
        encoder: the encoder cache, if there is one.
        dropped_until: the last frame that may bring samples for requests that have ended.
        deferred: the last step left requests waiting because it deferred prefills.
        preempts_in_turn: victims are chosen so that nobody gives way to who is served after it.
        untold: blocks that running requests took in a step which they then were not part of.

    """

    def __init__(
        self,
        config: SchedulerConfig,
        on_free: Callable[[Integers], None] | None,
        order: Order | None = None,
        connector: Connector | None = None,
        *,
        preempts_in_turn: bool = True,
    ) -> None:
        """Make the books of a scheduler without requests."""
        self.config = config
        room = min(max(config.max_num_seqs, _ROOM_MIN), _ROOM_MAX)  # more is made when needed
        self.state = State(config.constants(), requests=room, fences=min(room, 16), items=16)
        self.table = RequestTable(self.state)
        self.queue = FreeQueue(config.num_blocks)
        early = config.profile.reuses_in_flight and connector is None
        self.fences = Fences(self.state, self.queue, on_free, early=early)
        self.running = OrderedRows(config.max_num_seqs)
        self.waiting = _waiting_queue(config, self.table, order)
        by_priority = config.policy == "priority" and order is None
        self.skipped = SkippedQueue(PriorityQueue(self.table) if by_priority else FirstComeQueue())
        self.landed = SkippedQueue(FirstComeQueue())
        self.started_over: set[int] = set()
        self.cut_rows: set[int] = set()
        self.miscounted: dict[int, int] = {}
        self.prefix = self._prefix_cache(hashes_anyway=connector is not None)
        self.transfers: Transfers | None = None
        if connector is not None and self.prefix is not None:
            self.transfers = Transfers(self.state, connector, self.table, self.prefix)
            self.prefix.listener = self.transfers
        self.encoder: EncoderCache | None = None
        if config.encoder_cache_size:
            drops = config.profile.drops_half_read_repeats
            self.encoder = EncoderCache(self.state, drops_repeats=drops)
        self.dropped_until = 0
        self.deferred = False
        self.preempts_in_turn = preempts_in_turn
        self.untold: dict[int, list[int]] = {}
        self._image: StateImage | None = None
        self._images: dict[Sizes, StateImage] = {}
        self._block_size = np.array(config.block_size)
        self._block_size_less_one = np.array(config.block_size - 1)

    def _prefix_cache(self, *, hashes_anyway: bool) -> PrefixCache | None:
        config = self.config
        if not (config.enable_prefix_caching or hashes_anyway):
            return None
        chosen = block_hash(config.prefix_caching_hash_algo, config.hash_seed)
        return PrefixCache(
            self.state,
            self.table.tokens,
            chosen,
            at_allocation=config.profile.publishes_at_allocation,
            is_shared=config.enable_prefix_caching,
        )

    @property
    def image(self) -> StateImage:
        """The core's state in one piece; making it moves every column."""
        if self._image is None or not self._image.is_current(self.state):
            self._image = StateImage(self.state)
            self._images[self._image.sizes] = self._image
        return self._image

    def snapshot(self) -> tuple[Any, ...]:
        """Return everything that is kept here, for `restore`.

        The encoder cache is not part of it, and statistics are not.
        """
        prefix, transfers = self.prefix, self.transfers
        return (
            self.image.keep(self.state),
            self.table.snapshot(),
            self.queue.snapshot(),
            self.fences.snapshot(),
            self.running.snapshot(),
            self.waiting.snapshot(),
            self.skipped.snapshot(),
            self.landed.snapshot(),
            (
                self.started_over.copy(),
                self.cut_rows.copy(),
                self.untold.copy(),
                self.miscounted.copy(),
            ),
            None if prefix is None else prefix.snapshot(),
            None if transfers is None else transfers.snapshot(),
            (self.dropped_until, self.deferred),
        )

    def restore(self, kept: tuple[Any, ...]) -> None:
        """Have everything as it was when `snapshot` was called."""
        image, table, queue, fences, running, waiting, skipped, landed, sets, *rest = kept
        self._image = self._images.get(image[0], self.image)
        self._image.put_back(self.state, image)
        self.table.restore(table)
        self.queue.restore(queue)
        self.fences.restore(fences)
        self.running.restore(running)
        self.waiting.restore(waiting)
        self.skipped.restore(skipped)
        self.landed.restore(landed)
        self.started_over, self.cut_rows, self.untold, self.miscounted = (
            some.copy() for some in sets
        )
        prefix, transfers, (self.dropped_until, self.deferred) = rest
        if self.prefix is not None:
            self.prefix.restore(prefix)
        if self.transfers is not None:
            self.transfers.restore(transfers)

    def expect(self, request: Request, known: int, limit: int, preemptions: int = 0) -> None:
        """Ask the order policy, if there is one, where a request is going to be queued.

        It may raise; call this before anything changes.
        """
        if isinstance(self.waiting, OrderedQueue):
            self.waiting.expect(
                WaitingRequest(
                    request.request_id,
                    request.priority,
                    request.arrival_time,
                    known,
                    limit - known,
                    preemptions,
                )
            )

    def expect_row(self, row: int, preemptions: int = 0) -> None:
        """Ask the same about the request in a row, after so many preemptions more."""
        cells = self.state.request.cells
        already = cells.preemptions[row] + preemptions
        self.expect(self.table.requests[row], cells.known[row], cells.limit[row], already)

    @property
    def in_flight(self) -> bool:
        """Whether some dispatched frame has not been processed; the open step is none."""
        step = self.state.step
        return step.processed + step.is_open < step.issued

    def is_in_flight(self, row: int) -> bool:
        """Return whether a frame in flight touches the blocks of a request."""
        return self.state.request.cells.last_frame[row] > self.state.step.processed

    def note_dropped(self) -> None:
        """Take note that a request has ended whose samples frames in flight may still bring."""
        if self.state.step.issued > self.state.step.returned:
            self.dropped_until = self.state.step.issued

    def close_fence(self, fence: int, row: int) -> None:
        """Take note that the table of a row is behind `fence`, the one that was vacant."""
        self.fences.close(fence, self.table.requests[row].request_id)

    def leave_queue(self, row: int) -> None:
        """Take a request that waits, or is being loaded, out of the queue that it is in."""
        if row in self.skipped:
            self.skipped.remove(row)
        elif row in self.landed:
            self.landed.remove(row)
        else:
            self.waiting.remove(row)

    def growth(self, rows: Integers, ends: Integers) -> tuple[Integers, Integers]:
        """Return which places of `rows` lack blocks to hold `ends` tokens, and how many each.

        Slots for look-ahead are counted. Both are int64 [k], k the number of rows that lack any.
        """
        if self.config.num_lookahead_tokens:
            ends = ends + self.config.num_lookahead_tokens
        lacking = ends - self.state.request.held[rows] * self._block_size
        places = (lacking > ZERO).nonzero()[0]
        if not len(places):
            return places, places
        return places, (lacking[places] + self._block_size_less_one) // self._block_size

    def num_shared(self, hits: list[int]) -> int:
        """Return how many of the hits other requests hold; the others lie in the free queue."""
        references = self.state.block.cells.references
        return sum(references[block] > 0 for block in hits)

    def share(self, row: int, hits: list[int]) -> None:
        """Put hits into the table of a request; idle ones leave the free queue."""
        if self.prefix is None:
            return
        queued = self.state.block.cells.queued
        for block, number in zip(hits, self.prefix.numbers(row, len(hits)), strict=True):
            if queued[block]:
                self.queue.remove(block)
            if not core_rows.share(self.state, row, block, number):
                raise BrokenInvariant(f"row {row} may not share block {block}.")
        self.prefix.admitted(row, len(hits))

    def take_blocks(self, rows: Integers, *, for_load: bool = False) -> Integers:
        """Give the next free block to each row in turn; return the blocks, int64 [len(rows)]."""
        taken = self.queue.take(len(rows))
        blocks = np.array(taken)
        if self.prefix is not None:
            self.prefix.evict(blocks)
        grown = (
            batches.grow_for_load(self.state, rows, blocks)
            if for_load
            else self._grow(rows, taken, blocks)
        )
        if not grown:
            raise BrokenInvariant(f"rows {rows.tolist()} may not take blocks {taken}.")
        return blocks

    def _grow(self, rows: Integers, taken: list[int], blocks: Integers) -> bool:
        if len(taken) > _FEW and not self.miscounted:
            return batches.grow(self.state, rows, blocks)
        for row, block in zip(rows.tolist(), taken, strict=True):
            rule = core_rows.grow_miscounted if row in self.miscounted else core_rows.grow
            if not rule(self.state, row, block):
                return False
        return True


def _waiting_queue(
    config: SchedulerConfig, table: RequestTable, order: Order | None
) -> WaitingQueue:
    if order is not None:
        return OrderedQueue(order)
    return PriorityQueue(table) if config.policy == "priority" else FirstComeQueue()


_ROOM_MIN, _ROOM_MAX = 4, 64  # rows at the start
_FEW = 12  # Up to here the scalar row, again and again, costs less than its batch form.
