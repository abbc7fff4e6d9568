"""The pass over the running requests: in stretches as long as blocks last, then one preemption.

Rule: vLLM Scheduler.schedule, loop over the running requests.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kvproof.core import batches, rows
from kvproof.core.arrays import ONE, ZERO, Integers
from kvproof.runtime import miscounts
from kvproof.runtime.books import Books
from kvproof.runtime.demand import Demand, Quantity
from kvproof.runtime.encoder_cache import EncoderPlan
from kvproof.runtime.errors import BrokenInvariant, CallerError
from kvproof.runtime.running_view import RunningView
from kvproof.runtime.step_plan import StepPlan, Stretch
from kvproof.runtime.wish import Wish

Victim = Callable[[RunningView], int]


def last_running(running: RunningView) -> int:
    """Choose the request that was admitted last (FCFS)."""
    return int(running.rows[-1])


def least_urgent(running: RunningView) -> int:
    """Choose the greatest (priority, arrival time), of equals the one that was admitted last."""
    return int(running.rows[np.lexsort((running.arrival_time, running.priority))[-1]])


def first_of_least_urgent(running: RunningView) -> int:
    """Choose the same, of equals the first in the order of visits, as only the reference does."""
    urgency = np.lexsort((running.arrival_time, running.priority))
    last = urgency[-1]
    equal = (running.priority == running.priority[last]) & (
        running.arrival_time == running.arrival_time[last]
    )
    return int(running.rows[equal.nonzero()[0][0]])


def schedule_running(books: Books, plan: StepPlan, choose_victim: Victim) -> None:
    """Schedule running requests in order until the budget, or the last of them, is reached."""
    position, step = 0, books.state.step
    if books.untold:
        running = set(books.running.rows.tolist())
        books.untold = {row: some for row, some in books.untold.items() if row in running}
    while position < len(books.running) and step.budget_left > 0:
        end = _next_alone(books, position)
        if end > position:
            position = _schedule_stretch(books, plan, position, end)
        if position == len(books.running) or step.budget_left == 0:
            return
        following = _serve_one(books, plan, position, choose_victim)
        if following is None:
            return
        position = following


def _next_alone(books: Books, position: int) -> int:
    """Return where the next request stands that goes by itself, not in a stretch.

    It has items for the encoder, or samples are expected of it that do not come.
    """
    if books.encoder is None and not books.miscounted:
        return len(books.running)
    rows_left = books.running.rows[position:].tolist()
    alone = (place for place, row in enumerate(rows_left) if _goes_alone(books, row))
    return position + next(alone, len(rows_left))


def _goes_alone(books: Books, row: int) -> bool:
    with_items = books.encoder is not None and books.encoder.has_items(row)
    return with_items or row in books.miscounted


def _schedule_stretch(books: Books, plan: StepPlan, position: int, end: int) -> int:
    """Schedule the longest run of requests that budget and free blocks allow; return its end."""
    running = books.running.rows
    stretch = running if end - position == len(running) else running[position:end]
    wish = _wish(books, stretch)
    if not len(wish.rows):
        return end
    tokens = _within_budget(wish.tokens, books.state.step.budget_left)
    count = len(tokens)
    places, missing = books.growth(wish.rows[:count], wish.computed[:count] + tokens)
    grown = wish.rows[places].repeat(missing)
    if len(grown) > books.state.pool.free:
        fit = int(missing.cumsum().searchsorted(books.state.pool.free, side="right"))
        count, places = int(places[fit]), places[:fit]
        grown = wish.rows[places].repeat(missing[:fit])
    if count:
        once = places if len(places) == len(grown) else None
        _give(books, plan, wish.first(count, tokens), grown, once)
    return position + wish.end_of(count, len(tokens), len(stretch))


def _wish(books: Books, stretch: Integers) -> Wish:
    """Return what each request would get, had it the step to itself; who gets nothing is left out.

    A step that defers prefills serves decodes only (vLLM Scheduler.schedule, defer_prefills).
    """
    request, config = books.state.request, books.config
    computed, known = request.computed[stretch], request.known[stretch]
    if config.max_steps_in_flight > 1 and books.in_flight:
        return _wish_ahead(books, stretch, computed, known)
    tokens = _with_drafts(books, stretch, computed, known - computed)
    if not books.state.step.is_deferring and not config.num_speculative_tokens:
        return Wish(stretch, computed, known, tokens, None)
    wanted = tokens > 0
    if books.state.step.is_deferring:
        wanted &= request.decoding[stretch]
    return Wish(stretch, computed, known, tokens, None).only(wanted)


def _wish_ahead(books: Books, stretch: Integers, computed: Integers, known: Integers) -> Wish:
    """Return the same with frames in flight: one token more than is known may be computed.

    Nobody computes what lies beyond its limit (vLLM Scheduler.schedule, num_output_placeholders),
    or behind draft tokens of which it is not known whether they were right.
    """
    request, config = books.state.request, books.config
    expected = np.maximum(known, computed + ONE)
    tokens = _with_drafts(books, stretch, computed, expected - computed)
    wanted = expected < request.limit[stretch]
    if config.num_speculative_tokens:
        wanted &= (computed < known) & (tokens > ZERO)
    if books.state.step.is_deferring:
        wanted &= request.decoding[stretch] | (computed >= known)
    return Wish(stretch, computed, known, tokens, None).only(wanted)


def _with_drafts(books: Books, stretch: Integers, computed: Integers, tokens: Integers) -> Integers:
    """Return the tokens of each request and its drafts, as far as ceiling and threshold allow."""
    request, config = books.state.request, books.config
    if config.num_speculative_tokens:
        most = np.minimum(request.ceiling[stretch], config.max_model_len - 1)
        tokens = np.minimum(tokens + request.drafts[stretch], most - computed)
    if config.long_prefill_token_threshold:
        tokens = np.minimum(tokens, config.long_prefill_token_threshold)
    return tokens


def _within_budget(tokens: Integers, budget: int) -> Integers:
    """Return the tokens of as many requests as the budget reaches, the last perhaps with fewer."""
    if tokens[tokens.argmax()] * len(tokens) <= budget:  # so they are without being added up
        return tokens
    ends = tokens.cumsum()
    if ends[-1] <= budget:
        return tokens
    reached = int(ends.searchsorted(budget))
    tokens = tokens[: reached + 1].copy()
    tokens[reached] -= ends[reached] - budget
    return tokens


def _give(
    books: Books, plan: StepPlan, wish: Wish, grown: Integers, places: Integers | None = None
) -> None:
    """Give blocks to the rows `grown`, one each time it is named, and tokens to the stretch."""
    blocks = books.take_blocks(grown) if len(grown) else grown
    if books.untold:
        grown, blocks = _with_untold(books, wish.rows, grown, blocks)
        places = None
    if not _schedule(books, wish):
        raise BrokenInvariant(
            f"rows {wish.rows.tolist()} may not get {wish.tokens.tolist()} tokens."
        )
    stretch = Stretch(wish.rows, wish.tokens, wish.computed, wish.known, grown, blocks, places)
    plan.stretches.append(stretch)
    if books.prefix is not None and books.prefix.at_allocation:
        books.prefix.publish(stretch.rows, stretch.written())


def _schedule(books: Books, wish: Wish) -> bool:
    if books.miscounted and int(wish.rows[0]) in books.miscounted:  # It goes by itself.
        return rows.schedule_miscounted(books.state, int(wish.rows[0]), int(wish.tokens[0]))
    return batches.schedule(books.state, wish.rows, wish.tokens)


def _with_untold(
    books: Books, some: Integers, grown: Integers, blocks: Integers
) -> tuple[Integers, Integers]:
    """Return the new blocks of a stretch, and those before them that no worker knows yet."""
    late = [(row, block) for row in some.tolist() for block in books.untold.pop(row, ())]
    pairs = np.array(late, dtype=np.int64).reshape(-1, 2)
    grown, blocks = np.concatenate([pairs[:, 0], grown]), np.concatenate([pairs[:, 1], blocks])
    side_by_side = grown.argsort(kind="stable")
    return grown[side_by_side], blocks[side_by_side]


def _serve_one(books: Books, plan: StepPlan, position: int, choose_victim: Victim) -> int | None:
    """Schedule the request at `position`, making room for it; return where the pass goes on.

    None ends the pass: the request became a victim itself, or the victim is still in flight.
    """
    wish, items = _wish_of_one(books, position)
    if not len(wish.rows):
        if items is not None and items.shortage is not None:
            plan.refused[int(books.running.rows[position])] = items.shortage
        return position + 1
    needy, early = int(wish.rows[0]), 0
    while (shortage := _shortage(books, wish)) is not None:
        plan.refused[needy] = shortage
        victim = _chosen(books, choose_victim)
        if books.is_in_flight(victim) and not books.config.profile.preempts_in_flight:
            _await_frames(books, plan, victim)
            plan.stopped_at = needy
            return None
        scheduled = bool(books.state.request.cells.scheduled[victim])
        place = int((books.running.rows == victim).nonzero()[0][0])
        passed_over = place < position - early
        early += scheduled if books.config.profile.skips_after_early_victim else passed_over
        _preempt(books, plan, victim, needy, int(wish.tokens[0]))
        if victim == needy:
            plan.stopped_at = needy
            return None
        wish, items = _with_items(books, wish)  # The victim may have been to compute one of them.
    places, missing = books.growth(wish.rows, wish.computed + wish.tokens)
    _give(books, plan, wish, wish.rows[places].repeat(missing))
    if items is not None and books.encoder is not None:
        books.encoder.take(needy, items)
    return position - early + 1


def _wish_of_one(books: Books, position: int) -> tuple[Wish, EncoderPlan | None]:
    """Return what one request would get within the budget, and what it needs of the encoder."""
    row = int(books.running.rows[position])
    expected = row in books.miscounted
    wish = (
        miscounts.wish(books, row)
        if expected
        else _wish(books, books.running.rows[position : position + 1])
    )
    if not len(wish.rows):
        return wish, None
    return _with_items(books, wish.first(1, np.minimum(wish.tokens, books.state.step.budget_left)))


def _with_items(books: Books, wish: Wish) -> tuple[Wish, EncoderPlan | None]:
    """Return what is left of the wish of one request with the items that it can have now."""
    row = int(wish.rows[0])
    if books.encoder is None or not books.encoder.has_items(row):
        return wish, None
    items = books.encoder.plan(row, int(wish.computed[0]), int(wish.tokens[0]))
    count = 1 if items.tokens else 0
    return wish.first(count, np.full(count, items.tokens)), items


def _shortage(books: Books, wish: Wish) -> Demand | None:
    """Return what the guard of `schedule` asks in blocks, if that cannot be had."""
    _, missing = books.growth(wish.rows, wish.computed + wish.tokens)
    needed, free = int(np.add.reduce(missing)), books.state.pool.free
    return Demand("schedule", Quantity.BLOCKS, needed, free) if needed > free else None


def _chosen(books: Books, choose_victim: Victim) -> int:
    """Return the policy's victim; a row that does not run is the policy's mistake, not ours."""
    running = books.running.rows
    chosen = choose_victim(RunningView.of(books.table, running))
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
    books.expect_row(victim, preemptions=1)
    if state.request.cells.scheduled[victim]:
        _unschedule(books, plan, victim)
    if books.encoder is not None:
        books.encoder.let_go(victim)
    if books.transfers is not None:
        books.transfers.preempted(victim)
    fence = books.fences.vacant()
    in_flight = books.is_in_flight(victim)
    rule = rows.preempt if books.preempts_in_turn else rows.preempt_at_will
    if in_flight or needy in books.miscounted:
        rule = rows.preempt_in_flight
    miscounts.renew(books, victim)
    if in_flight:
        books.note_dropped()
    if not rule(state, victim, needy, wanted, fence):
        raise BrokenInvariant(f"row {victim} may not be preempted for row {needy}.")
    books.close_fence(fence, victim)
    books.fences.drain()
    books.running.remove(victim)
    books.waiting.put_back(victim)
    plan.preempted.append(victim)


def _await_frames(books: Books, plan: StepPlan, victim: int) -> None:
    """Leave a victim out of the step, so that it can be preempted when its frames are over.

    Preempting it now would free nothing, and the next victim neither (vllm#49674).
    """
    if books.state.request.cells.scheduled[victim]:
        leave_untold(books, plan, victim)
        _unschedule(books, plan, victim)
    plan.awaits_frames = True


def leave_untold(books: Books, plan: StepPlan, row: int) -> None:
    """Take note of the blocks of a request that leaves the open step and keeps its table.

    The workers are told of them with its next tokens.
    """
    if blocks := plan.grown(row):
        books.untold[row] = blocks


def _unschedule(books: Books, plan: StepPlan, victim: int) -> None:
    if not rows.unschedule(books.state, victim):
        raise BrokenInvariant(f"row {victim} is in the step but cannot be taken out of it.")
    plan.forget(victim)
    if books.encoder is not None:
        books.encoder.undo(victim)
