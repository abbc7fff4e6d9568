"""The pass over the running requests: in stretches as long as blocks last, then one preemption.

Rule: vLLM Scheduler.schedule, loop over the running requests.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kvproof.core import batches, rows
from kvproof.core.arrays import Integers
from kvproof.runtime.books import Books
from kvproof.runtime.errors import BrokenInvariant, CallerError
from kvproof.runtime.step_plan import StepPlan, Stretch

Victim = Callable[[Integers], int]


def last_running(running: Integers) -> int:
    """Choose the request that was admitted last (FCFS); `running` is in the order of visits."""
    return int(running[-1])


def schedule_running(books: Books, plan: StepPlan, choose_victim: Victim) -> None:
    """Schedule running requests in order until the budget, or the last of them, is reached."""
    position, step = 0, books.state.step
    while position < len(books.running) and step.budget_left > 0:
        position = _schedule_stretch(books, plan, position)
        if position == len(books.running) or step.budget_left == 0:
            return
        needy = int(books.running.rows[position])
        if not _make_room(books, plan, needy, choose_victim):
            return
        position = int(np.flatnonzero(books.running.rows == needy)[0])


def _schedule_stretch(books: Books, plan: StepPlan, position: int) -> int:
    """Schedule the longest run of requests that budget and free blocks allow; return its end."""
    request = books.state.request
    running = books.running.rows
    stretch = running[position:] if position else running
    computed, known = request.computed[stretch], request.known[stretch]
    tokens = _within_budget(_limited(books, known - computed), books.state.step.budget_left)
    places, missing = books.growth(stretch[: len(tokens)], computed[: len(tokens)] + tokens)
    count = len(tokens)
    if int(np.add.reduce(missing)) > books.state.pool.free:
        fit = int(missing.cumsum().searchsorted(books.state.pool.free, side="right"))
        count, places, missing = int(places[fit]), places[:fit], missing[:fit]
    if count < len(stretch):
        stretch, tokens = stretch[:count], tokens[:count]
        computed, known = computed[:count], known[:count]
    if count:
        grown = stretch[places].repeat(missing)
        blocks = books.take_blocks(grown) if len(grown) else grown
        if not batches.schedule(books.state, stretch, tokens):
            raise BrokenInvariant(f"rows {stretch.tolist()} may not get {tokens.tolist()} tokens.")
        plan.stretches.append(Stretch(stretch, tokens, computed, known, grown, blocks))
    return position + count


def _limited(books: Books, tokens: Integers) -> Integers:
    threshold = books.config.long_prefill_token_threshold
    return np.minimum(tokens, threshold) if threshold else tokens


def _within_budget(tokens: Integers, budget: int) -> Integers:
    """Return the tokens of as many requests as the budget reaches, the last perhaps with fewer."""
    if int(np.add.reduce(tokens)) <= budget:
        return tokens
    ends = tokens.cumsum()
    reached = int(ends.searchsorted(budget))
    tokens = tokens[: reached + 1].copy()
    tokens[reached] -= ends[reached] - budget
    return tokens


def _make_room(books: Books, plan: StepPlan, needy: int, choose_victim: Victim) -> bool:
    """Preempt victims until `needy` can have its tokens; False if it became a victim itself."""
    request, step = books.state.request.cells, books.state.step
    wanted = request.known[needy] - request.computed[needy]
    wanted = min(int(_limited(books, np.array([wanted]))[0]), step.budget_left)
    end = request.computed[needy] + wanted
    while end > (request.held[needy] + books.state.pool.free) * books.state.block_size:
        victim = _chosen(books, choose_victim)
        _preempt(books, plan, victim, needy, wanted)
        if victim == needy:
            return False
    return True


def _chosen(books: Books, choose_victim: Victim) -> int:
    """Return the policy's victim; a row that does not run is the policy's mistake, not ours."""
    running, chosen = books.running.rows, choose_victim(books.running.rows)
    if not isinstance(chosen, int | np.integer) or not (running == chosen).any():
        message = (
            f"choose_victim returned {chosen!r}; expected one of the running rows"
            f" {running.tolist()}."
        )
        raise CallerError(message)
    return int(chosen)


def _preempt(books: Books, plan: StepPlan, victim: int, needy: int, wanted: int) -> None:
    """Take a victim out of the step and out of the running list; its blocks come back."""
    state = books.state
    if state.request.cells.scheduled[victim]:
        _unschedule(books, plan, victim)
    fence = books.fences.vacant()
    if not rows.preempt(state, victim, needy, wanted, fence):
        raise BrokenInvariant(f"row {victim} may not be preempted for row {needy}.")
    books.fences.close(fence)
    books.fences.drain()
    books.running.remove(victim)
    books.waiting.appendleft(victim)
    plan.preempted.append(victim)


def _unschedule(books: Books, plan: StepPlan, victim: int) -> None:
    if not rows.unschedule(books.state, victim):
        raise BrokenInvariant(f"row {victim} is in the step but cannot be taken out of it.")
    plan.forget(victim)
