"""Demands: a pass decides by the numbers that explanations show, and the core's rows agree."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.core import rows
from kvproof.runtime import Request, Scheduler, SchedulerConfig
from kvproof.runtime.books import Books
from kvproof.runtime.demand import NO_ANSWER, PREFILLS_DEFERRED, Demand, Quantity
from kvproof.runtime.trial import copy_of
from kvproof.runtime.waiting_pass import refusal_of


@settings(max_examples=150, deadline=None, database=None)
@given(
    blocks=st.integers(2, 14),
    size=st.integers(1, 3),
    prompts=st.lists(st.integers(1, 12), min_size=2, max_size=3),
    watermark=st.sampled_from((0.0, 0.2, 0.4)),
    lookahead=st.integers(0, 2),
    whole=st.booleans(),
)
def test_a_demand_fits_exactly_if_the_row_accepts(
    blocks: int, size: int, prompts: list[int], watermark: float, lookahead: int, *, whole: bool
) -> None:
    """Where the arithmetic refuses an admission, the guard of the row refuses it as well.

    The other way round a pass itself demands it: a row that refuses what fits is a fault.
    """
    limits: Any = {
        "num_blocks": blocks,
        "block_size": size,
        "max_model_len": 14,
        "watermark": watermark,
        "num_lookahead_tokens": lookahead,
        "scheduler_reserve_full_isl": whole,
    }
    scheduler = Scheduler(SchedulerConfig(**limits), debug=True)
    for number, prompt in enumerate(prompts):
        if prompt + lookahead <= (blocks - 1) * size:
            scheduler.add_request(Request(f"r{number}", tuple(range(prompt)), 1))
    scheduler.schedule()
    for name in scheduler.waiting_request_ids():
        row, books = scheduler._books.table.row_of[name], copy_of(scheduler._books)
        assert rows.begin(books.state, False)
        demand = refusal_of(books, row)
        if demand is None:
            assert name != scheduler.waiting_request_ids()[0], "the pass has refused the first"
            continue
        assert demand.quantity is Quantity.BLOCKS
        known = books.state.request.cells.known[row]
        refused = rows.admit(books.state, row, 0) if whole else _admit_chunk(books, row, known)
        assert not refused
        assert demand.shortage == demand.needed + demand.kept - demand.free > 0


def _admit_chunk(books: Books, row: int, wanted: int) -> bool:
    return rows.admit_chunk(books.state, row, 0, wanted)


def test_a_shortage_is_what_is_missing() -> None:
    """What is there already counts against the need, what is kept or reserved for it."""
    demand = Demand("admit", Quantity.BLOCKS, needed=12, free=3, there=2, kept=4, reserved=1)

    assert (demand.shortage, demand.fits) == (12, False)
    assert str(demand) == (
        "admit: 12 blocks needed, 3 free + 2 shared or held, 4 kept by the watermark, 1 reserved"
        " for others; 12 missing"
    )
    assert Demand("admit", Quantity.PLACES, 1, 1).fits


def test_what_cannot_be_counted_is_said_in_words() -> None:
    """An answer, or a step of another kind, is no number."""
    assert str(NO_ANSWER) == "match: the connector has not answered yet"
    assert str(PREFILLS_DEFERRED) == "schedule: the step defers prefills"
    assert not NO_ANSWER.fits
