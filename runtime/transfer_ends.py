"""What a report of transfers does to requests: they are promoted, start over, or fail.

Rule: vLLM Scheduler.update_from_output, _handle_invalid_blocks, _update_from_kv_xfer_finished.
"""

from __future__ import annotations

from collections.abc import Mapping

from kvproof.core import rows
from kvproof.core.arrays import Integers
from kvproof.runtime import late_samples, loads, miscounts
from kvproof.runtime.books import Books
from kvproof.runtime.connector import TransferReport
from kvproof.runtime.errors import BrokenInvariant
from kvproof.runtime.request import FinishReason
from kvproof.runtime.step_output import StepOutput
from kvproof.runtime.step_results import StepResults


def note(books: Books, output: StepOutput, report: TransferReport) -> dict[int, int]:
    """Take note of failed blocks; return running rows that were misled by a synchronous load.

    With each row comes the number of its tokens that are right.
    """
    assert books.transfers is not None
    misled = books.transfers.note_failures(report)
    if not (report.failed_blocks and books.config.profile.recomputes_in_place):
        return dict.fromkeys(misled, 0)
    return _holders(books, output, set(report.failed_blocks))


def _holders(books: Books, output: StepOutput, failed: set[int]) -> dict[int, int]:
    """Return the rows that hold a failed block, as vLLM 0.25.1 finds them.

    Of requests that share a block only the first computes it anew.
    """
    size, found, marked = books.state.block_size, {}, set[int]()
    tokens = dict(zip(output.rows.tolist(), output.tokens.tolist(), strict=True))
    for row in books.running.rows.tolist():
        before = books.state.request.cells.computed[row] - tokens.get(row, 0)
        table = books.table.block_ids(row)[: -(-before // size)]
        bad = [place for place, block in enumerate(table) if block in failed]
        if bad:
            fresh = [place for place in bad if table[place] not in marked]
            found[row] = fresh[0] * size if fresh else before
            marked.update(table[place] for place in bad)
    return found


def fail_or_restart(books: Books, results: StepResults, misled: Mapping[int, int]) -> StepResults:
    """Take requests off KV that is not theirs, or end those whose load failed, by policy."""
    assert books.transfers is not None
    if books.config.kv_load_failure_policy == "recompute":
        for row, valid in misled.items():
            _compute_anew(books, row, valid)
        return results
    failed = [*books.transfers.failed_rows(), *misled]
    if not failed:
        return results
    for row, valid in misled.items():
        _unpublish(books, row, valid)
    for row in failed:
        loads.fail(books, row)
    ended = [late_samples.Late(row, None, FinishReason.ERROR) for row in failed]
    return late_samples.joined(books, results, ended)


def _unpublish(books: Books, row: int, valid: int) -> None:
    """Let nobody find what a request has written since its load failed.

    A safe profile has published nothing of it; what it shares with others is right.
    """
    if books.prefix is not None and books.config.profile.recomputes_in_place:
        books.prefix.unpublish(books.table.block_ids(row)[valid // books.state.block_size :])


def _compute_anew(books: Books, row: int, valid: int) -> None:
    """Let a request start over, or, as only the reference does, go on from its first bad block."""
    in_flight = books.state.request.cells.last_frame[row] > books.state.step.returned
    profile = books.config.profile
    in_place = profile.recomputes_in_place and (profile.expects_dropped_samples or not in_flight)
    if profile.expects_dropped_samples:
        miscounts.note(books, row)
    if in_place and rows.cut(books.state, row, valid):
        books.cut_rows.add(row)
    else:
        loads.restart(books, row)


def note_prefills(books: Books, batch: Integers) -> None:
    """Let requests that were cut count as prefills, if the step has scheduled them again."""
    again = books.cut_rows.intersection(batch.tolist())
    for row in again:
        if miscounts.is_prefill(books, row) and not rows.note_prefill(books.state, row):
            raise BrokenInvariant(f"row {row} has known tokens to compute but is no prefill.")
    books.cut_rows -= again


def end(books: Books, report: TransferReport) -> None:
    """Let transfers end, and their requests wait to be admitted."""
    assert books.transfers is not None
    for row in books.transfers.end(report):
        if not books.config.profile.promotes_at_scan:
            loads.promote_at_once(books, row)
