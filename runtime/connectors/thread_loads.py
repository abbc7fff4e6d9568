"""Loads on worker threads: each that was started ends once, whatever happens to it.

Public reports of loads without an end: vllm#50719 (a failure was only logged), vllm#56640 (nothing
to load), vllm#50754 (one that could not start).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from attrs import frozen

from kvproof.runtime.connector import NOTHING_HAPPENED, TransferReport
from kvproof.runtime.errors import CallerError

logger = logging.getLogger(__name__)

Work = Callable[[], Sequence[int]]


@frozen
class _Running:
    request_id: str
    block_ids: tuple[int, ...]
    outcome: Future[Sequence[int]]

    def failed_blocks(self) -> Sequence[int]:
        """Return the blocks that are not filled; call it when the outcome is there."""
        if self.outcome.cancelled():
            return self.block_ids
        error = self.outcome.exception()
        if error is None:
            return self.outcome.result()
        logger.error(
            "a load for request %s failed, its blocks are reported", self.request_id, exc_info=error
        )
        return self.block_ids


class ThreadLoads:
    """Loads that have been started and not yet been reported; used by one thread only."""

    def __init__(self, num_threads: int, name: str) -> None:
        """Make up to `num_threads` threads, when they are first needed, named after `name`."""
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._running: dict[str, _Running] = {}
        self._is_closed = False

    def check(self, request_id: str) -> None:
        """Raise CallerError if no load can be started for the request."""
        if self._is_closed:
            raise CallerError(
                f"allocated({request_id!r}): got a load after close, expected none; make a new "
                "connector"
            )
        if request_id in self._running:
            raise CallerError(
                f"allocated({request_id!r}): got a second load, expected none before poll has "
                "reported the end of the first; use another id for another request"
            )

    def start(self, request_id: str, block_ids: Sequence[int], work: Work) -> None:
        """Run `work` on a thread: it fills the blocks and returns those that it could not fill.

        If it raises, none of them counts as filled. Raises CallerError as `check` does.
        """
        self.check(request_id)
        outcome = self._threads.submit(work)
        self._running[request_id] = _Running(request_id, tuple(block_ids), outcome)

    def report(self) -> TransferReport:
        """Return the loads that have ended since the last call; do not wait."""
        ended = [load for load in self._running.values() if load.outcome.done()]
        if not ended:
            return NOTHING_HAPPENED
        for load in ended:
            del self._running[load.request_id]
        return TransferReport(
            received=[load.request_id for load in ended],
            failed_blocks=[block for load in ended for block in load.failed_blocks()],
        )

    def __len__(self) -> int:
        """Return how many loads have not been reported."""
        return len(self._running)

    def close(self) -> None:
        """Wait for the loads that run, give up those that do not yet, and end the threads.

        `report` still says how each has ended.
        """
        self._is_closed = True
        self._threads.shutdown(wait=True, cancel_futures=True)
