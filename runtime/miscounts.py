"""Samples that vLLM 0.25.1 goes on expecting after it has dropped them; a safe profile has none.

A frame that ran on what a synchronous load did not bring loses its sample, but the count of output
placeholders keeps it: known tokens and placeholders together stay what they were. The request is
scheduled up to there, one token further than its samples can reach, as long as it lives.
Rule: vLLM Scheduler._handle_invalid_blocks; AsyncScheduler._update_after_schedule.
"""

from __future__ import annotations

import numpy as np

from kvproof.core import Status, rows
from kvproof.core.arrays import Flags, Integers
from kvproof.runtime.books import Books
from kvproof.runtime.wish import Wish


def note(books: Books, row: int) -> None:
    """Take note of what vLLM expects of a request that is about to lose computed tokens."""
    config, expected = books.config, _expected(books, row)
    ahead = config.max_steps_in_flight > 1 and not config.num_speculative_tokens
    if ahead and expected > books.state.request.cells.known[row]:
        books.miscounted[row] = expected


def renew(books: Books, row: int) -> None:
    """Do the same for a request that is preempted, if samples were dropped before."""
    if row in books.miscounted:
        books.miscounted[row] = _expected(books, row)


def _expected(books: Books, row: int) -> int:
    """Return known tokens and placeholders: a frame that computes them all adds one."""
    cells = books.state.request.cells
    return max(cells.known[row], cells.computed[row] + 1, books.miscounted.get(row, 0))


def wish(books: Books, row: int) -> Wish:
    """Return what such a request would get, had it the step to itself: all that is expected of it.

    It gets nothing if, by that count, the frames in flight reach its limit.
    """
    cells, config = books.state.request.cells, books.config
    known, computed, expected = cells.known[row], cells.computed[row], _expected(books, row)
    tokens = min(expected, config.max_model_len - 1) - computed
    if config.long_prefill_token_threshold:
        tokens = min(tokens, config.long_prefill_token_threshold)
    placeholders = expected - known
    reaches = placeholders > 0 and computed + 2 - placeholders >= cells.limit[row]
    wanted = tokens > 0 and not reaches
    if books.state.step.is_deferring:
        wanted = wanted and decodes(books, row)
    one = Wish(np.array([row]), np.array([computed]), np.array([known]), np.array([tokens]), None)
    return one.only(np.array([wanted]))


def without_chunks(books: Books, batch: Integers, ends: Integers, sampling: Flags) -> Flags:
    """Return who samples in a step, bool [B], less those that do not reach what is expected."""
    reached = [
        end >= books.miscounted.get(row, 0)
        for row, end in zip(batch.tolist(), ends.tolist(), strict=True)
    ]
    kept: Flags = sampling & np.array(reached, dtype=bool)
    return kept


def accept(books: Books, sampling: Integers, stops: Flags) -> bool:
    """Accept a sample of each row, also of those that compute anew what comes before it."""
    cells, accepted = books.state.request.cells, True
    for row, stop in zip(sampling.tolist(), stops.tolist(), strict=True):
        anew = cells.computed[row] < books.miscounted.get(row, 0)
        rule = rows.accept_miscounted if anew else rows.accept_one
        accepted = accepted and rule(books.state, row, stop)
    return accepted


def _is_behind(books: Books, row: int) -> bool:
    """Return whether a request has to compute more before its next sample."""
    cells = books.state.request.cells
    return cells.computed[row] < max(cells.known[row], books.miscounted.get(row, 0))


def is_prefill(books: Books, row: int) -> bool:
    """Return whether a request runs and has to compute more before its next sample."""
    return books.state.request.cells.status[row] == Status.RUNNING and _is_behind(books, row)


def decodes(books: Books, row: int) -> bool:
    """Return whether a running request has its first sample, or a frame in flight brings it."""
    return books.state.request.cells.decoding[row] or not _is_behind(books, row)


def may_defer(books: Books) -> bool:
    """Return whether somebody decodes, so that a throttled step may leave prefills alone."""
    return any(decodes(books, row) for row in books.running.rows.tolist())
