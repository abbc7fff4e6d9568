"""What comes next for a request, read off what a pass decides; and at whom it is held up."""

from __future__ import annotations

from kvproof.core import Status
from kvproof.runtime import loads
from kvproof.runtime.explanation import Outlook
from kvproof.runtime.look import Look
from kvproof.runtime.step_plan import StepPlan

Found = tuple[Outlook, int | None]


def outlook_of(look: Look, row: int) -> Found:
    """Return what comes next for a request, and the row that is refused, if one is."""
    status = look.status(row)
    if status in (Status.WAITING_FOR_GRAMMAR, Status.WAITING_FOR_STREAMING):
        return Outlook.PARKED, None
    if status in _ENDED:
        return Outlook.ENDED, None
    if status is Status.RUNNING:
        return _of_running(look, row)
    if status is Status.WAITING_FOR_REMOTE_KVS and not loads.has_ended(look.books, row):
        return Outlook.LOADING, None
    return _of_waiting(look, row)


def _of_waiting(look: Look, row: int) -> Found:
    if look.is_next and look.tokens(row):
        return Outlook.ADMITTED, None
    if look.is_next and look.seen.state.request.cells.loading[row]:
        return Outlook.LOADS, None
    return _refused(look, row) or _of_unseen(look)


def _of_running(look: Look, row: int) -> Found:
    plan = look.plan
    if look.is_next and row in plan.preempted:
        return Outlook.PREEMPTED, _needy(plan)
    if look.is_next and look.tokens(row):
        return Outlook.SCHEDULED, None
    if row in plan.refused and not look.tokens(row):
        return Outlook.REFUSED, row
    if look.books.is_in_flight(row):
        return Outlook.IN_FLIGHT, None
    found = _refused(look, row)
    if found is None and look.is_next:
        return Outlook.REFUSED, row  # for the tokens of the step are used up
    return found or (Outlook.UNSEEN, None)


def _refused(look: Look, row: int) -> Found | None:
    """Return that a request is refused, or stands behind one at which the pass stops."""
    if row in look.plan.refused:
        return Outlook.REFUSED, row
    stopped_at = look.plan.stopped_at
    return None if stopped_at is None else (Outlook.BEHIND, stopped_at)


def _of_unseen(look: Look) -> Found:
    """Return what comes next for a waiting request that the pass has not looked at.

    A step that preempts admits nobody (vLLM Scheduler.schedule).
    """
    if look.is_next and look.plan.preempted:
        return Outlook.BEHIND, _needy(look.plan)
    return Outlook.UNSEEN, None


def _needy(plan: StepPlan) -> int | None:
    """Return for whom a pass has preempted somebody."""
    if plan.stopped_at is not None:
        return plan.stopped_at
    short = [row for row, demand in plan.refused.items() if demand.rule == "schedule"]
    return short[-1] if short else None


_ENDED = (
    Status.FINISHED_STOPPED,
    Status.FINISHED_LENGTH,
    Status.FINISHED_ABORTED,
    Status.FINISHED_ERROR,
)
