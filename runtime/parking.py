"""Requests that wait for something outside: a grammar, or the next input of a session.

A parked request is in no queue and holds nothing; its exit is a call, or an abort.
"""

from __future__ import annotations

from collections.abc import Sequence

from attrs import evolve

from kvproof.core import Status, rows
from kvproof.runtime.admission import (
    check_fits_the_pool,
    check_request,
    token_ceiling,
    token_limit,
)
from kvproof.runtime.books import Books
from kvproof.runtime.config import SchedulerConfig
from kvproof.runtime.errors import BrokenInvariant, RequestRefused


def await_grammar(books: Books, row: int) -> None:
    """Park a request that has just arrived."""
    if not rows.await_grammar(books.state, row):
        raise BrokenInvariant(f"row {row} waits but may not be parked.")


def grammar_ready(books: Books, row: int) -> None:
    """Put a request whose grammar is compiled into the waiting queue."""
    books.expect_row(row)
    if not rows.grammar_ready(books.state, row):
        raise BrokenInvariant(f"row {row} waits for its grammar but may not go on.")
    books.waiting.add(row)


def park_session(books: Books, row: int) -> None:
    """Park a session whose turn is over; its blocks go behind a fence."""
    fence = books.fences.vacant()
    if not rows.park_session(books.state, row, fence):
        raise BrokenInvariant(f"row {row} has ended its turn but may not be parked.")
    books.close_fence(fence, row)


def continue_session(
    books: Books,
    config: SchedulerConfig,
    request_id: str,
    token_ids: Sequence[int],
    max_tokens: int,
) -> None:
    """Append the next input to a parked session and queue it; see `Scheduler`."""
    row = books.table.row_of.get(request_id, -1)
    cells = books.state.request.cells
    if row < 0 or cells.status[row] != Status.WAITING_FOR_STREAMING:
        message = f"request {request_id!r}: no session of that id waits for its next input."
        raise RequestRefused(message)
    known = books.table.tokens.known(row, cells.known[row])
    turn = evolve(
        books.table.requests[row],
        prompt_token_ids=(*known, *token_ids),
        max_tokens=max_tokens,
    )
    check_request(config, turn, ())
    check_fits_the_pool(config, turn)
    limit, most = token_limit(config, turn), token_ceiling(config, turn)
    end = len(turn.prompt_token_ids)
    books.expect(turn, end, limit, cells.preemptions[row])
    if not rows.continue_session(books.state, row, len(token_ids), limit - end, most):
        raise BrokenInvariant(f"row {row} is a parked session but may not go on.")
    books.table.replace(row, turn, limit + config.num_speculative_tokens)
    if books.prefix is not None:
        books.prefix.learn(row, end)
    books.waiting.add(row)
