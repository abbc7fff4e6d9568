"""The pass over the waiting requests: admit from the front until one does not fit.

With a connector, requests that are being loaded, or cannot be decided on yet, are skipped.
Rule: vLLM Scheduler.schedule, loop over the waiting requests.
"""

from __future__ import annotations

from enum import Enum

import numpy as np
from attrs import frozen

from kvproof.core import Status, rows
from kvproof.runtime import loads
from kvproof.runtime.books import Books
from kvproof.runtime.encoder_cache import EncoderPlan
from kvproof.runtime.errors import BrokenInvariant
from kvproof.runtime.skipped_queue import SkippedQueue
from kvproof.runtime.step_plan import StepPlan, Stretch
from kvproof.runtime.waiting_queue import WaitingQueue


class Verdict(Enum):
    """What becomes of the pass at a request that is not admitted now."""

    STOP = "it ends"
    SKIP = "it goes on behind the request"
    LOAD = "it goes on, and the request is being loaded"


@frozen(kw_only=True)
class Admission:
    """One request about to be admitted.

    Attributes:
        row: its row.
        hits: published blocks that it begins with.
        held: blocks that it holds already, because they were loaded.
        external: tokens behind those that a synchronous load brings.
        computed: all tokens that need no computing.
        tokens: tokens of its first chunk.
        drafts: draft tokens among them.
        items: what it needs of the encoder.

    """

    row: int
    hits: list[int]
    held: int
    external: int
    computed: int
    tokens: int
    drafts: int = 0
    items: EncoderPlan | None = None

    @property
    def end(self) -> int:
        """Tokens that are computed once the first chunk has run."""
        return self.computed + self.tokens


def schedule_waiting(books: Books, plan: StepPlan) -> None:
    """Admit requests in order; the first that does not fit ends the pass."""
    decodes_only = bool(books.config.num_speculative_tokens) and _all_decode(books, plan)
    skipped: list[int] = []
    while (queue := _next_queue(books)) is not None and books.state.step.budget_left > 0:
        row = queue.first()
        if books.state.pool.running >= books.config.max_num_seqs:
            break
        found = _considered(books, plan, row, decodes_only)
        if found is Verdict.STOP:
            break
        if isinstance(found, Verdict):
            queue.remove(row)
            skipped.append(row)
            continue
        # A session that was preempted in an earlier turn has new tokens: workers learn it anew.
        again = books.state.request.cells.status[row] == Status.PREEMPTED
        if not _admit(books, found):
            break
        (plan.resumed if again else plan.new).append(row)
        queue.remove(row)
        books.running.append(row)
        _give_first_chunk(books, plan, found)
    books.skipped.put_first(skipped)
    if books.transfers is not None:
        _count_undecided(books)


def _count_undecided(books: Books) -> None:
    """Say how many requests no throttle holds up, because their loads are not decided yet."""
    status = books.state.request.cells.status
    waits = (row for row in books.skipped if status[row] != Status.WAITING_FOR_REMOTE_KVS)
    if not rows.note_undecided(books.state, sum(1 for _ in waits)):
        raise BrokenInvariant("requests that wait for an answer cannot be counted.")


def _next_queue(books: Books) -> WaitingQueue | SkippedQueue | None:
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
            return Verdict.SKIP
        loads.promote(books, row)
    if books.state.request.cells.landed[row]:
        computed, held = (
            books.state.request.cells.computed[row],
            books.state.request.cells.held[row],
        )
        return _sized(books, plan, row, [], computed, 0, held, decodes_only)
    hits = _hits(books, row)
    local = len(hits) * books.state.block_size
    if books.transfers is None:
        return _sized(books, plan, row, hits, local, 0, 0, decodes_only)
    external, is_async = books.transfers.match(row, local)
    if external is None:
        return Verdict.SKIP
    if is_async:
        return Verdict.LOAD if loads.admit_load(books, row, hits, external) else Verdict.STOP
    return _sized(books, plan, row, hits, local + external, external, 0, decodes_only)


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


