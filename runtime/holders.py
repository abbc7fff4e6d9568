"""Who holds what is short, and in what state: a request, or what it has left behind a fence."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping

from attrs import evolve

from kvproof.core import Status
from kvproof.core.arrays import Integers
from kvproof.runtime import load_admission, loads
from kvproof.runtime.books import Books
from kvproof.runtime.demand import Demand, Quantity
from kvproof.runtime.explanation import Doing, Holder
from kvproof.runtime.look import Look


def holders_of(look: Look, cause: int, demand: Demand) -> tuple[Holder, ...]:
    """Return who has what is short, but the refused row itself, unless it is its own reservation.

    (A load that failed wholly and is tried again stands in its own way so under the rules of vLLM
    0.25.1: `LoadAdmission.RESERVATION`.)
    """
    find = _FINDERS.get(demand.quantity)
    if find is None:
        return ()
    refused = look.name(cause)
    found = find(look, demand)
    return tuple(holder for holder in found if holder.request_id != refused or holder.reserved)


def holders_of_blocks(books: Books, steps: Mapping[int, int]) -> Iterator[Holder]:
    """Yield every holder of blocks: requests first, in the order of their arrival, then fences.

    Args:
        books: the books of a scheduler.
        steps: which step each frame in flight is.

    """
    held = books.state.request.cells.held
    for row in books.table.row_of.values():
        if held[row]:
            yield holder_in(books, row)
    yield from _behind_fences(books, steps)


def holder_in(books: Books, row: int) -> Holder:
    """Return what the request in a row holds."""
    cells, tables = books.state.request.cells, books.state.request.block_table
    blocks, items = tables.entries(row, cells.held[row]), cells.items_held[row]
    return Holder(
        books.table.requests[row].request_id,
        _doing(books, row),
        cells.held[row],
        _alone(books, blocks),
        embeddings=_embeddings(books, row) if items else 0,
    )


def _doing(books: Books, row: int) -> Doing:
    """Return what the request in a row does with its blocks."""
    cells = books.state.request.cells
    if cells.status[row] == Status.RUNNING:
        return Doing.RUNS
    if cells.status[row] == Status.WAITING_FOR_REMOTE_KVS and not loads.has_ended(books, row):
        return Doing.LOADING
    return Doing.LANDED if cells.held[row] else Doing.WAITS


def _all_blocks(look: Look, demand: Demand) -> Iterable[Holder]:
    found = holders_of_blocks(look.books, look.steps)
    if not demand.reserved:
        return found
    return _with_reservations(
        look.books, found, load_admission.reserved_for_others(look.seen, demand.rule)
    )


def _loaded_together(look: Look, demand: Demand) -> Iterable[Holder]:
    return _with_reservations(look.books, (), load_admission.held_together(look.seen))


def _running(look: Look, demand: Demand) -> Iterable[Holder]:
    return (holder_in(look.books, row) for row in look.books.running.rows.tolist())


def _encoding(look: Look, demand: Demand) -> Iterable[Holder]:
    used, some = look.books.state.request.cells.items_held, look.books.table.row_of.values()
    return (holder_in(look.books, row) for row in some if used[row])


_FINDERS: dict[Quantity, Callable[[Look, Demand], Iterable[Holder]]] = {
    Quantity.BLOCKS: _all_blocks,
    Quantity.POOL: _loaded_together,
    Quantity.PLACES: _running,
    Quantity.TOKENS: _running,
    Quantity.EMBEDDINGS: _encoding,
}


def _with_reservations(
    books: Books, found: Iterable[Holder], reserved: Mapping[int, int]
) -> list[Holder]:
    """Return the holders with what a rule reserves for rows; one may hold nothing else."""
    named = {holder.request_id: holder for holder in found}
    for row, count in reserved.items():
        name = books.table.requests[row].request_id
        holder = named.get(name, holder_in(books, row))
        if count:
            named[name] = evolve(holder, reserved=count)
    return list(named.values())


def _behind_fences(books: Books, steps: Mapping[int, int]) -> Iterator[Holder]:
    cells, tables = books.state.fence.cells, books.state.fence.fence_table
    waits_for = _transfers_of_fences(books)
    for fence, owner in books.fences.owners.items():
        blocks = tables.entries(fence, cells.fenced[fence])
        until = steps.get(cells.until[fence])
        yield Holder(
            owner,
            waits_for.get(fence, Doing.FENCED),
            len(blocks),
            _alone(books, blocks),
            until=until,
        )


def _transfers_of_fences(books: Books) -> dict[int, Doing]:
    if books.transfers is None:
        return {}
    return {
        obligation.fence: Doing.SENDING if "send" in obligation.waits_for else Doing.LOADING_STILL
        for obligation in books.transfers.obligations.values()
    }


def _alone(books: Books, blocks: Integers) -> int:
    """Return how many of the blocks nobody else has."""
    return int((books.state.block.references[blocks] == 1).sum())


def _embeddings(books: Books, row: int) -> int:
    request, size = books.state.request, books.state.item.size
    entries = request.item_table.entries(row, request.cells.items_held[row])
    return int(size[entries].sum())
