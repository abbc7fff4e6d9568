"""The pass over the waiting requests: admit from the front until one does not fit.

Rule: vLLM Scheduler.schedule, loop over the waiting requests.
"""

from __future__ import annotations

import numpy as np

from kvproof.core import Status, rows
from kvproof.runtime.books import Books
from kvproof.runtime.errors import BrokenInvariant
from kvproof.runtime.step_plan import StepPlan, Stretch


def schedule_waiting(books: Books, plan: StepPlan) -> None:
    """Admit requests in order; the core refuses the first that does not fit, and that ends it."""
    request, step = books.state.request.cells, books.state.step
    while books.waiting and step.budget_left > 0:
        row = books.waiting[0]
        resumed = request.status[row] == Status.PREEMPTED
        if not rows.admit(books.state, row):
            return
        books.waiting.popleft()
        books.running.append(row)
        (plan.resumed if resumed else plan.new).append(row)
        _give_first_chunk(books, plan, row)


def _give_first_chunk(books: Books, plan: StepPlan, row: int) -> None:
    state = books.state
    tokens = min(state.request.cells.known[row], state.step.budget_left)
    threshold = books.config.long_prefill_token_threshold
    tokens = min(tokens, threshold) if threshold else tokens
    grown = np.full(-(-tokens // state.block_size), row, dtype=np.int64)
    blocks = books.take_blocks(grown)
    if not rows.schedule(state, row, tokens):
        raise BrokenInvariant(f"row {row} was admitted but may not get {tokens} tokens.")
    known = np.array([state.request.cells.known[row]])
    one, zero = np.array([row]), np.zeros(1, dtype=np.int64)
    plan.stretches.append(Stretch(one, np.array([tokens]), zero, known, grown, blocks))
