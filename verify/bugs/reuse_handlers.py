"""Handlers that let blocks be taken while something still reads or writes them.

Each function takes the sound handler and returns the one that is put in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvproof.runtime.books import Books
from kvproof.runtime.fences import Fences
from kvproof.runtime.step_buffers import StepBuffers
from kvproof.runtime.transfers import Transfers

Handler = Callable[..., Any]


def stops_at_the_abort(sound: Handler) -> Handler:
    """Take it that a transfer has stopped when it was told to stop."""

    def ends(transfers: Transfers, row: int, *, complete: bool) -> Callable[[int], None]:
        name, oblige = transfers._name(row), sound(transfers, row, complete=complete)

        def oblige_and_release(fence: int) -> None:
            oblige(fence)
            if transfers.is_busy(name) and not complete:
                transfers._release(name, "load")

        return oblige_and_release

    return ends


def reports_late(sound: Handler) -> Handler:
    """Tell the connector what has been written when the blocks may have been taken since."""

    def frame_came_back(transfers: Transfers) -> None:
        returned = transfers._state.step.returned
        fresh = [entry for entry in transfers._written if entry[0] == returned]
        transfers._written = [entry for entry in transfers._written if entry[0] != returned]
        sound(transfers)
        transfers._written += fresh

    return frame_came_back


def reports_at_dispatch(_: Handler) -> Handler:
    """Tell the connector that blocks are written when the step that writes them is dispatched."""

    def published(transfers: Transfers, digests: list[bytes], blocks: list[int]) -> None:
        transfers.connector.written(digests, blocks)

    return published


def overlooks_pins(_: Handler) -> Handler:
    """Take a fence for over when its frame is, whatever is still being sent."""

    def is_over(fences: Fences, fence: int) -> bool:
        return bool(fences._state.fence.cells.until[fence] <= fences._state.step.returned)

    return is_over


def flushes_late(_: Handler) -> Handler:
    """Fill in a step's tables only when they are asked for, whoever is in the rows by then."""

    def fill_current(buffers: StepBuffers) -> None:
        return None

    return fill_current


def settles_ahead(_: Handler) -> Handler:
    """Count what steps in flight are still to compute among what is computed for good."""

    def settled(books: Books, row: int) -> int:
        return books.state.request.cells.computed[row]

    return settled


def waits_for_no_frame(sound: Handler) -> Handler:
    """Give blocks back without waiting for the steps that touch them."""

    def make(fences: Fences, *parts: Any, **options: Any) -> None:
        sound(fences, *parts, **options | {"early": True})

    return make
