"""Loading requests: admitting a load, and what becomes of its request when it has ended."""

from __future__ import annotations

import numpy as np

from kvproof.core import Status, rows
from kvproof.runtime.books import Books
from kvproof.runtime.demand import Demand
from kvproof.runtime.errors import BrokenInvariant
from kvproof.runtime.load_admission import LoadWish, park
from kvproof.runtime.transfers import Transfers


def admit_load(books: Books, row: int, hits: list[int], external: int) -> Demand | None:
    """Park a request and start its load, if that leaves to others what they need.

    Returns None, or what is missing; nothing has changed then.
    """
    local = len(hits) * books.state.block_size
    wanted = local + external
    wish = LoadWish(row=row, shared=books.num_shared(hits), external=external, wanted=wanted)
    refused = park(books, wish)
    if refused is not None:
        return refused
    books.share(row, hits)
    missing = -(-wanted // books.state.block_size) - len(hits)
    books.take_blocks(np.full(missing, row, dtype=np.int64), for_load=True)
    _transfers(books).start(row, local, external)
    return None


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
    promote(books, row)
    landed = books.state.request.cells.landed[row]
    if landed and books.config.profile.lets_others_pass_loaded:
        return
    books.skipped.remove(row)
    if landed:
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