def _sized(  # noqa: PLR0917
    books: Books,
    plan: StepPlan,
    row: int,
    hits: list[int],
    computed: int,
    external: int,
    held: int,
    decodes_only: bool,
) -> Admission | Verdict:
    """Size the first chunk of a request."""
    config, cells = books.config, books.state.request.cells
    known = cells.known[row]
    tokens, drafts = known - computed, 0
    if books.state.step.is_deferring and tokens > 1:
        plan.deferred = True
        return Verdict.STOP
    if tokens == 1 and config.num_speculative_tokens and decodes_only:
        # A first decode is padded to the size of the others (vLLM, uniform speculative decoding).
        drafts = min(config.num_speculative_tokens, cells.ceiling[row] - known)
        wanted = 1 + config.num_speculative_tokens
        if wanted > books.state.step.budget_left or computed + wanted > config.max_model_len:
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
            return Verdict.STOP
    return Admission(
        row=row,
        hits=hits,
        held=held,
        external=external,
        computed=computed,
        tokens=tokens,
        drafts=drafts,
        items=items,
    )


def _admit(books: Books, admission: Admission) -> bool:
    """Admit the request if its blocks can be had; idle hits are needed blocks, not free ones."""
    state, row = books.state, admission.row
    references = state.block.cells.references
    shared = sum(references[block] > 0 for block in admission.hits)
    if not _first_chunk_fits(books, admission, shared + admission.held):
        return False
    whole = books.config.scheduler_reserve_full_isl
    if state.request.cells.landed[row]:
        return rows.admit_landed(state, row) if whole else rows.admit_landed_chunk(state, row)
    if whole:
        return rows.admit(state, row, shared)
    wanted = min(admission.end, state.request.cells.known[row])
    return rows.admit_chunk(state, row, shared, wanted)


def _first_chunk_fits(books: Books, admission: Admission, there: int) -> bool:
    """Return whether the first chunk fits, of whose blocks so many are there already."""
    state = books.state
    watermark = state.watermark if state.pool.running else 0
    end = admission.end + books.config.num_lookahead_tokens
    blocks = max(-(-end // state.block_size) - there, 0)
    return blocks + watermark <= state.pool.free


def _give_first_chunk(books: Books, plan: StepPlan, admission: Admission) -> None:
    state, row = books.state, admission.row
    books.started_over.discard(row)
    if not admission.held:
        books.share(row, admission.hits)
    if admission.drafts and not rows.propose(state, row, admission.drafts):
        raise BrokenInvariant(f"row {row} may not have {admission.drafts} draft tokens.")
    end = admission.end + books.config.num_lookahead_tokens
    there = len(admission.hits) + admission.held
    grown = np.full(max(-(-end // state.block_size) - there, 0), row, dtype=np.int64)
    blocks = books.take_blocks(grown) if len(grown) else grown
    if books.transfers is not None:
        _tell_connector(books, admission)
    if not rows.schedule(state, row, admission.tokens):
        raise BrokenInvariant(f"row {row} was admitted but may not get {admission.tokens} tokens.")
    if books.encoder is not None and admission.items is not None:
        books.encoder.take(row, admission.items)
    stretch = Stretch(
        np.array([row]),
        np.array([admission.tokens]),
        np.array([admission.computed]),
        np.array([state.request.cells.known[row]]),
        grown,
        blocks,
    )
    plan.stretches.append(stretch)
    plan.tables[row] = books.table_of(row)
    if books.prefix is not None and books.prefix.at_allocation:
        books.prefix.publish(stretch.rows, stretch.written())


def _tell_connector(books: Books, admission: Admission) -> None:
    """Tell the connector of the blocks; a synchronous load is done when it returns."""
    assert books.transfers is not None
    external, row = admission.external, admission.row
    books.transfers.allocated(row, admission.computed - external, external)
    if not external:
        return
    if not rows.load_now(books.state, row, external):
        raise BrokenInvariant(f"row {row} has no room for {external} tokens that are loaded.")
    books.transfers.note_synchronous(row)
