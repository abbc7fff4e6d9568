"""When a request may be parked to be loaded: one rule of the profile, decided by one core row.

What is loaded cannot be preempted, so that a load must not take what others need to get on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
from attrs import frozen

from kvproof.core import Status, rows
from kvproof.core.arrays import Flags, Integers
from kvproof.runtime.books import Books
from kvproof.runtime.demand import Demand, Quantity
from kvproof.runtime.errors import BrokenInvariant
from kvproof.runtime.profile import LoadAdmission

BESIDE_THE_FIRST = "a load leaves what the first running request needs"
TOGETHER = "what is loaded fits together"
WHOLE = "scheduler_reserve_full_isl"


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


def park(books: Books, wish: LoadWish) -> Demand | None:
    """Park a request to be loaded; return None, or what is missing, and nothing has changed."""
    for demand in demands(books, wish):
        if not demand.fits:
            return demand
    rule = _park_with_claim if fits_by_claims(books) else _park_regardless
    if not rule(books, wish):
        raise BrokenInvariant(f"row {wish.row} has what its load asks but may not be loaded.")
    return None


def demands(books: Books, wish: LoadWish) -> Iterator[Demand]:
    """Yield what the profile's rule asks of a load, one thing after the other."""
    return _GATES[books.config.profile.load_admission](books, wish)


def fits_by_claims(books: Books) -> bool:
    """Return whether the safe row decides, by which all claims fit into the pool."""
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


def held_together(books: Books) -> dict[int, int]:
    """Return the blocks that each request which is loaded, or waits loaded, needs in the end.

    None of them can be preempted, so that all must fit together (vllm#30659, vllm#45388).
    """
    some = _loading_or_landed(books).nonzero()[0].tolist()
    return {row: blocks_for_all_known(books, row) for row in some}


def still_to_come(books: Books) -> dict[int, int]:
    """Return the blocks that each of them needs and does not hold yet."""
    held = books.state.request.cells.held
    return {row: max(needed - held[row], 0) for row, needed in held_together(books).items()}


def reserved_for_prefills(books: Books) -> dict[int, int]:
    """Return the blocks that each request whose prompt is not computed yet still needs, by row.

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
    needed = np.maximum(-(-request.known[some] // size) - request.held[some], 0)
    return dict(zip(some.tolist(), needed.tolist(), strict=True))


def reserved_for_first(books: Books) -> dict[int, int]:
    """Return the blocks that the known tokens of the first running request still need, by row."""
    first = first_served(books)
    if first is None:
        return {}
    held = books.state.request.cells.held[first]
    return {first: max(blocks_for_all_known(books, first) - held, 0)}


def reserved_for_others(books: Books, rule: str) -> dict[int, int]:
    """Return for whom a rule reserves how many free blocks, by row."""
    if rule == BESIDE_THE_FIRST:
        return reserved_for_first(books)
    if rule.startswith("admit"):
        return still_to_come(books)
    return reserved_for_prefills(books)


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
        _claim(books, wish.row),
        wish.row if first is None else first,
    )


def _park_regardless(books: Books, wish: LoadWish) -> bool:
    reserves = books.config.profile.load_admission is LoadAdmission.RESERVATION
    reserved = sum(reserved_for_prefills(books).values()) if reserves else 0
    return rows.await_load_regardless(
        books.state,
        wish.row,
        wish.shared,
        wish.external,
        wish.wanted,
        reserved,
        _claim(books, wish.row),
    )


def _claim(books: Books, row: int) -> int:
    """Return the blocks that a load claims: those of all known tokens, and of look-ahead."""
    tokens = books.state.request.cells.known[row] + books.config.num_lookahead_tokens
    return -(-tokens // books.state.block_size)


def _of_blocks(books: Books, rule: str, needed: int, shared: int, reserved: int = 0) -> Demand:
    """Return a demand for free blocks, of which admissions beside others leave the watermark."""
    state = books.state
    kept = state.watermark if state.pool.running else 0
    return Demand(rule, Quantity.BLOCKS, needed, state.pool.free, shared, kept, reserved)


def _brought(books: Books, wish: LoadWish, reserved: int = 0) -> Demand:
    row = "await_load" if fits_by_claims(books) else "await_load_regardless"
    return _of_blocks(books, row, -(-wish.wanted // books.state.block_size), wish.shared, reserved)


def _fits(books: Books, wish: LoadWish) -> Iterator[Demand]:
    yield _brought(books, wish)


def _whole_prompt_fits(books: Books, wish: LoadWish) -> Iterator[Demand]:
    yield _of_blocks(books, WHOLE, blocks_for_all_known(books, wish.row), wish.shared)
    yield _brought(books, wish)


def _fits_beside_prefills(books: Books, wish: LoadWish) -> Iterator[Demand]:
    if books.config.scheduler_reserve_full_isl:
        yield _of_blocks(books, WHOLE, blocks_for_all_known(books, wish.row), wish.shared)
    yield _brought(books, wish, sum(reserved_for_prefills(books).values()))


def _all_loaded_fit_together(books: Books, wish: LoadWish) -> Iterator[Demand]:
    state = books.state
    together = sum(held_together(books).values())
    whole = blocks_for_all_known(books, wish.row)
    yield Demand(TOGETHER, Quantity.POOL, whole, state.total_blocks, reserved=together)
    yield _brought(books, wish)
    taken = -(-wish.wanted // state.block_size)
    first = sum(reserved_for_first(books).values())
    free = state.pool.free
    yield Demand(BESIDE_THE_FIRST, Quantity.BLOCKS, taken, free, wish.shared, reserved=first)


_GATES: dict[LoadAdmission, Callable[[Books, LoadWish], Iterator[Demand]]] = {
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
