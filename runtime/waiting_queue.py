"""The waiting queue: who is admitted next, first come first served, by priority or by a policy.

Rule: vLLM FCFSRequestQueue and PriorityRequestQueue.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from collections.abc import Iterator
from typing import Any, Protocol

from kvproof.runtime.errors import CallerError
from kvproof.runtime.request_table import RequestTable
from kvproof.runtime.waiting_request import Order, WaitingRequest


class WaitingQueue(Protocol):
    """Rows of requests that wait for admission, the next one first."""

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        ...

    def __iter__(self) -> Iterator[int]:
        """Yield the rows, the next one first."""
        ...

    def first(self) -> int:
        """Return the next row."""
        ...

    def add(self, row: int) -> None:
        """Queue a new request."""
        ...

    def put_back(self, row: int) -> None:
        """Queue a preempted request."""
        ...

    def remove(self, row: int) -> None:
        """Take a row out, wherever it stands."""
        ...

    def snapshot(self) -> Any:
        """Return the order, for `restore`."""
        ...

    def restore(self, kept: Any) -> None:
        """Queue what was queued when `snapshot` was called, in that order."""
        ...


class FirstComeQueue:
    """In the order of arrival; a preempted request goes to the front."""

    def __init__(self) -> None:
        """Make an empty queue."""
        self._rows: deque[int] = deque()

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._rows)

    def __iter__(self) -> Iterator[int]:
        """Yield the rows, the next one first."""
        return iter(self._rows)

    def first(self) -> int:
        """Return the next row."""
        return self._rows[0]

    def add(self, row: int) -> None:
        """Queue a new request at the end."""
        self._rows.append(row)

    def put_back(self, row: int) -> None:
        """Queue a preempted request at the front."""
        self._rows.appendleft(row)

    def remove(self, row: int) -> None:
        """Take a row out, wherever it stands."""
        if self._rows[0] == row:
            self._rows.popleft()
        else:
            self._rows.remove(row)

    def snapshot(self) -> tuple[int, ...]:
        """Return the order, for `restore`."""
        return tuple(self._rows)

    def restore(self, kept: tuple[int, ...]) -> None:
        """Queue what was queued when `snapshot` was called, in that order."""
        self._rows = deque(kept)


class PriorityQueue:
    """By (priority, arrival time, id), the least first; a preempted request goes to its place."""

    def __init__(self, table: RequestTable) -> None:
        """Make an empty queue of requests of the table."""
        self._table = table
        self._entries: list[tuple[int, float, str, int]] = []

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._entries)

    def __iter__(self) -> Iterator[int]:
        """Yield the rows, the next one first."""
        return (entry[-1] for entry in self._entries)

    def first(self) -> int:
        """Return the next row."""
        return self._entries[0][-1]

    def add(self, row: int) -> None:
        """Queue a request at its place."""
        insort(self._entries, self._entry(row))

    put_back = add

    def remove(self, row: int) -> None:
        """Take a row out, wherever it stands."""
        del self._entries[bisect_left(self._entries, self._entry(row))]

    def snapshot(self) -> tuple[tuple[int, float, str, int], ...]:
        """Return the order, for `restore`."""
        return tuple(self._entries)

    def restore(self, kept: tuple[tuple[int, float, str, int], ...]) -> None:
        """Queue what was queued when `snapshot` was called, in that order."""
        self._entries = list(kept)

    def _entry(self, row: int) -> tuple[int, float, str, int]:
        request = self._table.requests[row]
        return request.priority, request.arrival_time, request.request_id, row


class OrderedQueue:
    """By the key that a policy gives each request, the least first; equals as in `FirstComeQueue`.

    A policy may raise, and its keys may not sort, so it is asked before anything changes: `expect`
    works out where the request will stand, and the call that queues it follows at once.
    """

    def __init__(self, order: Order) -> None:
        """Make an empty queue."""
        self._order = order
        self._rows: list[int] = []
        self._keys: list[Any] = []
        self._expected: tuple[Any, int, int] = (None, 0, 0)

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return len(self._rows)

    def __iter__(self) -> Iterator[int]:
        """Yield the rows, the next one first."""
        return iter(self._rows)

    def first(self) -> int:
        """Return the next row."""
        return self._rows[0]

    def expect(self, request: WaitingRequest) -> None:
        """Ask the policy where the request that is queued next will stand.

        Raises:
            CallerError: If its key does not sort with those of the requests that wait.

        """
        key = self._order(request)
        try:
            self._expected = key, bisect_left(self._keys, key), bisect_right(self._keys, key)
        except TypeError as error:
            message = (
                f"order returned {key!r} for request {request.request_id!r}, which does not sort"
                f" with {self._keys[0]!r} of a request that waits; return keys of one type."
            )
            raise CallerError(message) from error

    def add(self, row: int) -> None:
        """Queue a new request behind its equals."""
        key, _, behind = self._expected
        self._insert(behind, key, row)

    def put_back(self, row: int) -> None:
        """Queue a preempted request before its equals."""
        key, before, _ = self._expected
        self._insert(before, key, row)

    def remove(self, row: int) -> None:
        """Take a row out, wherever it stands."""
        place = self._rows.index(row)
        del self._rows[place], self._keys[place]

    def snapshot(self) -> tuple[tuple[int, ...], tuple[Any, ...]]:
        """Return the order, for `restore`."""
        return tuple(self._rows), tuple(self._keys)

    def restore(self, kept: tuple[tuple[int, ...], tuple[Any, ...]]) -> None:
        """Queue what was queued when `snapshot` was called, in that order."""
        ordered, keys = kept
        self._rows, self._keys = list(ordered), list(keys)

    def _insert(self, place: int, key: Any, row: int) -> None:
        self._rows.insert(place, row)
        self._keys.insert(place, key)
