"""Handlers that forget something when a request is preempted, or left out of a step.

Each function takes the sound handler and returns the one that is put in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvproof.core import State
from kvproof.core.arrays import Flags, Integers
from kvproof.runtime.books import Books
from kvproof.runtime.encoder_cache import EncoderCache
from kvproof.runtime.step_plan import StepPlan
from kvproof.runtime.waiting_pass import Start

Handler = Callable[..., Any]


def tells_nobody(_: Handler) -> Handler:
    """Take no note of the blocks of a request that leaves the open step."""

    def leave_untold(books: Books, plan: StepPlan, row: int) -> None:
        return None

    return leave_untold


def keeps_drafts(sound: Handler) -> Handler:
    """Let a victim come back with the draft tokens that it had."""

    def preempt(state: State, victim: int, needy: int, wanted: int, fence: int) -> bool:
        drafts = state.request.cells.drafts[victim]
        done = bool(sound(state, victim, needy, wanted, fence))
        state.request.cells.drafts[victim] = drafts
        return done

    return preempt


def keeps_the_plan(_: Handler) -> Handler:
    """Leave a victim of the open step in what the step is to do."""

    def forget(plan: StepPlan, row: int) -> None:
        return None

    return forget


def leaves_scheduled(_: Handler) -> Handler:
    """Take a victim out of the plan, and not out of the open step."""

    def unschedule(books: Books, plan: StepPlan, victim: int) -> None:
        plan.forget(victim)

    return unschedule


def drops_older_frames(sound: Handler) -> Handler:
    """Take every frame but a request's last for one of an older attempt."""

    def wanted(books: Books, sampling: Integers, misled: Sequence[int]) -> Flags:
        newest = books.state.request.last_frame[sampling] == books.state.step.returned
        flags: Flags = sound(books, sampling, misled) & newest
        return flags

    return wanted


def forgets_what_landed(sound: Handler) -> Handler:
    """Know what was loaded only in the step in which the load has ended."""

    def start(books: Books, plan: StepPlan, row: int) -> Any:
        found = sound(books, plan, row)
        if isinstance(found, Start) and found.held:
            return Start(row=row, computed=0, held=found.held)
        return found

    return start


def keeps_the_stash(sound: Handler) -> Handler:
    """Keep the blocks of which no worker knows yet, though their request has lost them."""

    def schedule_running(books: Books, plan: StepPlan, choose_victim: Any) -> None:
        stash = dict(books.untold)
        sound(books, plan, choose_victim)
        books.untold |= {row: some for row, some in stash.items() if row not in books.running.rows}

    return schedule_running


def keeps_entries(_: Handler) -> Handler:
    """Keep the encoder entries of a request that gives up everything else."""

    def let_go(cache: EncoderCache, row: int) -> None:
        return None

    return let_go
