"""Loading requests: admitting a load, and what becomes of its request when it has ended."""

from __future__ import annotations

import numpy as np

from kvproof.core import Status, rows
from kvproof.core.arrays import Flags, Integers
from kvproof.runtime.books import Books
from kvproof.runtime.errors import BrokenInvariant
from kvproof.runtime.transfers import Transfers


def admit_load(books: Books, row: int, hits: list[int], external: int) -> bool:
    """Park a request and start its load, if that leaves to others what they need."""
    transfers, state = _transfers(books), books.state
    shared = books.num_shared(hits)
    local = len(hits) * state.block_size
    if not _may_load(books, row, shared):
        return False
    reserved = _reserved_for_prefills(books) if _reserves(books) else 0
    if not rows.await_load(state, row, shared, external, local + external, reserved):
        return False
    books.share(row, hits)
    missing = -(-(local + external) // state.block_size) - len(hits)
    books.take_blocks(np.full(missing, row, dtype=np.int64), for_load=True)
    transfers.start(row, local, external)
    return True


def _reserves(books: Books) -> bool:
    return books.config.profile.reserves_for_prefills_only


def _may_load(books: Books, row: int, shared: int) -> bool:
    state, config = books.state, books.config
    whole = _whole(books, row)
    if config.scheduler_reserve_full_isl:
        watermark = state.watermark if state.pool.running else 0
        if whole - shared + watermark > state.pool.free:
            return False
    return _reserves(books) or whole + _held_together(books) <= state.total_blocks


def _whole(books: Books, row: int) -> int:
    """Return the blocks that all known tokens of a request need."""
    known = books.state.request.cells.known[row]
    ahead = 0 if _reserves(books) else books.config.num_lookahead_tokens
    return -(-(known + ahead) // books.state.block_size)


def _held_together(books: Books) -> int:
    """Return the blocks that all requests which are loaded, or wait loaded, need in the end.

    None of them can be preempted, so that all must fit together (vllm#30659, vllm#45388).
    """
    return sum(_whole(books, row) for row in _loading_or_landed(books).nonzero()[0].tolist())


def _loading_or_landed(books: Books) -> Flags:
    """Return which rows are being loaded, or wait with what was loaded."""
    request = books.state.request
    parked: Flags = (request.status == Status.WAITING_FOR_REMOTE_KVS) | request.landed
    return parked


def _reserved_for_prefills(books: Books) -> int:
    """Return the blocks that requests whose prompts are not computed yet still need.

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
    needed = -(-request.known[some] // size) - request.held[some]
    return int(np.maximum(needed, 0).sum())


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
    books.fences.close(fence)
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
    books.fences.close(fence)
    books.running.remove(row)
    books.waiting.put_back(row)
    if not _reserves(books):  # the reference forgets that the load brought nothing
        books.started_over.add(row)
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
    books.fences.close(fence)
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
