"""Handlers that lose blocks, or the signal that would bring them back.

Each function takes the sound handler and returns the one that is put in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvproof.core import Status
from kvproof.runtime.books import Books
from kvproof.runtime.transfers import Transfers
from kvproof.verify.simulated_connector import SimulatedConnector

Handler = Callable[..., Any]


def loses_only_the_live(sound: Handler) -> Handler:
    """Let a lost load end only where its request is still there."""

    def lost(transfers: Transfers, name: str) -> int:
        return int(sound(transfers, name)) if name in transfers._table.row_of else -1

    return lost


def hears_only_the_live(sound: Handler) -> Handler:
    """Let only requests that are still there hear of the ends of their loads."""

    def received(transfers: Transfers, name: str) -> int:
        return int(sound(transfers, name)) if name in transfers._table.row_of else -1

    return received


def keeps_for_nothing(sound: Handler) -> Handler:
    """Ask to keep the blocks of every request, though nothing of it is to be sent."""

    def finished(connector: SimulatedConnector, request_id: str, block_ids: Sequence[int]) -> bool:
        sound(connector, request_id, block_ids)
        return True

    return finished


def keeps_what_failed(sound: Handler) -> Handler:
    """Keep a request whose transfer is lost among the healthy ones."""

    def lost(transfers: Transfers, name: str) -> int:
        is_live = name in transfers._table.row_of
        return -1 if is_live else int(sound(transfers, name))

    return lost


def without(status: Status) -> Handler:
    """Leave one status out of a tuple of them."""
    return lambda sound: tuple(item for item in sound if item != status)


def stays_while_it_prefills(sound: Handler) -> Handler:
    """Let an aborted request that is in the midst of its prompt stay in the running list."""

    def abort(books: Books, row: int) -> None:
        cells = books.state.request.cells
        prefills = cells.status[row] == Status.RUNNING and not cells.decoding[row]
        sound(books, row)
        if prefills:
            books.running.append(row)

    return abort
