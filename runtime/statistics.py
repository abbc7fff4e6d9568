"""What a scheduler has done and what it holds, as numbers."""

from __future__ import annotations

from typing import Self

import numpy as np
from attrs import frozen

from kvproof.core import Status
from kvproof.runtime.books import Books
from kvproof.runtime.prefix_cache import PrefixStatistics
from kvproof.runtime.watchdog import Watchdog


@frozen
class Statistics:
    """A reading of one scheduler; blocks do not count the null block.

    Attributes:
        num_requests_running: requests that run.
        num_requests_waiting: requests that wait for admission; parked ones do not.
        num_requests_waiting_by_reason: those and the parked ones, by what they wait for:
            "capacity", that is blocks, tokens, a place among the running, or just the next step;
            "deferred", because the last step was throttled and left prefills to a later one;
            "grammar", which is being compiled; or "streaming", the next input of a session.
        num_preemptions: preemptions since the start.
        num_free_blocks: blocks that can be taken, those that can be shared until then among them.
        num_fenced_blocks: blocks on their way back, which a frame in flight may still touch.
        kv_cache_usage: share of the blocks that are not free, 0 to 1.
        prefix_cache_queries: tokens looked up for admission since the start, each time again that a
            request is not admitted; of requests that were never preempted.
        prefix_cache_hits: how many of those were found.
        prefix_cache_queries_preempted: the same for requests that had been preempted.
        prefix_cache_hits_preempted: how many of those were found.
        blocks_by_request: blocks that each live request holds.
        preemptions_by_request: how often each live request was preempted.
        is_capacity_bound: the last step that was not throttled left requests waiting, so that
            throttling is ignored.
        num_freezes: freezes since the start: steps that changed nothing though work was unfinished
            and nothing was under way that could help; one that lasts counts once.
        is_frozen: the last step was one of a freeze.

    """

    num_requests_running: int
    num_requests_waiting: int
    num_requests_waiting_by_reason: dict[str, int]
    num_preemptions: int
    num_free_blocks: int
    num_fenced_blocks: int
    kv_cache_usage: float
    prefix_cache_queries: int
    prefix_cache_hits: int
    prefix_cache_queries_preempted: int
    prefix_cache_hits_preempted: int
    blocks_by_request: dict[str, int]
    preemptions_by_request: dict[str, int]
    is_capacity_bound: bool
    num_freezes: int
    is_frozen: bool

    @classmethod
    def of(cls, books: Books, preemptions: int, watchdog: Watchdog) -> Self:
        """Read the books of a scheduler."""
        state, cells = books.state, books.state.request.cells
        looked_up = books.prefix.statistics if books.prefix is not None else PrefixStatistics()
        rows = books.table.row_of.items()
        return cls(
            num_requests_running=state.pool.running,
            num_requests_waiting=state.pool.waiting,
            num_requests_waiting_by_reason=_reasons(books),
            num_preemptions=preemptions,
            num_free_blocks=state.pool.free,
            num_fenced_blocks=int(state.fence.fenced.sum()),
            kv_cache_usage=1 - state.pool.free / books.config.num_usable_blocks,
            prefix_cache_queries=looked_up.queries,
            prefix_cache_hits=looked_up.hits,
            prefix_cache_queries_preempted=looked_up.preempted_queries,
            prefix_cache_hits_preempted=looked_up.preempted_hits,
            blocks_by_request={name: cells.held[row] for name, row in rows},
            preemptions_by_request={name: cells.preemptions[row] for name, row in rows},
            is_capacity_bound=bool(state.step.capacity_bound),
            num_freezes=watchdog.num_freezes,
            is_frozen=watchdog.is_frozen,
        )


def _reasons(books: Books) -> dict[str, int]:
    """Return how many requests wait for what; whoever is behind the first waits for the same."""
    waiting, status = books.state.pool.waiting, books.state.request.status
    return {
        "capacity": 0 if books.deferred else waiting,
        "deferred": waiting if books.deferred else 0,
        "grammar": int(np.count_nonzero(status == Status.WAITING_FOR_GRAMMAR)),
        "streaming": int(np.count_nonzero(status == Status.WAITING_FOR_STREAMING)),
    }
