"""The pass over the waiting requests: admit from the front until one does not fit.

With a connector, requests that are being loaded, or cannot be decided on yet, are skipped.
Rule: vLLM Scheduler.schedule, loop over the waiting requests.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
from attrs import field, frozen

from kvproof.core import Status, rows
from kvproof.core.arrays import Integers
from kvproof.runtime import loads
from kvproof.runtime.books import Books
from kvproof.runtime.demand import (
    LOADED_GO_FIRST,
    NO_ANSWER,
    PREFILLS_DEFERRED,
    STILL_LOADING,
    Demand,
    Quantity,
)
from kvproof.runtime.encoder_cache import EncoderPlan
from kvproof.runtime.errors import BrokenInvariant
from kvproof.runtime.load_admission import still_to_come
from kvproof.runtime.skipped_queue import SkippedQueue
from kvproof.runtime.step_plan import StepPlan, Stretch
from kvproof.runtime.waiting_queue import WaitingQueue


class Verdict(Enum):
    """What becomes of the pass at a request that is not admitted now."""

    STOP = "it ends"
    REFUSED = "it ends, or goes on behind the request, which does not fit"
    SKIP = "it goes on behind the request"
    LOAD = "it goes on, and the request is being loaded"


@frozen(kw_only=True)
class Start:
    """What a request can begin with, without computing anything.

    Attributes:
        row: its row.
        computed: tokens that need no computing.
        hits: published blocks that hold the first of them.
        external: how many of them, the last ones, a synchronous load brings.
        held: blocks that it holds already, because they were loaded.

    """

    row: int
    computed: int
    hits: list[int] = field(factory=list)
    external: int = 0
    held: int = 0


@frozen(kw_only=True)
class Admission:
    """One request about to be admitted: what it begins with, and its first chunk.

    Attributes:
        start: what it begins with.
        tokens: tokens of its first chunk.
        drafts: draft tokens among them.
        items: what it needs of the encoder.

    """

    start: Start
    tokens: int
    drafts: int = 0
    items: EncoderPlan | None = None

    @property
    def end(self) -> int:
        """Tokens that are computed once the first chunk has run."""
        return self.start.computed + self.tokens


def schedule_waiting(books: Books, plan: StepPlan) -> None:
    """Admit requests in order; the first that does not fit ends the pass."""
    if books.transfers is None and not books.waiting:
        return
    decodes_only = bool(books.config.num_speculative_tokens) and _all_decode(books, plan)
    skipped: list[int] = []
    refused: list[int] = []
    while (queue := next_queue(books)) is not None:
        row = queue.first()
        if not _has_room(books, plan, row):
            plan.stopped_at = row
            break
        found = _considered(books, plan, row, decodes_only)
        # A session that was preempted in an earlier turn has new tokens: workers learn it anew.
        again = books.state.request.cells.status[row] == Status.PREEMPTED
        if isinstance(found, Admission) and not _admit(books, plan, found):
            found = Verdict.REFUSED
        if found is Verdict.REFUSED and books.config.profile.scans_past_refusals:
            queue.remove(row)
            refused.append(row)
            continue
        if found in (Verdict.STOP, Verdict.REFUSED):
            plan.stopped_at = row
            break
        if isinstance(found, Verdict):
            queue.remove(row)
            skipped.append(row)
            continue
        (plan.resumed if again else plan.new).append(row)
        queue.remove(row)
        books.running.append(row)
        _give_first_chunk(books, plan, found)
    _put_back(books, refused)
    books.skipped.put_first(skipped)
    if books.transfers is not None:
        _count_undecided(books)


def _put_back(books: Books, refused: list[int]) -> None:
    """Let requests that did not fit wait where they waited before."""
    landed = books.state.request.cells.landed
    passes_loaded = books.config.profile.lets_others_pass_loaded
    for row in reversed(refused):
        if landed[row]:
            (books.skipped if passes_loaded else books.landed).put_first([row])
        else:
            books.expect_row(row)
            books.waiting.put_back(row)


def refusal_of(books: Books, row: int) -> Demand | None:
    """Return what would refuse a waiting request if a pass began with it; None if nothing would.

    It changes the books, which must be a copy, with a step that is open and empty.
    """
    plan = StepPlan()
    if _has_room(books, plan, row):
        found = _considered(books, plan, row, decodes_only=False)
        if isinstance(found, Admission):
            _admit(books, plan, found)
    return plan.refused.get(row)


def _has_room(books: Books, plan: StepPlan, row: int) -> bool:
    """Return whether the step has tokens, and the running list a place, for one request more."""
    pool, step = books.state.pool, books.state.step
    if step.budget_left > 0 and pool.running < books.config.max_num_seqs:
        return True
    if step.budget_left <= 0:
        plan.refused[row] = Demand("schedule", Quantity.TOKENS, 1, step.budget_left)
    else:
        places = books.config.max_num_seqs - pool.running
        plan.refused[row] = Demand("admit", Quantity.PLACES, 1, places)
    return False


def _count_undecided(books: Books) -> None:
    """Say how many requests no throttle holds up, because their loads are not decided yet."""
    status = books.state.request.cells.status
    waits = (row for row in books.skipped if status[row] != Status.WAITING_FOR_REMOTE_KVS)
    if not rows.note_undecided(books.state, sum(1 for _ in waits)):
        raise BrokenInvariant("requests that wait for an answer cannot be counted.")


def next_queue(books: Books) -> WaitingQueue | SkippedQueue | None:
    """Return the queue whose first request is next (vLLM _select_waiting_queue_for_scheduling).

    Requests that wait with loaded blocks go before all others, except in the order of the
    reference: nobody else may take the blocks that they need (vllm#45406, vllm#57841).
    """
    if books.landed:
        return books.landed
    if not books.skipped:
        return books.waiting if books.waiting else None
    if not books.waiting or books.config.policy != "priority":
        return books.skipped
    urgency = books.table.urgency
    before = urgency(books.waiting.first()) < urgency(books.skipped.first())
    return books.waiting if before else books.skipped


def _considered(books: Books, plan: StepPlan, row: int, decodes_only: bool) -> Admission | Verdict:
    """Return what can be given to a request now, or what else becomes of the pass."""
    if books.state.request.cells.status[row] == Status.WAITING_FOR_REMOTE_KVS:
        if not loads.has_ended(books, row):
            plan.refused[row] = STILL_LOADING
            return Verdict.SKIP
        plan.moved = True
        loads.promote(books, row)
    start = _start(books, plan, row)
    return start if isinstance(start, Verdict) else _sized(books, plan, start, decodes_only)


def _start(books: Books, plan: StepPlan, row: int) -> Start | Verdict:
    """Return what a request can begin with; if it is to be loaded first, start that."""
    cells = books.state.request.cells
    if cells.landed[row]:
        return Start(row=row, computed=cells.computed[row], held=cells.held[row])
    hits = _hits(books, row)
    local = len(hits) * books.state.block_size
    if books.transfers is None or _computes_all(books, row):
        return Start(row=row, computed=local, hits=hits)
    external, is_async = books.transfers.match(row, local)
    if external is None:
        plan.refused[row] = NO_ANSWER
        return Verdict.SKIP
    if is_async:
        refused = loads.admit_load(books, row, hits, external)
        if refused is not None:
            plan.refused[row] = refused
            return Verdict.REFUSED
        plan.moved = True
        return Verdict.LOAD
    return Start(row=row, computed=local + external, hits=hits, external=external)


def _computes_all(books: Books, row: int) -> bool:
    """Return whether a request is not to be loaded again, because its last load was in vain."""
    failed = books.state.request.cells.load_failed[row]
    return failed and not books.config.profile.repeats_failed_loads


def _hits(books: Books, row: int) -> list[int]:
    """Look up published blocks, and count what was found."""
    if books.prefix is None or not books.prefix.is_shared:
        return []
    known, cells = books.state.request.cells.known[row], books.state.request.cells
    hits = books.prefix.hits(row, known)
    found = len(hits) * books.state.block_size
    books.prefix.statistics.record(known, found, preempted=cells.preemptions[row] > 0)
    return hits


def _all_decode(books: Books, plan: StepPlan) -> bool:
    """Return whether the pass over the running requests scheduled decodes and nothing else."""
    scheduled = plan.joined().rows
    return bool(len(scheduled)) and bool(books.state.request.decoding[scheduled].all())


def _sized(books: Books, plan: StepPlan, start: Start, decodes_only: bool) -> Admission | Verdict:
    """Size the first chunk of a request."""
    config, cells = books.config, books.state.request.cells
    row, computed = start.row, start.computed
    known = cells.known[row]
    tokens, drafts = known - computed, 0
    if books.state.step.is_deferring and tokens > 1:
        plan.deferred = True
        plan.refused[row] = PREFILLS_DEFERRED
        return Verdict.STOP
    if tokens == 1 and config.num_speculative_tokens and decodes_only:
        # A first decode is padded to the size of the others (vLLM, uniform speculative decoding).
        drafts = min(config.num_speculative_tokens, cells.ceiling[row] - known)
        wanted = 1 + config.num_speculative_tokens
        most = min(books.state.step.budget_left, config.max_model_len - computed)
        if wanted > most:
            plan.refused[row] = Demand("propose", Quantity.TOKENS, wanted, most)
            return Verdict.STOP
        tokens = 1 + drafts
    threshold = config.long_prefill_token_threshold
    tokens = min(tokens, threshold) if threshold else tokens
    tokens = min(tokens, books.state.step.budget_left)
    items = None
    if books.encoder is not None and books.encoder.has_items(row):
        items = books.encoder.plan(row, computed, tokens)
        tokens = items.tokens
        if not tokens:
            if items.shortage is not None:
                plan.refused[row] = items.shortage
            return Verdict.STOP
    return Admission(start=start, tokens=tokens, drafts=drafts, items=items)


def _admit(books: Books, plan: StepPlan, admission: Admission) -> bool:
    """Admit the request if its blocks can be had; idle hits are needed blocks, not free ones."""
    state, row = books.state, admission.start.row
    shared = books.num_shared(admission.start.hits)
    demand = _admission_demand(books, admission, shared + admission.start.held)
    if _waits_for_loaded(books, row):
        demand = LOADED_GO_FIRST
    if not demand.fits:
        plan.refused[row] = demand
        return False
    whole = books.config.scheduler_reserve_full_isl
    if state.request.cells.landed[row]:
        done = rows.admit_landed(state, row) if whole else rows.admit_landed_chunk(state, row)
    elif whole:
        late = books.config.profile.lets_others_pass_loaded
        done = (rows.admit_past_loaded if late else rows.admit)(state, row, shared)
    else:
        wanted = min(admission.end, state.request.cells.known[row])
        done = rows.admit_chunk(state, row, shared, wanted)
    if not done:
        raise BrokenInvariant(f"row {row} has what {demand.rule} asks but may not be admitted.")
    return True


def _waits_for_loaded(books: Books, row: int) -> bool:
    """Return whether requests that wait loaded go before a request that does not."""
    late = books.config.profile.lets_others_pass_loaded
    return bool(books.state.pool.loaded) and not (late or books.state.request.cells.landed[row])


def _admission_demand(books: Books, admission: Admission, there: int) -> Demand:
    """Return what the guards of the four admissions ask, of which so many blocks are there already.

    Those that wait for the whole sequence ask for the known tokens too; the drafts of a first
    decode lie beyond these. Rule: vLLM KVCacheManager.allocate_slots, full_sequence_must_fit.
    """
    state, row, config = books.state, admission.start.row, books.config
    whole = config.scheduler_reserve_full_isl
    end = max(admission.end, state.request.cells.known[row]) if whole else admission.end
    needed = max(-(-(end + config.num_lookahead_tokens) // state.block_size), there)
    landed = "_landed" if state.request.cells.landed[row] else ""
    rule = f"admit{landed}{'' if whole else '_chunk'}"
    kept = state.watermark if state.pool.running else 0
    room = 0
    if config.profile.keeps_room_for_loads and not landed:
        room = sum(still_to_come(books).values())
    return Demand(rule, Quantity.BLOCKS, needed, state.pool.free, there, kept, room)


def _give_first_chunk(books: Books, plan: StepPlan, admission: Admission) -> None:
    state, start, row = books.state, admission.start, admission.start.row
    books.started_over.discard(row)
    if not start.held:
        books.share(row, start.hits)
    blocks = _grow(books, row, admission.end - admission.drafts)
    if start.external:
        _load_now(books, row, start.external)
    if admission.drafts:
        blocks = np.concatenate((blocks, _give_drafts(books, admission)))
    if books.transfers is not None:
        books.transfers.allocated(row, start.computed - start.external, start.external)
    if not rows.schedule(state, row, admission.tokens):
        raise BrokenInvariant(f"row {row} was admitted but may not get {admission.tokens} tokens.")
    if books.encoder is not None and admission.items is not None:
        books.encoder.take(row, admission.items)
    stretch = Stretch(
        np.array([row]),
        np.array([admission.tokens]),
        np.array([start.computed]),
        np.array([state.request.cells.known[row]]),
        np.full(len(blocks), row),
        blocks,
    )
    plan.stretches.append(stretch)
    plan.tables[row] = books.table.block_ids(row)
    if books.prefix is not None and books.prefix.at_allocation:
        books.prefix.publish(stretch.rows, stretch.written())


def _grow(books: Books, row: int, end: int) -> Integers:
    """Give a request the blocks that it lacks for so many tokens and the look-ahead, int64 [k]."""
    state = books.state
    needed = -(-(end + books.config.num_lookahead_tokens) // state.block_size)
    grown = np.full(max(needed - state.request.cells.held[row], 0), row, dtype=np.int64)
    return books.take_blocks(grown) if len(grown) else grown


def _give_drafts(books: Books, admission: Admission) -> Integers:
    """Pad a first decode with draft tokens; return the blocks that it takes for them, int64 [k].

    What is loaded at once must count as computed by then, and its own blocks must be there.
    """
    row = admission.start.row
    if not rows.propose(books.state, row, admission.drafts):
        raise BrokenInvariant(f"row {row} may not have {admission.drafts} draft tokens.")
    return _grow(books, row, admission.end)


def _load_now(books: Books, row: int, external: int) -> None:
    """Count what a synchronous load brings; it is done when the connector knows of the blocks."""
    assert books.transfers is not None
    again = books.config.profile.repeats_failed_loads
    if not (rows.load_now_again if again else rows.load_now)(books.state, row, external):
        raise BrokenInvariant(f"row {row} has no room for {external} tokens that are loaded.")
    books.transfers.note_synchronous(row)
