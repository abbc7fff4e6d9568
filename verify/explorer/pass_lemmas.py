"""What the loop guarantees of one pass, and no single row can: asked of each step of the runtime.

The proofs of progress say that a row can happen; these say that the pass lets it happen, and in
which order. Together they are why everybody ends (README, "Why nobody waits for ever").
"""

from __future__ import annotations

from collections.abc import Callable

from attrs import frozen

from kvproof.core import Status
from kvproof.runtime import Scheduler, StepOutput
from kvproof.runtime.books import Books
from kvproof.runtime.load_admission import first_served
from kvproof.verify.explorer.events import Schedule
from kvproof.verify.explorer.findings import Check, Transition

Claim = Callable[[Books, Scheduler, StepOutput, Schedule], bool]


@frozen
class PassLemma:
    """One sentence about a pass: of the books before it, the scheduler after it, and its step."""

    name: str
    sentence: str
    property: str
    holds: Claim

    def check(self, transition: Transition) -> str | None:
        """Return what is wrong with a call, if it was one of `schedule`."""
        event, output = transition.event, transition.step
        if not isinstance(event, Schedule) or output is None:
            return None
        before = transition.before._books
        if self.holds(before, transition.after, output, event):
            return None
        return f"{self.name}: {self.sentence}"


def checks_of_passes() -> tuple[Check, ...]:
    """Return a check for each lemma, for `explore`."""
    return tuple(lemma.check for lemma in PASS_LEMMAS)


def _is_quiet(books: Books) -> bool:
    """Return whether no frame is in flight, and no fence waits for a transfer."""
    return not books.in_flight and not books.state.fence.pinned.any()


def _something_happens(
    before: Books, after: Scheduler, output: StepOutput, event: Schedule
) -> bool:
    state = before.state
    undecided = any(tokens is None for _, tokens, _ in event.answers)
    if not _is_quiet(before) or state.request.loading.any() or undecided or event.throttled:
        return True
    parked = after._books.state.request.loading.any()
    waits = state.pool.running + state.pool.waiting > 0
    return bool(not waits or output.num_requests or output.preempted_req_ids or parked)


def _first_is_served(before: Books, after: Scheduler, output: StepOutput, event: Schedule) -> bool:
    first = first_served(before)
    if first is None or before.in_flight or event.throttled:
        return True
    name: str = before.table.requests[first].request_id
    if before.config.policy == "priority" and output.preempted_req_ids:
        return True  # A less urgent one that is visited before it gave way itself: the pass ends.
    return name in output.req_ids or _all_gave_way(before, output)


def _first_is_kept(before: Books, after: Scheduler, output: StepOutput, event: Schedule) -> bool:
    first = first_served(before)
    if first is None or before.table.requests[first].request_id not in output.preempted_req_ids:
        return True
    return _all_gave_way(before, output)


def _all_gave_way(before: Books, output: StepOutput) -> bool:
    return set(before.table.request_ids(before.running.rows)) == set(output.preempted_req_ids)


def _loaded_is_admitted(
    before: Books, after: Scheduler, output: StepOutput, event: Schedule
) -> bool:
    if not before.landed or len(before.running) or not _is_quiet(before):
        return True
    name = before.table.requests[before.landed.first()].request_id
    return after.status(name) is Status.RUNNING


def _loaded_go_first(before: Books, after: Scheduler, output: StepOutput, event: Schedule) -> bool:
    loaded = [before.table.requests[row].request_id for row in before.landed]
    left = any(after.status(name) is not Status.RUNNING for name in loaded)
    admitted = set(after.running_request_ids()) - set(before.table.request_ids(before.running.rows))
    return not left or admitted <= set(loaded)


def _nobody_is_overtaken(
    before: Books, after: Scheduler, output: StepOutput, event: Schedule
) -> bool:
    waiting = [before.table.requests[row].request_id for row in before.waiting]
    places = [i for i, name in enumerate(waiting) if after.status(name) is Status.RUNNING]
    left = set(after.waiting_request_ids())
    return not places or left.isdisjoint(waiting[: places[-1]])


def _who_runs_holds_a_block(
    before: Books, after: Scheduler, output: StepOutput, event: Schedule
) -> bool:
    held = after._books.state.request.cells.held
    return all(held[row] for row in after._books.running.rows.tolist())


PASS_LEMMAS = (
    PassLemma(
        "a_pass_does_something",
        "a step with work, nothing in flight and an answer for all admits, serves or preempts",
        "V1",
        _something_happens,
    ),
    PassLemma(
        "the_first_is_served",
        "the running request that goes before all others gets tokens, unless all that run are"
        " preempted for it in vain, because of what is loaded (by priority: unless somebody is)",
        "V1",
        _first_is_served,
    ),
    PassLemma(
        "the_first_is_kept",
        "the running request that goes before all others is preempted only after all others",
        "V6",
        _first_is_kept,
    ),
    PassLemma(
        "a_loaded_request_is_admitted",
        "with nobody running, the first request that waits loaded is admitted, whoever waits",
        "V3",
        _loaded_is_admitted,
    ),
    PassLemma(
        "loaded_requests_go_first",
        "nobody without loaded blocks is admitted past a request that waits with some",
        "V4",
        _loaded_go_first,
    ),
    PassLemma(
        "nobody_is_overtaken",
        "who is admitted has passed nobody that waited before and could be decided on",
        "V10",
        _nobody_is_overtaken,
    ),
    PassLemma(
        "who_runs_holds_a_block",
        "between passes each running request holds a block that it can give up",
        "V6",
        _who_runs_holds_a_block,
    ),
)
