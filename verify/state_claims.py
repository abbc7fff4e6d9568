"""What must be true of a scheduler between two calls, given all that it has said so far."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.runtime import Scheduler
from kvproof.verify.ledger import Entry, Ledger
from kvproof.verify.plain_scheduler import PlainScheduler
from kvproof.verify.recorded_run import RecordedRun


def check_state(recorded: RecordedRun, scheduler: Scheduler, ledger: Ledger) -> None:
    """Check every request and every block."""
    for r in (*ledger.live.values(), *ledger.leaving):
        _check_request(recorded, scheduler, r)
    for name in ledger.finished - ledger.live.keys() - {r.name for r in ledger.leaving}:
        recorded.equal(f"scheduler.status({name!r})", scheduler.status(name), None)
    for order, group in (("running", ledger.running), ("waiting", ledger.waiting)):
        seen = getattr(scheduler, f"{order}_request_ids")()
        recorded.equal(f"scheduler.{order}_request_ids()", seen, [r.name for r in group])
    _check_counts(recorded, scheduler, ledger)
    _check_blocks(recorded, scheduler, ledger)


def check_against_plain(recorded: RecordedRun, scheduler: Scheduler, plain: PlainScheduler) -> None:
    """Check that as many blocks are free as with the plain scheduler, and the same requests wait.

    Which blocks they are it does not know.
    """
    free = scheduler.statistics().num_free_blocks
    recorded.equal("scheduler.statistics().num_free_blocks", free, plain.num_free)
    waiting = [r.name for r in plain.waiting]
    recorded.equal("scheduler.waiting_request_ids()", scheduler.waiting_request_ids(), waiting)
    held = [r.held for r in plain.running]
    names = [r.name for r in plain.running]
    seen = [len(scheduler.block_ids(name)) for name in names]
    recorded.equal(f"[len(scheduler.block_ids(name)) for name in {names}]", seen, held)


def _check_request(recorded: RecordedRun, scheduler: Scheduler, r: Entry) -> None:
    status = scheduler.status(r.name)
    recorded.equal(f"scheduler.status({r.name!r}).name", status and status.name, r.state)
    if r.state.startswith("FINISHED"):
        return
    for name, expected in (
        ("token_ids", r.tokens),
        ("block_ids", r.blocks),
        ("num_computed_tokens", r.computed),
    ):
        seen = getattr(scheduler, name)(r.name)
        recorded.equal(f"scheduler.{name}({r.name!r})", seen, expected)
    covered = len(r.table) * scheduler.config.block_size
    claim = f"{covered} >= scheduler.num_computed_tokens({r.name!r})"
    recorded.demand(claim, covered >= r.computed, r.computed)


def _check_counts(recorded: RecordedRun, scheduler: Scheduler, ledger: Ledger) -> None:
    statistics = scheduler.statistics()
    expected = {
        "num_requests_running": len(ledger.running),
        "num_requests_waiting": len(ledger.waiting),
        "num_preemptions": ledger.num_preemptions,
        "num_free_blocks": len(scheduler.free_block_ids()),
        "num_fenced_blocks": len(ledger.fenced),
        "is_capacity_bound": ledger.is_capacity_bound,
    }
    for name, number in expected.items():
        recorded.equal(f"scheduler.statistics().{name}", getattr(statistics, name), number)
    unfinished = scheduler.has_unfinished_requests()
    recorded.equal("scheduler.has_unfinished_requests()", unfinished, bool(ledger.unfinished))


def _check_blocks(recorded: RecordedRun, scheduler: Scheduler, ledger: Ledger) -> None:
    """Check that each block is free or named, never both, and that only equal content is shared."""
    free = scheduler.free_block_ids()
    named = {block for r in ledger.running for block in r.blocks} | set(ledger.fenced)
    usable = list(range(1, scheduler.config.num_blocks))
    claim = f"sorted([*scheduler.free_block_ids(), *{sorted(named)}])"
    recorded.equal(claim, sorted([*free, *named]), usable)
    readers: dict[int, list[tuple[Entry, int]]] = {}
    for r in ledger.running:
        for place, block in enumerate(r.table):
            readers.setdefault(block, []).append((r, place))
    for block, pairs in readers.items():
        if len(pairs) > 1:
            _check_shared(recorded, block, pairs, scheduler.config.block_size)


def _check_shared(
    recorded: RecordedRun, block: int, readers: Sequence[tuple[Entry, int]], size: int
) -> None:
    """Check that those who share a block agree about all tokens up to its end."""
    (first, place), *others = readers
    end = (place + 1) * size
    for r, at in others:
        claim = f"scheduler.token_ids({first.name!r})[:{end}]"
        claim += f" == scheduler.token_ids({r.name!r})[:{(at + 1) * size}]  # block {block}"
        recorded.demand(claim, first.tokens[:end] == r.tokens[: (at + 1) * size], block)
