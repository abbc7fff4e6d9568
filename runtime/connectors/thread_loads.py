"""Loads on worker threads: each that was started ends once, whatever happens to it.

Public reports of loads without an end: vllm#50719 (a failure was only logged), vllm#56640 (nothing
to load), vllm#50754 (one that could not start), vllm#30659 (a wait for a peer that is gone).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait

from attrs import field, frozen

from kvproof.runtime.connector import NOTHING_HAPPENED, TransferReport
from kvproof.runtime.connectors.write_permit import WritePermit
from kvproof.runtime.errors import CallerError

logger = logging.getLogger(__name__)

LOAD_TIMEOUT_S = 60.0
"""How long a load may take before its request goes on without it."""

Work = Callable[[WritePermit], Sequence[int]]


@frozen
class _Running:
    request_id: str
    block_ids: tuple[int, ...]
    permit: WritePermit
    deadline: float
    outcome: Future[Sequence[int]] = field(repr=False)

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
    """Loads that have been started and not yet been reported; used by one thread only.

    A load that takes too long is given up: its thread cannot be stopped, but it writes no more.
    """

    def __init__(
        self, num_threads: int, name: str, timeout_seconds: float = LOAD_TIMEOUT_S
    ) -> None:
        """Make up to `num_threads` threads, when they are first needed, named after `name`.

        Raises CallerError if `timeout_seconds` is not above 0.
        """
        if not timeout_seconds > 0:
            raise CallerError(
                f"load_timeout_seconds: got {timeout_seconds}, expected more than 0; infinity waits"
                " for ever"
            )
        self._threads = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._timeout = timeout_seconds
        self._running: dict[str, _Running] = {}
        self._given_up: list[_Running] = []
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

        It writes with the permit that it is given. If it raises, none of the blocks counts as
        filled. Raises CallerError as `check` does.
        """
        self.check(request_id)
        permit, deadline = WritePermit(), time.monotonic() + self._timeout
        outcome = self._threads.submit(work, permit)
        self._running[request_id] = _Running(
            request_id, tuple(block_ids), permit, deadline, outcome
        )

    def report(self) -> TransferReport:
        """Return the loads that have ended since the last call, or took too long; do not wait."""
        now = time.monotonic()
        ended = [load for load in self._running.values() if load.outcome.done()]
        late = [load for load in self._running.values() if load.deadline <= now]
        lost = [load for load in late if not load.outcome.done() and load.permit.withdraw()]
        if not (ended or lost):
            return NOTHING_HAPPENED
        for load in (*ended, *lost):
            del self._running[load.request_id]
        self._give_up(lost)
        return TransferReport(
            received=[load.request_id for load in ended],
            failed_blocks=[block for load in ended for block in load.failed_blocks()],
            lost=[load.request_id for load in lost],
        )

    def is_hanging(self) -> bool:
        """Return whether some thread is still busy with a load that was given up."""
        if self._given_up:
            self._given_up = [load for load in self._given_up if not load.outcome.done()]
        return bool(self._given_up)

    def __len__(self) -> int:
        """Return how many loads have not been reported."""
        return len(self._running)

    def close(self) -> None:
        """Wait for the loads that run, give up those that do not yet, and end the threads.

        Nobody is waited for longer than a load may take. `report` still says how each has ended.
        """
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)
        running = [load.outcome for load in (*self._running.values(), *self._given_up)]
        # Of a cancelled one nobody will tell `wait` that it is done.
        running = [outcome for outcome in running if not outcome.done()]
        hanging = wait(running, None if self._timeout == float("inf") else self._timeout).not_done
        if hanging:
            logger.warning(
                "%d threads hang in loads that were given up; the process ends when they do",
                len(hanging),
            )
        self._threads.shutdown(wait=not hanging)

    def _give_up(self, loads: Sequence[_Running]) -> None:
        for load in loads:
            # One that has not started never will; of the others, the thread is still to come back.
            if not load.outcome.cancel():
                self._given_up.append(load)
            logger.warning(
                "a load for request %s took more than %g s and is given up; what it should have"
                " brought is computed",
                load.request_id,
                self._timeout,
            )
