"""Loading requests: admitting a load, and what becomes of its request when it has ended."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from kvproof.core import Status, rows
from kvproof.core.arrays import Flags, Integers
from kvproof.runtime.books import Books
from kvproof.runtime.demand import Demand, Quantity
from kvproof.runtime.errors import BrokenInvariant
from kvproof.runtime.transfers import Transfers


def admit_load(books: Books, row: int, hits: list[int], external: int) -> Demand | None:
    """Park a request and start its load, if that leaves to others what they need.

    Returns None, or what is missing; nothing has changed then.
    """
    transfers, state = _transfers(books), books.state
    shared = books.num_shared(hits)
    local = len(hits) * state.block_size
    reserved = sum(reserved_for_prefills(books).values()) if _reserves(books) else 0
    for demand in _load_demands(books, row, shared, local + external, reserved):
        if not demand.fits:
            return demand
    if not rows.await_load(state, row, shared, external, local + external, reserved):
        raise BrokenInvariant(f"row {row} has what await_load asks but may not be loaded.")
    books.share(row, hits)
    missing = -(-(local + external) // state.block_size) - len(hits)
    books.take_blocks(np.full(missing, row, dtype=np.int64), for_load=True)
    transfers.start(row, local, external)
    return None


def _reserves(books: Books) -> bool:
    return books.config.profile.reserves_for_prefills_only


def _load_demands(
    books: Books, row: int, shared: int, wanted: int, reserved: int
) -> Iterator[Demand]:
    """Yield what a load of `wanted` tokens asks, rule by rule; the last is the guard of the row."""
    state, config = books.state, books.config
    whole = _whole(books, row)
    kept = state.watermark if state.pool.running else 0
    if config.scheduler_reserve_full_isl:
        rule = "scheduler_reserve_full_isl"
        yield Demand(rule, Quantity.BLOCKS, whole, state.pool.free, shared, kept)
    if not _reserves(books):
        together = sum(held_together(books).values())
        rule = "what is loaded fits together"
        yield Demand(rule, Quantity.POOL, whole, state.total_blocks, reserved=together)
    needed = -(-wanted // state.block_size)
    yield Demand("await_load", Quantity.BLOCKS, needed, state.pool.free, shared, kept, reserved)


def _whole(books: Books, row: int) -> int:
    """Return the blocks that all known tokens of a request need."""
    known = books.state.request.cells.known[row]
    ahead = 0 if _reserves(books) else books.config.num_lookahead_tokens
    return -(-(known + ahead) // books.state.block_size)


def held_together(books: Books) -> dict[int, int]:
    """Return the blocks that each request which is loaded, or waits loaded, needs in the end.

    None of them can be preempted, so that all must fit together (vllm#30659, vllm#45388).
    """
    return {row: _whole(books, row) for row in _loading_or_landed(books).nonzero()[0].tolist()}


def _loading_or_landed(books: Books) -> Flags:
    """Return which rows are being loaded, or wait with what was loaded."""
    request = books.state.request
    parked: Flags = (request.status == Status.WAITING_FOR_REMOTE_KVS) | request.landed
    return parked


def reserved_for_prefills(books: Books) -> dict[int, int]:
    """Return the blocks that each request whose prompt is not computed yet still needs, by row.

    Rule: vLLM Scheduler._inflight_prefill_reserved_blocks.
    """
    request, size = books.state.request, books.state.block_size
    parked = _loading_or_landed(books)
    parked[list(books.started_over)] = True
    prefills = (
        (request.status == Status.RUNNING)
        & ~request.decoding
        & (request.computed + request.scheduled < request.known)
    )
    some: Integers = (parked | prefills).nonzero()[0]
    needed = np.maximum(-(-request.known[some] // size) - request.held[some], 0)
    return dict(zip(some.tolist(), needed.tolist(), strict=True))


def promote(books: Books, row: int) -> None:
    """Let a request whose load has ended wait to be admitted, with what was brought or as new."""
    state = books.state
    cells = state.request.cells
    preempted = cells.preemptions[row] > 0
    brought = min(cells.computed[row], cells.known[row] - 1)
    if brought >= 1:
        if books.prefix is not None and books.prefix.at_allocation:
            books.prefix.publish(np.array([row]), np.array([cells.computed[row]]))
        rule = rows.promote_preempted if preempted else rows.promote
        if not rule(state, row):
            raise BrokenInvariant(f"row {row} was loaded but may not wait for admission.")
        return
    fence = books.fences.vacant()
    start = rows.start_over_preempted if preempted else rows.start_over
    if not start(state, row, fence):
        raise BrokenInvariant(f"row {row} was not loaded but may not start over.")
    books.close_fence(fence, row)
    books.fences.drain()
    books.started_over.add(row)
    if books.prefix is not None:
        books.prefix.admitted(row, 0)


def promote_at_once(books: Books, row: int) -> None:
    """Do so as soon as the load has ended; who holds blocks goes before all who wait."""
    books.skipped.remove(row)
    promote(books, row)
    if books.state.request.cells.landed[row]:
        books.landed.add(row)
    else:
        books.expect_row(row)
        books.waiting.put_back(row)


def has_ended(books: Books, row: int) -> bool:
    """Return whether the load of a parked request has ended."""
    cells = books.state.request.cells
    return not cells.loading[row] and cells.remote[row] == 0


def restart(books: Books, row: int) -> None:
    """Take a running request off KV that is not its own; it waits, first of all, as if new."""
    if books.encoder is not None:
        books.encoder.let_go(row)
    _transfers(books).preempted(row)
    fence = books.fences.vacant()
    books.note_dropped()
    books.expect_row(row)
    if not rows.restart(books.state, row, fence):
        raise BrokenInvariant(f"row {row} runs on a failed load but may not start over.")
    books.close_fence(fence, row)
    books.running.remove(row)
    books.waiting.put_back(row)
    if books.prefix is not None:
        books.prefix.admitted(row, 0)


def fail(books: Books, row: int) -> None:
    """End a request whose load has failed; its blocks wait for the end of the transfer."""
    if books.encoder is not None:
        books.encoder.let_go(row)
    oblige = _transfers(books).ends(row, complete=False)
    running = books.state.request.cells.status[row] == Status.RUNNING
    fence = books.fences.vacant()
    if not rows.finish_error(books.state, row, fence):
        raise BrokenInvariant(f"row {row} was not loaded but may not fail.")
    books.close_fence(fence, row)
    oblige(fence)
    books.note_dropped()
    if running:
        books.running.remove(row)
    else:
        books.leave_queue(row)
    books.started_over.discard(row)


def _transfers(books: Books) -> Transfers:
    assert books.transfers is not None
    return books.transfers
