"""The pass over the waiting requests: admit from the front until one does not fit.

Rule: vLLM Scheduler.schedule, loop over the waiting requests.
"""

from __future__ import annotations

import numpy as np
from attrs import frozen

from kvproof.core import Status, rows
from kvproof.runtime.books import Books
from kvproof.runtime.encoder_cache import EncoderPlan
from kvproof.runtime.errors import BrokenInvariant
from kvproof.runtime.step_plan import StepPlan, Stretch


@frozen
class Admission:
    """One request about to be admitted: its hits, and the tokens of its first chunk."""

    row: int
    hits: list[int]
    computed: int
    tokens: int
    drafts: int
    items: EncoderPlan | None = None

    @property
    def end(self) -> int:
        """Tokens that are computed once the first chunk has run."""
        return self.computed + self.tokens


def schedule_waiting(books: Books, plan: StepPlan) -> None:
    """Admit requests in order; the first that does not fit ends the pass."""
    cells, step = books.state.request.cells, books.state.step
    decodes_only = bool(books.config.num_speculative_tokens) and _all_decode(books, plan)
    while books.waiting and step.budget_left > 0:
        row = books.waiting.first()
        if books.state.pool.running >= books.config.max_num_seqs:
            return
        admission = _prepare(books, plan, row, decodes_only)
        # A session that was preempted in an earlier turn has new tokens: workers learn it anew.
        group = plan.resumed if cells.status[row] == Status.PREEMPTED else plan.new
        if admission is None or not _admit(books, admission):
            return
        group.append(row)
        books.waiting.remove(row)
        books.running.append(row)
        _give_first_chunk(books, plan, admission)


def _all_decode(books: Books, plan: StepPlan) -> bool:
    """Return whether the pass over the running requests scheduled decodes and nothing else."""
    scheduled = plan.joined().rows
    return bool(len(scheduled)) and bool(books.state.request.decoding[scheduled].all())


def _prepare(books: Books, plan: StepPlan, row: int, decodes_only: bool) -> Admission | None:
    """Look up hits and size the first chunk; None ends the pass."""
    config, cells = books.config, books.state.request.cells
    known = cells.known[row]
    hits = [] if books.prefix is None else books.prefix.hits(row, known)
    if books.prefix is not None:
        preempted = cells.preemptions[row] > 0
        size = books.state.block_size
        books.prefix.statistics.record(known, len(hits) * size, preempted=preempted)
    computed = len(hits) * books.state.block_size
    tokens, drafts = known - computed, 0
    if books.state.step.is_deferring and tokens > 1:
        plan.deferred = True
        return None
    if tokens == 1 and config.num_speculative_tokens and decodes_only:
        # A first decode is padded to the size of the others (vLLM, uniform speculative decoding).
        drafts = min(config.num_speculative_tokens, cells.ceiling[row] - known)
        wanted = 1 + config.num_speculative_tokens
        if wanted > books.state.step.budget_left or computed + wanted > config.max_model_len:
            return None
        tokens = 1 + drafts
    threshold = config.long_prefill_token_threshold
    tokens = min(tokens, threshold) if threshold else tokens
    tokens = min(tokens, books.state.step.budget_left)
    if books.encoder is None or not books.encoder.has_items(row):
        return Admission(row, hits, computed, tokens, drafts)
    items = books.encoder.plan(row, computed, tokens)
    if not items.tokens:
        return None
    return Admission(row, hits, computed, items.tokens, drafts, items)


def _admit(books: Books, admission: Admission) -> bool:
    """Admit the request if its blocks can be had; idle hits are needed blocks, not free ones."""
    state, row = books.state, admission.row
    references = state.block.cells.references
    shared = sum(references[block] > 0 for block in admission.hits)
    if not _first_chunk_fits(books, admission, shared):
        return False
    if books.config.scheduler_reserve_full_isl:
        return rows.admit(state, row, shared)
    wanted = min(admission.end, state.request.cells.known[row])
    return rows.admit_chunk(state, row, shared, wanted)


def _first_chunk_fits(books: Books, admission: Admission, shared: int) -> bool:
    state = books.state
    watermark = state.watermark if state.pool.running else 0
    end = admission.end + books.config.num_lookahead_tokens
    blocks = -(-end // state.block_size) - shared
    return blocks + watermark <= state.pool.free


def _give_first_chunk(books: Books, plan: StepPlan, admission: Admission) -> None:
    state, row = books.state, admission.row
    _share(books, admission)
    if admission.drafts and not rows.propose(state, row, admission.drafts):
        raise BrokenInvariant(f"row {row} may not have {admission.drafts} draft tokens.")
    end = admission.end + books.config.num_lookahead_tokens
    grown = np.full(-(-end // state.block_size) - len(admission.hits), row, dtype=np.int64)
    blocks = books.take_blocks(grown) if len(grown) else grown
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
    plan.tables[row] = [*admission.hits, *blocks.tolist()]
    if books.prefix is not None and books.prefix.at_allocation:
        books.prefix.publish(stretch.rows, stretch.written())


def _share(books: Books, admission: Admission) -> None:
    """Put the hits into the request's table; idle ones leave the free queue."""
    if books.prefix is None:
        return
    queued, row, hits = books.state.block.cells.queued, admission.row, admission.hits
    for block, number in zip(hits, books.prefix.numbers(row, len(hits)), strict=True):
        if queued[block]:
            books.queue.remove(block)
        if not rows.share(books.state, row, block, number):
            raise BrokenInvariant(f"row {row} may not share block {block}.")
    books.prefix.admitted(row, len(hits))
