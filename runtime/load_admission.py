"""When a request may be parked to be loaded: one rule of the profile, decided by one core row.

What is loaded cannot be preempted, so that a load must not take what others need to get on.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from attrs import frozen

from kvproof.core import Status, rows
from kvproof.core.arrays import Flags, Integers
from kvproof.runtime.books import Books
from kvproof.runtime.profile import LoadAdmission


@frozen(kw_only=True)
class LoadWish:
    """A load that a connector has offered.

    Attributes:
        row: the row of the request.
        shared: hits that other requests hold, which it will share.
        external: tokens that the load is to bring.
        wanted: tokens that its table holds at the end of the load, those of hits among them.

    """

    row: int
    shared: int
    external: int
    wanted: int


def park(books: Books, wish: LoadWish) -> bool:
    """Park a request to be loaded, if the profile's rule allows it; else nothing changes."""
    if claims_its_blocks(books):
        return _park_with_claim(books, wish)
    if not _GATES[books.config.profile.load_admission](books, wish):
        return False
    reserved = _reserved_for_prefills(books) if _reserves(books) else 0
    return rows.await_load_unclaimed(
        books.state, wish.row, wish.shared, wish.external, wish.wanted, reserved
    )


def claims_its_blocks(books: Books) -> bool:
    """Return whether the safe row decides, which keeps what each load needs in the end."""
    profile = books.config.profile
    return profile.load_admission is LoadAdmission.TOGETHER and not (
        profile.ignores_lookahead_of_loads or profile.repeats_failed_loads
    )


def blocks_for_all_known(books: Books, row: int) -> int:
    """Return the blocks that all known tokens of a request need, look-ahead among them."""
    known = books.state.request.cells.known[row]
    ignored = books.config.profile.ignores_lookahead_of_loads
    ahead = 0 if ignored else books.config.num_lookahead_tokens
    return -(-(known + ahead) // books.state.block_size)


def blocks_to_come(books: Books) -> int:
    """Return the blocks that requests which are loaded, or wait loaded, still need."""
    held = books.state.request.cells.held
    some = _loading_or_landed(books).nonzero()[0].tolist()
    return sum(max(blocks_for_all_known(books, row) - held[row], 0) for row in some)


def first_served(books: Books) -> int | None:
    """Return the running request that goes before all others; None if nobody runs."""
    running = books.running.rows
    if not len(running):
        return None
    if books.config.policy != "priority":
        return int(running[0])
    by_urgency = np.lexsort((books.table.arrival[running], books.table.priority[running]))
    return int(running[by_urgency[0]])


def _park_with_claim(books: Books, wish: LoadWish) -> bool:
    first = first_served(books)
    return rows.await_load(
        books.state,
        wish.row,
        wish.shared,
        wish.external,
        wish.wanted,
        -(-wish.wanted // books.state.block_size),
        blocks_for_all_known(books, wish.row),
        wish.row if first is None else first,
    )


def _reserves(books: Books) -> bool:
    return books.config.profile.load_admission is LoadAdmission.RESERVATION


def _fits(books: Books, wish: LoadWish) -> bool:
    return True


def _whole_prompt_fits(books: Books, wish: LoadWish) -> bool:
    state = books.state
    watermark = state.watermark if state.pool.running else 0
    return blocks_for_all_known(books, wish.row) - wish.shared + watermark <= state.pool.free


def _fits_beside_prefills(books: Books, wish: LoadWish) -> bool:
    return not books.config.scheduler_reserve_full_isl or _whole_prompt_fits(books, wish)


def _all_loaded_fit_together(books: Books, wish: LoadWish) -> bool:
    some = _loading_or_landed(books).nonzero()[0].tolist()
    needed = sum(blocks_for_all_known(books, row) for row in (*some, wish.row))
    return needed <= books.state.total_blocks


_GATES: dict[LoadAdmission, Callable[[Books, LoadWish], bool]] = {
    LoadAdmission.FITS: _fits,
    LoadAdmission.WHOLE_PROMPT: _whole_prompt_fits,
    LoadAdmission.RESERVATION: _fits_beside_prefills,
    LoadAdmission.TOGETHER: _all_loaded_fit_together,
}


def _loading_or_landed(books: Books) -> Flags:
    """Return which rows are being loaded, or wait with what was loaded."""
    request = books.state.request
    parked: Flags = (request.status == Status.WAITING_FOR_REMOTE_KVS) | request.landed
    return parked


def _reserved_for_prefills(books: Books) -> int:
    """Return the blocks that requests whose prompts are not computed yet still need.

    Rule: vLLM Scheduler._inflight_prefill_reserved_blocks.
    """
    request, size = books.state.request, books.state.block_size
    parked = _loading_or_landed(books)
    parked[list(books.started_over)] = True
    prefills = (
        (request.status == Status.RUNNING)
        & ~request.decoding
        & (request.computed + request.scheduled < request.known)
    )
    some: Integers = (parked | prefills).nonzero()[0]
    needed = -(-request.known[some] // size) - request.held[some]
    return int(np.maximum(needed, 0).sum())
