"""What happens when a step's samples come back: tokens are appended, requests end, blocks return.

Rule: vLLM Scheduler.update_from_output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvproof.core import Status, batches, rows
from kvproof.core.arrays import Flags, Integers
from kvproof.runtime.books import Books
from kvproof.runtime.errors import BrokenInvariant, StepOrderError
from kvproof.runtime.request import FINISH_REASONS, FinishReason
from kvproof.runtime.step_output import StepOutput
from kvproof.runtime.step_results import StepResults

Sampled = Mapping[str, int] | Sequence[int] | Integers | Any


def sampled_tokens(output: StepOutput, sampled: Sampled) -> Integers:
    """Return one token for each sampling request, int64 [S], in the order of the batch.

    Raises:
        StepOrderError: If requests are missing or unknown, the number of tokens is wrong, or
            they are not whole numbers.

    """
    if isinstance(sampled, Mapping):
        return _by_request_id(output, sampled)
    tokens = _whole_numbers(output, sampled)
    expected = len(output.sampling_places)
    if len(tokens) != expected:
        message = (
            f"step {output.step}: saw {len(tokens)} sampled tokens, expected {expected}, one for"
            " each entry of logits_indices."
        )
        raise StepOrderError(message)
    return tokens


def _by_request_id(output: StepOutput, sampled: Mapping[str, int]) -> Integers:
    names = output.sampled_req_ids
    missing, unknown = set(names) - set(sampled), set(sampled) - set(names)
    if missing or unknown:
        message = (
            f"step {output.step}: no token for {sorted(missing)}, tokens for {sorted(unknown)}"
            " that do not sample in it; give one for each of sampled_req_ids."
        )
        raise StepOrderError(message)
    return _whole_numbers(output, [sampled[name] for name in names])


def _whole_numbers(output: StepOutput, sampled: Sequence[int] | Integers | Any) -> Integers:
    tokens = np.asarray(sampled).reshape(-1)
    if tokens.dtype.kind not in "iu" and len(tokens):
        message = (
            f"step {output.step}: saw {tokens.dtype} for sampled tokens; expected whole numbers of"
            " 64 bits."
        )
        raise StepOrderError(message)
    return tokens.astype(np.int64, copy=False)


def accept_tokens(books: Books, output: StepOutput, tokens: Integers) -> StepResults:
    """Account for the samples of a frame; return those that were accepted, and why requests ended.

    A request that was aborted while the frame was in flight gets nothing.
    """
    sampling, requests = output.sampling_rows, output.sampling_requests
    if books.aborted_in_flight:
        running = books.state.request.status[sampling] == Status.RUNNING
        _discard(books, sampling[~running])
        books.aborted_in_flight = False
        sampling, requests, tokens = sampling[running], requests[running], tokens[running]
    ends = _append(books, sampling, tokens) if len(sampling) else {}
    return StepResults(requests, sampling, tokens, ends)


def _discard(books: Books, ended: Integers) -> None:
    for row in ended.tolist():
        if not rows.discard(books.state, row):
            raise BrokenInvariant(f"row {row} has ended but is owed no sample.")


def _append(books: Books, sampling: Integers, tokens: Integers) -> dict[int, FinishReason]:
    """Append a token to each row, and end those that are complete; return why, by place."""
    request, store = books.state.request, books.table.tokens
    known = request.known[sampling]
    stops = _stops(books, sampling, tokens)
    if not batches.accept(books.state, sampling, stops):
        raise BrokenInvariant(f"rows {sampling.tolist()} may not accept a sample.")
    store.tokens[store.starts[sampling] + known] = tokens
    ends = (stops | (known + 1 == request.limit[sampling])).nonzero()[0]
    return {int(i): finish(books, int(sampling[i]), bool(stops[i])) for i in ends}


def _stops(books: Books, sampling: Integers, tokens: Integers) -> Flags:
    table = books.table
    stops: Flags = tokens == table.stop_token[sampling]
    if table.several_stops:
        pairs = zip(sampling.tolist(), tokens.tolist(), strict=True)
        stops |= np.array([token in table.several_stops.get(row, ()) for row, token in pairs])
    return stops


def finish(books: Books, row: int, stopped: bool) -> FinishReason:
    """End a complete request; its blocks go behind a fence."""
    fence = books.fences.vacant()
    finish_row = rows.finish_stopped if stopped else rows.finish_length
    if not finish_row(books.state, row, fence):
        raise BrokenInvariant(f"row {row} is complete but may not finish.")
    books.fences.close(fence)
    return FINISH_REASONS[Status(books.state.request.cells.status[row])]


def abort(books: Books, row: int) -> None:
    """End a live request, whatever its state; its blocks go behind a fence."""
    waiting = books.state.request.cells.status[row] != Status.RUNNING
    fence = books.fences.vacant()
    if not rows.abort(books.state, row, fence):
        raise BrokenInvariant(f"row {row} is live but may not be aborted.")
    books.fences.close(fence)
    if waiting:
        books.waiting.remove(row)
    else:
        books.running.remove(row)
        books.aborted_in_flight |= bool(books.state.request.cells.owed[row])


def leave_running(books: Books) -> None:
    """Take the requests that have just ended out of the running list."""
    status = books.state.request.status[books.running.rows]
    books.running.keep(status == Status.RUNNING)


def close_frame(books: Books) -> None:
    """Say that the frame in flight is over, and give back the blocks that waited for it."""
    if not rows.process(books.state):
        raise BrokenInvariant("a frame whose samples are accounted for cannot be closed.")
    books.fences.drain()
