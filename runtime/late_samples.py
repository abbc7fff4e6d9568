"""Samples that come after their request was preempted, as vLLM 0.25.1 takes them.

A safe profile preempts nobody whom a step in flight runs, so that none comes late (vllm#48245).
Rule: vLLM AsyncScheduler._update_request_with_output.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

from kvproof.core import Status, rows
from kvproof.core.arrays import Integers
from kvproof.runtime.books import Books
from kvproof.runtime.errors import BrokenInvariant
from kvproof.runtime.request import FINISH_REASONS, FinishReason
from kvproof.runtime.samples import Samples
from kvproof.runtime.step_results import StepResults


@frozen
class Late:
    """What came late for a request: a sample, or only its end; and why it ended, if it did."""

    row: int
    token: int | None
    reason: FinishReason | None


def accept(books: Books, sampling: Integers, samples: Samples) -> list[Late]:
    """Append the samples of preempted requests that the frame which has come back ran."""
    if not books.config.profile.preempts_in_flight:
        return []
    request, frame = books.state.request, books.state.step.returned
    late = (request.status[sampling] == Status.PREEMPTED) & (request.last_frame[sampling] == frame)
    pairs = zip(sampling[late].tolist(), samples.only(late).lists(), strict=True)
    return [_accept(books, row, tokens[0]) for row, tokens in pairs]


def _accept(books: Books, row: int, token: int) -> Late:
    known = books.state.request.cells.known[row]
    rule = rows.accept_late
    if token in books.table.stops(row):
        rule = rows.finish_stopped_late
    elif known + 1 == books.state.request.cells.limit[row]:
        rule = rows.finish_length_late
    if not rule(books.state, row):
        raise BrokenInvariant(f"row {row} was preempted but may not have the sample it waits for.")
    books.table.tokens.write(row, known, [token])
    if books.prefix is not None:
        books.prefix.learn(row, known + 1)
    if rule is rows.accept_late:
        return Late(row, token, None)
    books.waiting.remove(row)
    return Late(row, token, FINISH_REASONS[Status(books.state.request.cells.status[row])])


def joined(books: Books, results: StepResults, late: list[Late]) -> StepResults:
    """Return the results of a step, those that came late behind the others."""
    rows_of_late = np.array([item.row for item in late], dtype=np.int64)
    first = len(results)
    ended = {first + i: item.reason for i, item in enumerate(late) if item.reason is not None}
    return StepResults(
        np.concatenate([results.requests, books.table.requests[rows_of_late]]),
        np.concatenate([results.rows, rows_of_late]),
        Samples.ragged(
            [
                *results.samples.lists(),
                *([] if item.token is None else [item.token] for item in late),
            ]
        ),
        {**results.reasons, **ended},
    )
