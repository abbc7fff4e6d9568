"""Requests that a pass may skip: those that are being loaded, or whose loads are not decided yet.

Rule: vLLM Scheduler.skipped_waiting; loaded requests go first in a safe profile.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from kvproof.runtime.waiting_queue import WaitingQueue


class SkippedQueue:
    """Rows of skipped requests, in the order in which the next pass looks at them."""

    def __init__(self, order: WaitingQueue) -> None:
        """Make an empty queue that is in the given order, or in that of the passes."""
        self._queue = order
        self._rows: set[int] = set()

    def __len__(self) -> int:
        """Return the number of skipped requests."""
        return len(self._rows)

    def __iter__(self) -> Iterator[int]:
        """Yield the rows, the next one first."""
        return iter(self._queue)

    def __contains__(self, row: object) -> bool:
        """Return whether a request is among them."""
        return row in self._rows

    def first(self) -> int:
        """Return the next row."""
        return self._queue.first()

    def put_first(self, rows: Iterable[int]) -> None:
        """Queue rows before all others, in their order, or each at its place."""
        for row in reversed(list(rows)):
            self._queue.put_back(row)
            self._rows.add(row)

    def add(self, row: int) -> None:
        """Queue a row behind all others, or at its place."""
        self._queue.add(row)
        self._rows.add(row)

    def remove(self, row: int) -> None:
        """Take a row out, wherever it stands."""
        self._queue.remove(row)
        self._rows.remove(row)

    def snapshot(self) -> tuple[Any, frozenset[int]]:
        """Return the order, for `restore`."""
        return self._queue.snapshot(), frozenset(self._rows)

    def restore(self, kept: tuple[Any, frozenset[int]]) -> None:
        """Queue what was queued when `snapshot` was called, in that order."""
        order, members = kept
        self._queue.restore(order)
        self._rows = set(members)
