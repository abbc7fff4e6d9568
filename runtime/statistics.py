"""What a scheduler has done and what it holds, as numbers."""

from __future__ import annotations

from typing import Self

from attrs import frozen

from kvproof.runtime.books import Books


@frozen
class Statistics:
    """A reading of one scheduler; blocks do not count the null block.

    `kv_cache_usage` is the share of blocks that are not free, 0 to 1.
    """

    num_requests_running: int
    num_requests_waiting: int
    num_preemptions: int
    num_free_blocks: int
    num_fenced_blocks: int
    kv_cache_usage: float
    blocks_by_request: dict[str, int]

    @classmethod
    def of(cls, books: Books, preemptions: int) -> Self:
        """Read the books of a scheduler."""
        state, usable = books.state, books.config.num_usable_blocks
        held = state.request.cells.held
        return cls(
            num_requests_running=state.pool.running,
            num_requests_waiting=state.pool.waiting,
            num_preemptions=preemptions,
            num_free_blocks=state.pool.free,
            num_fenced_blocks=int(state.fence.fenced.sum()),
            kv_cache_usage=1 - state.pool.free / usable,
            blocks_by_request={name: held[row] for name, row in books.table.row_of.items()},
        )
