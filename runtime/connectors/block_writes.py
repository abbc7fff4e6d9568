"""Writes of block files on a thread of their own: bounded, and never the engine's trouble."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

from kvproof.runtime.connectors.transfer_tally import TransferTally

WRITTEN, DROPPED = "blocks_written", "writes_dropped"


class BlockWrites:
    """Writes that are queued or under way; used by one thread only."""

    def __init__(self, writes_pending_max: int, tally: TransferTally) -> None:
        """Count in `tally` what becomes of each write; at most so many may be pending."""
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="kvproof-folder-write")
        self._writes_pending_max, self._tally = writes_pending_max, tally
        self._pending: list[Future[None]] = []
        self._is_closed = False

    def room(self) -> int:
        """Return how many more writes can be queued now."""
        self._pending = [write for write in self._pending if not write.done()]
        return 0 if self._is_closed else self._writes_pending_max - len(self._pending)

    def add(self, write: Callable[[], bool]) -> None:
        """Queue a write, which returns whether it was still needed; there must be room."""
        self._pending.append(self._thread.submit(self._run, write))

    def drop(self, reason: str) -> None:
        """Count a write that is not made."""
        self._tally.trouble(DROPPED, f"a block is not written: {reason}")

    def flush(self) -> None:
        """Wait until every write has been made or dropped."""
        wait(self._pending)

    def close(self) -> None:
        """Make the pending writes, and end the thread."""
        self._is_closed = True
        self._thread.shutdown(wait=True)

    def _run(self, write: Callable[[], bool]) -> None:
        # Whatever it is, a full disk or a fault of ours: the engine can do without the file, and
        # nobody will ever ask this thread for its exception.
        try:
            if write():
                self._tally.add(WRITTEN)
        except Exception as error:
            self.drop(f"{type(error).__name__}: {error}")
