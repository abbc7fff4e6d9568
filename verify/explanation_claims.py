"""What must be true of explanations: they change nothing, name holders exactly, and come true."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvproof.core.tables import Tables
from kvproof.runtime import Scheduler, StepOutput
from kvproof.runtime.demand import Quantity
from kvproof.runtime.explanation import Doing, Explanation, Outlook

COMING = (Outlook.SCHEDULED, Outlook.ADMITTED)


def check_explanations(scheduler: Scheduler) -> list[Explanation]:
    """Explain every request, and return the explanations.

    Raises:
        AssertionError: If that changes anything, or an explanation does not agree with the rest of
            the scheduler; it says which.

    """
    before = trace_of(scheduler)
    found = scheduler.explain_all()
    alone = [scheduler.explain(explanation.request_id) for explanation in found[:2]]
    after = trace_of(scheduler)
    changed = [name for name in before if before[name] != after[name]]
    assert not changed, f"explain changed {changed}"
    assert alone == found[:2], f"explained alone: {alone}; with all: {found[:2]}"
    for explanation in found:
        _check_one(scheduler, explanation)
    return found


def _check_one(scheduler: Scheduler, explanation: Explanation) -> None:
    name = explanation.request_id
    assert explanation.status == scheduler.status(name), f"{name}: another state is explained"
    assert not explanation.is_frozen, f"a safe profile is said to freeze: {explanation}"
    assert explanation.events or explanation.outlook is Outlook.ENDED, str(explanation)
    refused = explanation.outlook in (Outlook.REFUSED, Outlook.BEHIND)
    assert not refused or explanation.demand is not None, f"{name}: refused without a reason"
    if explanation.demand is not None:
        assert explanation.demand.shortage > 0, f"{name}: nothing is short, {explanation}"
        if explanation.demand.quantity is Quantity.BLOCKS:
            _check_holders(scheduler, explanation)


def _check_holders(scheduler: Scheduler, explanation: Explanation) -> None:
    """Check that each block that is not free is held by who is named, or by the refused request."""
    refused = explanation.behind or explanation.request_id
    named = {h.request_id: h.blocks for h in explanation.holders if h.doing is not Doing.FENCED}
    held = {n: count for n, count in scheduler.statistics().blocks_by_request.items() if count}
    kept = named.keys() - held.keys()  # whose blocks are kept for a transfer, though they have left
    expected = {name: count for name, count in held.items() if name != refused}
    seen = {n: count for n, count in named.items() if n not in kept and n != refused}
    assert seen == expected, f"holders {seen}, expected {expected}"
    fenced = sum(h.blocks for h in explanation.holders if h.doing is Doing.FENCED)
    assert fenced <= scheduler.statistics().num_fenced_blocks


def check_step(expected: Mapping[str, Explanation], output: StepOutput) -> None:
    """Check that a step that is not throttled is the one that was foretold.

    Raises:
        AssertionError: If somebody else is scheduled or preempted, or gets other tokens.

    """
    foretold = {name: e.tokens for name, e in expected.items() if e.outlook in COMING}
    seen = dict(output.num_scheduled_tokens)
    assert seen == foretold, f"a step gives {seen}, foretold was {foretold}"
    preempted = {name for name, e in expected.items() if e.outlook is Outlook.PREEMPTED}
    assert output.preempted_req_ids == preempted, "other requests are preempted than was foretold"


def trace_of(scheduler: Scheduler) -> dict[str, Any]:
    """Return all that a scheduler decides by, by name: its state, its orders and its caches."""
    books = scheduler._books
    found: dict[str, Any] = {}
    for part in ("request", "block", "fence", "item", "pool", "step"):
        owner = getattr(books.state, part)
        for name in type(owner).__slots__:
            if name not in {"cells", "scratch"}:
                found[f"{part}.{name}"] = _plain(getattr(owner, name))
    for name in ("waiting", "skipped", "landed", "queue"):
        found[name] = list(getattr(books, name))
    for name in ("started_over", "cut_rows", "untold", "miscounted", "dropped_until", "deferred"):
        found[name] = repr(getattr(books, name))
    found["running"] = books.running.rows.tolist()
    found["fences"] = repr(books.fences.owners)
    found["tokens"] = books.table.tokens.tokens.tobytes()
    found["rows"] = dict(books.table.row_of)
    if books.prefix is not None:
        found["prefix index"] = [(block, prefix.number) for block, prefix in books.prefix.index]
        found["published"] = {row: own.published for row, own in books.prefix._rows.items()}
        found["look-ups"] = repr(books.prefix.statistics)
        found["events"] = repr(books.prefix.events)
    if books.encoder is not None:
        found["encoder"] = repr((books.encoder._rows, books.encoder._idle, books.encoder._freed))
    if books.transfers is not None:
        transfers = books.transfers
        found["transfers"] = repr((transfers.obligations, transfers.answers, transfers._failed))
        found["unconfirmed"] = repr((transfers.unconfirmed, transfers._written))
    return found


def _plain(value: object) -> object:
    if isinstance(value, Tables):
        return value.rows.tobytes()
    return value.tobytes() if hasattr(value, "tobytes") else value
