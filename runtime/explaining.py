"""Explaining: from what a pass has decided, and the books, to why each request is where it is.

The guards are those of the passes themselves: what refused a request is what a pass has noted in
its plan. The plan is that of the next step, tried on a copy of the books, or the last one while as
many steps are in flight as there may be.
"""

from __future__ import annotations

from kvproof.core import Status, rows
from kvproof.runtime import waiting_pass
from kvproof.runtime.books import Books
from kvproof.runtime.demand import Demand, Quantity
from kvproof.runtime.explanation import Event, Explanation, Holder, Kind, Outlook, Queue
from kvproof.runtime.holders import holders_of, holders_of_blocks
from kvproof.runtime.look import Look
from kvproof.runtime.outlooks import outlook_of
from kvproof.runtime.trial import copy_of
from kvproof.runtime.way_out import events_of_outlook, events_of_refusal, is_deferred


def explain(look: Look, request_id: str) -> Explanation:
    """Explain one request.

    Raises:
        KeyError: If it is unknown, or has left and nothing of it is in transfer.

    """
    transfers, row = look.books.transfers, look.books.table.row_of.get(request_id)
    if row is None and transfers is not None and transfers.is_busy(request_id):
        return _of_what_is_left(look, request_id)
    return _of_row(look, look.books.table.row_of[request_id])


def explain_all(look: Look) -> list[Explanation]:
    """Explain every request that has not left, in the order of their arrival."""
    return [explain(look, name) for name in look.books.table.row_of]


def _of_what_is_left(look: Look, name: str) -> Explanation:
    """Explain a request that has left, and whose blocks wait for a transfer."""
    kept = tuple(h for h in holders_of_blocks(look.books, look.steps) if h.request_id == name)
    return Explanation(
        request_id=name,
        status=Status.ABSENT,
        queue=Queue.NONE,
        place=None,
        outlook=Outlook.ENDED,
        holders=kept,
        events=(Event(Kind.SENT, name),),
    )


def _of_row(look: Look, row: int) -> Explanation:
    queue, place = _place(look.books, row)
    outlook, cause = outlook_of(look, row)
    demand = None if cause is None else _demand(look, row, cause)
    holders: tuple[Holder, ...] = ()
    if demand is not None and cause is not None:
        holders = holders_of(look, cause, demand)
    held_up = _is_held_up(look, row, outlook)
    own = _own(look, row) if held_up else None
    events = _events(look, row, outlook, cause, demand)
    return Explanation(
        request_id=look.name(row),
        status=look.status(row),
        queue=queue,
        place=place,
        outlook=outlook,
        step=look.step if outlook in (Outlook.REFUSED, Outlook.BEHIND) else None,
        tokens=look.tokens(row) if look.is_next else 0,
        behind=look.name(cause) if cause is not None and cause != row else None,
        demand=demand,
        first=_first(look, demand),
        own=own,
        is_held_up=held_up and own is None,
        holders=holders,
        events=events,
        abortable=() if events else _abortable(look, row, cause, holders),
        note=_note(look, row, outlook),
    )


def _place(books: Books, row: int) -> tuple[Queue, int | None]:
    """Return the queue of a request, and how many stand there before it."""
    queues = {
        Queue.RUNNING: books.running.rows.tolist(),
        Queue.LANDED: list(books.landed),
        Queue.SKIPPED: list(books.skipped),
        Queue.WAITING: list(books.waiting),
    }
    for queue, members in queues.items():
        if row in members:
            return queue, members.index(row)
    return Queue.NONE, None


def _demand(look: Look, row: int, cause: int) -> Demand | None:
    """Return what refuses the row that is the cause; a running one without a guard: the budget."""
    demand = look.plan.refused.get(cause)
    if demand is None and cause == row:
        return Demand("schedule", Quantity.TOKENS, 1, look.seen.state.step.budget_left)
    return demand


def _first(look: Look, demand: Demand | None) -> int:
    """Return how many blocks others are given in the next step before the refusal."""
    if demand is None or not look.is_next or demand.quantity is not Quantity.BLOCKS:
        return 0
    return max(look.books.state.pool.free - demand.free, 0)


def _is_held_up(look: Look, row: int, outlook: Outlook) -> bool:
    """Return whether a request that waits with blocks stands behind another."""
    waits = outlook is Outlook.BEHIND and look.status(row) is not Status.RUNNING
    return waits and look.held(row) > 0


def _own(look: Look, row: int) -> Demand | None:
    """Return what would refuse a request if a pass began with it, tried on another copy."""
    books = copy_of(look.books)
    opened = rows.begin(books.state, False)
    return waiting_pass.refusal_of(books, row) if opened else None


def _events(
    look: Look, row: int, outlook: Outlook, cause: int | None, demand: Demand | None
) -> tuple[Event, ...]:
    if cause is None or demand is None or outlook is Outlook.PREEMPTED:
        return events_of_outlook(look, row, outlook)
    others = [h for h in holders_of(look, cause, demand) if h.request_id != look.name(row)]
    return events_of_refusal(look, cause, demand, others)


def _abortable(
    look: Look, row: int, cause: int | None, holders: tuple[Holder, ...]
) -> tuple[str, ...]:
    """Return whose abort would end a wait that nothing else ends."""
    names = [look.name(row), *([look.name(cause)] if cause is not None else [])]
    names += [holder.request_id for holder in holders]
    live = look.books.table.row_of
    return tuple(dict.fromkeys(name for name in names if name in live))


def _note(look: Look, row: int, outlook: Outlook) -> str:
    deferred = is_deferred(look, row, outlook)
    return " ".join(
        [*(["The last step deferred prefills."] if deferred else []), look.note]
    ).strip()
