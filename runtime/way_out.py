"""What would end a wait: a step, samples, a transfer, an answer, a call, an end; or nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kvproof.core import Status
from kvproof.runtime import load_admission
from kvproof.runtime.demand import Demand, Quantity
from kvproof.runtime.explanation import Doing, Event, Holder, Kind, Outlook
from kvproof.runtime.look import Look


def events_of_refusal(
    look: Look, cause: int, demand: Demand, holders: Iterable[Holder]
) -> tuple[Event, ...]:
    """Return what makes room for the refused row, each event once.

    Nothing does in a freeze, and nothing if even an empty pool would not do (vllm#39734).
    """
    if look.is_frozen or _never_fits(look, cause, demand):
        return ()
    found = [*_first(look, cause, demand), *map(_of_holder, holders)]
    return tuple(dict.fromkeys(found or [Event(Kind.NEXT_STEP)]))


def events_of_outlook(look: Look, row: int, outlook: Outlook) -> tuple[Event, ...]:
    """Return what ends the wait of a request that nothing refuses."""
    name, status = look.name(row), look.status(row)
    if outlook is Outlook.IN_FLIGHT or (outlook is Outlook.ENDED and look.books.is_in_flight(row)):
        last = look.books.state.request.cells.last_frame[row]
        return (Event(Kind.SAMPLES, step=look.steps.get(last)),)
    if outlook is Outlook.ENDED:
        return ()
    if outlook is Outlook.LOADING:
        return (Event(Kind.LOADED, name),)
    if outlook is Outlook.PARKED:
        grammar = status is Status.WAITING_FOR_GRAMMAR
        return (Event(Kind.GRAMMAR if grammar else Kind.INPUT, name),)
    if look.is_frozen:
        return ()
    return (Event(Kind.RELEASE if is_deferred(look, row, outlook) else Kind.NEXT_STEP),)


def is_deferred(look: Look, row: int, outlook: Outlook) -> bool:
    """Return whether the last step deferred prefills, and the request gets tokens of none such."""
    deferred = look.books.state.step.is_deferring or look.books.deferred
    if outlook not in (Outlook.SCHEDULED, Outlook.ADMITTED) or not deferred:
        return False
    return look.tokens(row) > 1 and not look.books.state.request.cells.decoding[row]


def _never_fits(look: Look, cause: int, demand: Demand) -> bool:
    if demand.quantity not in (Quantity.BLOCKS, Quantity.POOL):
        return False
    own = look.held(cause) if demand.rule == "schedule" else 0
    if demand.reserved and demand.quantity is Quantity.BLOCKS:
        own += load_admission.reserved_for_others(look.seen, demand.rule).get(cause, 0)
    return demand.needed + own > look.books.state.total_blocks


def _first(look: Look, cause: int, demand: Demand) -> Iterator[Event]:
    """Yield what ends the wait and is nobody's end."""
    if demand.quantity is Quantity.ANSWER:
        yield Event(Kind.ANSWER, look.name(cause))
    elif demand.quantity is Quantity.RELEASE:
        yield Event(Kind.RELEASE)
    elif look.plan.awaits_frames:
        yield from (Event(Kind.SAMPLES, step=step) for step in look.steps.values())
    elif look.plan.preempted or demand.quantity is Quantity.TOKENS:
        yield Event(Kind.NEXT_STEP)


def _of_holder(holder: Holder) -> Event:
    if holder.doing is Doing.FENCED:
        return Event(Kind.SAMPLES, step=holder.until)
    if holder.doing in (Doing.SENDING, Doing.LOADING_STILL):
        return Event(Kind.SENT, holder.request_id)
    return Event(Kind.END, holder.request_id)
