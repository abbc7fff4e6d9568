"""Handlers that lose track of who is queued, who runs, and who has ended.

Each function takes the sound handler and returns the one that is put in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvproof.runtime.books import Books
from kvproof.runtime.transfers import Transfers

Handler = Callable[..., Any]


def queues_twice(sound: Handler) -> Handler:
    """Queue a session that goes on twice."""

    def continue_session(books: Books, *parts: Any) -> None:
        sound(books, *parts)
        books.waiting.add(list(books.waiting)[-1])

    return continue_session


def leaves_the_entry(_: Handler) -> Handler:
    """Leave a request that has ended in the queue in which it waited."""

    def leave_queue(books: Books, row: int) -> None:
        return None

    return leave_queue


def keeps_running(_: Handler) -> Handler:
    """Leave a request that has ended among those that run."""

    def leave_running(books: Books) -> None:
        return None

    return leave_running


def wants_blocks(sound: Handler) -> Handler:
    """Take it that whoever ends has been given blocks."""

    def ends(transfers: Transfers, row: int, *, complete: bool) -> Any:
        blocks = transfers._table.block_ids(row)
        first = blocks[0]
        assert first
        return sound(transfers, row, complete=complete)

    return ends
