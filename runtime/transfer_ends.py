"""What a report of transfers does to requests: they are promoted, start over, or fail.

Rule: vLLM Scheduler.update_from_output, _handle_invalid_blocks, _update_from_kv_xfer_finished.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.runtime import late_samples, loads
from kvproof.runtime.books import Books
from kvproof.runtime.connector import TransferReport
from kvproof.runtime.request import FinishReason
from kvproof.runtime.step_results import StepResults


def note(books: Books, report: TransferReport) -> list[int]:
    """Take note of failed blocks; return running rows that were misled by a synchronous load."""
    assert books.transfers is not None
    return books.transfers.note_failures(report.failed_blocks)


def fail_or_restart(books: Books, results: StepResults, misled: Sequence[int]) -> StepResults:
    """Take requests off KV that is not theirs, or end those whose load failed, by policy."""
    assert books.transfers is not None
    if books.config.kv_load_failure_policy == "recompute":
        for row in misled:
            loads.restart(books, row)
        return results
    failed = [*books.transfers.failed_rows(), *misled]
    if not failed:
        return results
    for row in failed:
        loads.fail(books, row)
    ended = [late_samples.Late(row, None, FinishReason.ERROR) for row in failed]
    return late_samples.joined(books, results, ended)


def end(books: Books, report: TransferReport) -> None:
    """Let transfers end, and their requests wait to be admitted."""
    assert books.transfers is not None
    books.transfers.frame_came_back()
    for row in books.transfers.end(report):
        if not books.config.profile.promotes_at_scan:
            loads.promote_at_once(books, row)
