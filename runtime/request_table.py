"""Which request is in which row, and its tokens; what state it is in, the core knows."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvproof.core import State
from kvproof.runtime.request import Request
from kvproof.runtime.token_store import TokenStore

NO_TOKEN = -(2**63)  # below anything that a model can sample


def arrival_number(time: float) -> int:
    """Return a whole number for a time, the greater the later; int64 holds it.

    The bits of a float are in the order of its values, for negative ones the other way round.
    """
    bits = int(np.float64(time).view(np.int64)) if time else 0
    return bits if bits >= 0 else -(2**63) - bits


class RequestTable:
    """Rows for live requests; the columns grow with the number of requests.

    `stop_token` is int64 [rows]: the one token that stops a row's request, or `NO_TOKEN`; rows
    with several are in `several_stops`. `serial` is int64 [rows]: a number that no other request
    has, nor another turn of the same session.
    """

    def __init__(self, state: State) -> None:
        """Make a table for the rows that the state has room for."""
        rows = state.request.capacity
        self._state = state
        self.tokens = TokenStore(rows)
        self.requests: NDArray[Any] = np.full(rows, None, dtype=object)
        self.stop_token = np.full(rows, NO_TOKEN, dtype=np.int64)
        self.serial = np.zeros(rows, dtype=np.int64)
        self.priority = np.zeros(rows, dtype=np.int64)
        self.arrival = np.zeros(rows, dtype=np.float64)
        self.several_stops: dict[int, frozenset[int]] = {}
        self.row_of: dict[str, int] = {}
        self._restored: object = None  # what was restored last, if it is what there is
        self._vacant = list(range(rows - 1, -1, -1))
        self._next_serial = 1

    def next_row(self) -> int:
        """Return the row that the next request will take, after making room for it."""
        if not self._vacant:
            self._grow()
        return self._vacant[-1]

    def insert(self, row: int, request: Request, limit: int) -> None:
        """Put a request into the row that `next_row` named, with room for `limit` tokens."""
        self._vacant.remove(row) if self._vacant[-1] != row else self._vacant.pop()
        self._put(row, request)
        self.tokens.allocate(row, request.prompt_token_ids, limit)

    def replace(self, row: int, request: Request, limit: int) -> None:
        """Put the next turn of a session into its row, with room for `limit` tokens."""
        self._restored = None
        self.requests[row] = request
        self._number(row)
        self.tokens.release(row)
        self.tokens.allocate(row, request.prompt_token_ids, limit)

    def remove(self, row: int) -> None:
        """Leave a row vacant."""
        self._restored = None
        del self.row_of[self.requests[row].request_id]
        self.requests[row] = None
        self.several_stops.pop(row, None)
        self.tokens.release(row)
        self._vacant.append(row)

    def stops(self, row: int) -> frozenset[int]:
        """Return the tokens that end a row's request."""
        stops: frozenset[int] = self.requests[row].stop_token_ids
        return stops

    def urgency(self, row: int) -> tuple[int, float, str]:
        """Return what requests are ordered by under "priority": the least goes first."""
        request = self.requests[row]
        return request.priority, request.arrival_time, request.request_id

    def remaining(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return how many tokens the requests in the given rows may still sample."""
        request = self._state.request
        left: NDArray[np.int64] = request.limit[rows] - request.known[rows]
        return left

    def block_ids(self, row: int) -> list[int]:
        """Return the block table of a row's request."""
        request = self._state.request
        blocks: list[int] = request.block_table.entries(row, request.cells.held[row]).tolist()
        return blocks

    def request_ids(self, rows: NDArray[np.int64]) -> list[str]:
        """Return the ids of the requests in the given rows."""
        return [request.request_id for request in self.requests[rows]]

    def snapshot(self) -> tuple[Any, ...]:
        """Return which request is in which row, and its tokens, for `restore`."""
        live = [(row, self.requests[row]) for row in self.row_of.values()]
        return live, self._vacant.copy(), self.tokens.snapshot()

    def restore(self, kept: tuple[Any, ...]) -> None:
        """Have the requests in the rows in which they were when `snapshot` was called."""
        live, vacant, tokens = kept
        if live is not self._restored:
            self._restore_requests(live)
            self._restored = live
        self._vacant = vacant.copy()
        self.tokens.restore(tokens)

    def _restore_requests(self, live: list[tuple[int, Request]]) -> None:
        now = {row: self.requests[row] for row in self.row_of.values()}
        for row in now.keys() - dict(live).keys():
            self.requests[row] = None
            self.several_stops.pop(row, None)
        self.row_of = {}
        for row, request in live:
            if now.get(row) is not request:
                self.several_stops.pop(row, None)
                self._put(row, request)
            self.row_of[request.request_id] = row

    def _put(self, row: int, request: Request) -> None:
        self._restored = None
        self.requests[row] = request
        self.row_of[request.request_id] = row
        self._number(row)
        self.priority[row], self.arrival[row] = request.priority, request.arrival_time
        stops = request.stop_token_ids
        self.stop_token[row] = next(iter(stops)) if len(stops) == 1 else NO_TOKEN
        if len(stops) > 1:
            self.several_stops[row] = stops

    def _number(self, row: int) -> None:
        self.serial[row] = self._next_serial
        self._next_serial += 1

    def _grow(self) -> None:
        old = len(self.requests)
        rows = 2 * old
        self._state.request.reserve(rows)
        self.tokens.reserve_rows(rows)
        self.requests = np.concatenate([self.requests, np.full(old, None, dtype=object)])
        self.stop_token = np.concatenate([self.stop_token, np.full(old, NO_TOKEN)])
        self.serial = np.concatenate([self.serial, np.zeros(old, dtype=np.int64)])
        self.priority = np.concatenate([self.priority, np.zeros(old, dtype=np.int64)])
        self.arrival = np.concatenate([self.arrival, np.zeros(old, dtype=np.float64)])
        self._vacant = list(range(rows - 1, old - 1, -1))
