"""What happens when a step's samples come back: tokens are appended, requests end, blocks return.

Rule: vLLM Scheduler.update_from_output.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kvproof.core import Status, batches, rows
from kvproof.core.arrays import ONE, Flags, Integers
from kvproof.runtime import late_samples, miscounts, parking
from kvproof.runtime.books import Books
from kvproof.runtime.errors import BrokenInvariant, StepOrderError
from kvproof.runtime.prefix_cache import PrefixCache
from kvproof.runtime.request import FINISH_REASONS, FinishReason
from kvproof.runtime.samples import Samples
from kvproof.runtime.step_output import StepOutput
from kvproof.runtime.step_results import StepResults

_INT64 = np.dtype(np.int64)

Sampled = Mapping[str, int | Sequence[int]] | Sequence[int] | Integers | Any


def sampled_tokens(output: StepOutput, sampled: Sampled) -> Samples:
    """Return the tokens of each sampling request, in the order of the batch.

    Raises:
        StepOrderError: If requests are missing or unknown, the number of tokens is wrong, or
            they are not whole numbers.

    """
    if not isinstance(sampled, np.ndarray) and isinstance(sampled, Mapping):
        return _by_request_id(output, sampled)
    tokens = _whole_numbers(output, sampled)
    expected = len(output.sampling_places)
    if len(tokens) != expected:
        message = (
            f"step {output.step}: saw {len(tokens)} sampled tokens, expected {expected}, one for"
            " each of sampled_req_ids; with draft tokens, give a mapping from id to tokens."
        )
        raise StepOrderError(message)
    return Samples.single(tokens)


def _by_request_id(output: StepOutput, sampled: Mapping[str, int | Sequence[int]]) -> Samples:
    names = output.sampled_req_ids
    missing, unknown = set(names) - set(sampled), set(sampled) - set(names)
    if missing or unknown:
        message = (
            f"step {output.step}: no token for {sorted(missing)}, tokens for {sorted(unknown)}"
            " that do not sample in it; give one for each of sampled_req_ids."
        )
        raise StepOrderError(message)
    if all(not isinstance(sampled[name], Sequence) for name in names):
        return Samples.single(_whole_numbers(output, [sampled[name] for name in names]))
    lists = [_as_list(output, sampled[name]) for name in names]
    for name, tokens, most in zip(names, lists, output.most_samples.tolist(), strict=True):
        if not 1 <= len(tokens) <= most:
            message = (
                f"step {output.step}: saw {len(tokens)} tokens for {name!r}, expected 1 to {most}:"
                " one, and one for each accepted draft token."
            )
            raise StepOrderError(message)
    return Samples.ragged(lists)


def _as_list(output: StepOutput, tokens: int | Sequence[int]) -> list[int]:
    given = tokens if isinstance(tokens, Sequence) else [tokens]
    return _whole_numbers(output, given).tolist()  # type: ignore[no-any-return]


def _whole_numbers(output: StepOutput, sampled: Sequence[int] | Integers | Any) -> Integers:
    tokens = np.asarray(sampled).reshape(-1)
    if tokens.dtype == _INT64:
        return tokens
    if tokens.dtype.kind not in "iu" and len(tokens):
        message = (
            f"step {output.step}: saw {tokens.dtype} for sampled tokens; expected whole numbers of"
            " 64 bits."
        )
        raise StepOrderError(message)
    return tokens.astype(np.int64, copy=False)


def accept_tokens(
    books: Books, output: StepOutput, samples: Samples, misled: Sequence[int] = ()
) -> StepResults:
    """Account for the samples of a frame; return those that were accepted, and why requests ended.

    A request that has ended while the frame was in flight gets nothing, and neither does a later
    attempt of the same request. Neither do the `misled` rows, which ran on KV that a load should
    have brought and did not.
    """
    sampling, requests = output.sampling_rows, output.sampling_requests
    late: list[late_samples.Late] = []
    if misled or books.state.step.returned <= books.dropped_until:
        late = late_samples.accept(books, sampling, samples)
        wanted = _wanted(books, sampling, misled)
        sampling, requests, samples = sampling[wanted], requests[wanted], samples.only(wanted)
    if not len(sampling):
        results = StepResults(requests, sampling, samples, {})
    else:
        if samples.counts is not None:
            samples = _cut(books, sampling, samples)
        results = StepResults(requests, sampling, samples, _append(books, sampling, samples))
    return late_samples.joined(books, results, late) if late else results


def _wanted(books: Books, sampling: Integers, misled: Sequence[int]) -> Flags:
    """Return which rows still want what the frame that has come back brings."""
    request, frame = books.state.request, books.state.step.returned
    wanted: Flags = (request.status[sampling] == Status.RUNNING) & (request.stale[sampling] < frame)
    return wanted & ~np.isin(sampling, misled) if misled else wanted


def _cut(books: Books, sampling: Integers, samples: Samples) -> Samples:
    """Leave out what a request sampled beyond its first stop token or its limit."""
    request = books.state.request
    room = (request.limit[sampling] - request.known[sampling]).tolist()
    lists = [
        _until_stop(tokens[:most], books.table.stops(row))
        for row, tokens, most in zip(sampling.tolist(), samples.lists(), room, strict=True)
    ]
    return Samples.ragged(lists)


def _until_stop(tokens: list[int], stops: frozenset[int]) -> list[int]:
    for place, token in enumerate(tokens):
        if token in stops:
            return tokens[: place + 1]
    return tokens


def _append(books: Books, sampling: Integers, samples: Samples) -> dict[int, FinishReason]:
    """Append tokens to each row, and end those that are complete; return why, by place."""
    request, store = books.state.request, books.table.tokens
    known = request.known[sampling]
    stops = _stops(books, sampling, samples.last())
    counts = ONE if samples.counts is None else samples.counts
    if not _accept(books, sampling, samples, stops):
        raise BrokenInvariant(f"rows {sampling.tolist()} may not accept {counts} samples.")
    store.append(sampling, known, samples)
    if books.prefix is not None:
        _learn(books.prefix, books, sampling, known)
        if books.config.max_steps_in_flight > 1:
            publish(books, sampling, known)
    ends = (stops | (known + counts == request.limit[sampling])).nonzero()[0]
    return {int(i): finish(books, int(sampling[i]), bool(stops[i])) for i in ends}


def publish(books: Books, some: Integers, ends: Integers) -> None:
    """Publish what rows have before `ends`, if it is certain to be what it should be."""
    assert books.prefix is not None
    unconfirmed = books.transfers.unconfirmed if books.transfers is not None else {}
    if unconfirmed and not books.prefix.at_allocation:
        confirmed = ~np.isin(some, list(unconfirmed))
        some, ends = some[confirmed], ends[confirmed]
    books.prefix.publish(some, ends)


def _learn(prefix: PrefixCache, books: Books, sampling: Integers, before: Integers) -> None:
    """Hash the blocks that the new tokens have filled, so that no step has to."""
    size, now = books.state.block_size, books.state.request.known[sampling]
    filled = now // size > before // size
    for row, tokens in zip(sampling[filled].tolist(), now[filled].tolist(), strict=True):
        prefix.learn(row, tokens)


def _accept(books: Books, sampling: Integers, samples: Samples, stops: Flags) -> bool:
    if books.miscounted:
        return miscounts.accept(books, sampling, stops)
    if not books.config.num_speculative_tokens:
        return batches.accept_one(books.state, sampling, stops)
    counts = samples.counts
    if counts is None:
        counts = np.ones(len(sampling), dtype=np.int64)
    return batches.accept(books.state, sampling, counts, stops)


def _stops(books: Books, sampling: Integers, tokens: Integers) -> Flags:
    table = books.table
    stops: Flags = tokens == table.stop_token[sampling]
    if table.several_stops:
        pairs = zip(sampling.tolist(), tokens.tolist(), strict=True)
        stops |= np.array([token in table.several_stops.get(row, ()) for row, token in pairs])
    return stops


def finish(books: Books, row: int, stopped: bool) -> FinishReason:
    """End a complete request; its blocks go behind a fence."""
    books.miscounted.pop(row, None)
    if books.encoder is not None:
        books.encoder.let_go(row)
    books.note_dropped()
    if books.table.requests[row].resumable:
        parking.park_session(books, row)
        return FinishReason.STOP if stopped else FinishReason.LENGTH
    oblige = None if books.transfers is None else books.transfers.ends(row, complete=True)
    fence = books.fences.vacant()
    finish_row = rows.finish_stopped if stopped else rows.finish_length
    if not finish_row(books.state, row, fence):
        raise BrokenInvariant(f"row {row} is complete but may not finish.")
    books.close_fence(fence, row)
    if oblige is not None:
        oblige(fence)
    return FINISH_REASONS[Status(books.state.request.cells.status[row])]


def abort(books: Books, row: int) -> None:
    """End a live request, whatever its state; its blocks go behind a fence."""
    if books.encoder is not None:
        books.encoder.let_go(row)
    status = books.state.request.cells.status[row]
    oblige = None if books.transfers is None else books.transfers.ends(row, complete=False)
    fence = books.fences.vacant()
    if not rows.abort(books.state, row, fence):
        raise BrokenInvariant(f"row {row} is live but may not be aborted.")
    books.close_fence(fence, row)
    if oblige is not None:
        oblige(fence)
    books.started_over.discard(row)
    if status in (Status.WAITING, Status.PREEMPTED, Status.WAITING_FOR_REMOTE_KVS):
        books.leave_queue(row)
    elif status == Status.RUNNING:
        books.running.remove(row)
    books.note_dropped()


def release_items(books: Books, output: StepOutput) -> None:
    """Release the encoder entries of items that the frame has passed."""
    if books.encoder is None:
        return
    cells = books.state.request.cells
    for row in output.rows.tolist():
        if cells.status[row] == Status.RUNNING:
            books.encoder.release(row, _settled(books, row))


def _settled(books: Books, row: int) -> int:
    """Return how many known tokens of a running request frames that have come back computed."""
    cells = books.state.request.cells
    if cells.last_frame[row] <= books.state.step.returned:
        return min(cells.computed[row], cells.known[row])
    return cells.known[row] - 1 if cells.decoding[row] else 0


def leave_running(books: Books) -> None:
    """Take the requests that have just ended out of the running list."""
    status = books.state.request.status[books.running.rows]
    books.running.keep(status == Status.RUNNING)


def open_frame(books: Books) -> None:
    """Say that the oldest frame in flight has come back."""
    if not rows.come_back(books.state):
        raise BrokenInvariant("no frame is in flight that could come back.")


def close_frame(books: Books) -> None:
    """Say that the frame that has come back is over."""
    rule = rows.process_miscounted if books.miscounted else rows.process
    if not rule(books.state):
        raise BrokenInvariant("a frame whose samples are accounted for cannot be closed.")
