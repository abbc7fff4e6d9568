"""Handlers that go wrong with loads: requests wait for each other, or for what never comes.

Each function takes the sound handler and returns the one that is put in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from attrs import evolve

from kvproof.core.arrays import Integers
from kvproof.runtime import running_pass
from kvproof.runtime.books import Books
from kvproof.runtime.connector import TransferReport
from kvproof.runtime.scheduler import Scheduler
from kvproof.runtime.step_plan import StepPlan
from kvproof.runtime.transfers import Transfers
from kvproof.verify.simulated_connector import SimulatedConnector

ALIGNMENT = 4
NEVER = 10**9
Handler = Callable[..., Any]


def counts_twice(sound: Handler) -> Handler:
    """Count what a request needs in the end as its own, and once more as that of others."""

    def blocks_for_all_known(books: Books, row: int) -> int:
        return 2 * int(sound(books, row))

    return blocks_for_all_known


def rounds_down(sound: Handler) -> Handler:
    """Cut what a request gets to a multiple of an alignment, down to nothing."""

    def with_drafts(
        books: Books, stretch: Integers, computed: Integers, tokens: Integers
    ) -> Integers:
        wanted: Integers = sound(books, stretch, computed, tokens)
        return wanted // ALIGNMENT * ALIGNMENT

    return with_drafts


def waits_for_another_end(sound: Handler) -> Handler:
    """Take note of a load's failure, and take its end for that of something else."""

    def received(transfers: Transfers, name: str) -> int:
        row = transfers._table.row_of.get(name, -1)
        return -1 if row in transfers._failed else int(sound(transfers, name))

    return received


def falls_asleep(_: Handler) -> Handler:
    """Let only requests and steps keep the loop awake, and no delayed release."""

    def has_work(scheduler: Scheduler) -> bool:
        return scheduler.has_unfinished_requests() or bool(scheduler._in_flight)

    return has_work


def parks_for_nothing(_: Handler) -> Handler:
    """Park a request of which the connector has nothing to load."""

    def match(transfers: Transfers, row: int, computed: int) -> tuple[int | None, bool]:
        known = transfers._state.request.cells.known[row]
        name, hashes = transfers._name(row), transfers._prefix.digests(row)
        external, is_async = transfers.connector.match(name, hashes, known, computed)
        return external, is_async or external == 0

    return match


def logs_failures(sound: Handler) -> Handler:
    """Write a failed load to a log, and report neither its failure nor its end."""

    def poll_of(connector: SimulatedConnector, step: int) -> TransferReport:
        failed = [load for _, load in connector._loads if load.failed_places]
        names = {load.request_id for load in failed}
        blocks = {block for load in failed for block in load.failed_blocks}
        report: TransferReport = sound(connector, step)
        received, still = report.received - names, report.failed_blocks - blocks
        return evolve(report, received=received, failed_blocks=still)

    return poll_of


def promises_again(sound: Handler) -> Handler:
    """Promise a load that works once a second time; that one has no end."""

    def match(
        connector: SimulatedConnector,
        request_id: str,
        block_hashes: Sequence[bytes],
        num_tokens: int,
        num_computed_tokens: int,
    ) -> Any:
        if request_id in connector._loaded:
            connector._loaded.discard(request_id)
            endless = evolve(connector.entries[request_id], delay=NEVER)
            connector.entries = {**connector.entries, request_id: endless}
        return sound(connector, request_id, block_hashes, num_tokens, num_computed_tokens)

    return match


def does_not_start(sound: Handler) -> Handler:
    """Tell nobody of a load that fails at once."""

    def allocated(
        connector: SimulatedConnector,
        request_id: str,
        block_ids: Sequence[int],
        first_token: int,
        num_tokens: int,
    ) -> None:
        sound(connector, request_id, block_ids, first_token, num_tokens)
        started = [item for item in connector._loads if 0 not in item[1].failed_places]
        connector._loads = started

    return allocated


def preempts_nobody(sound: Handler) -> Handler:
    """End the pass at a request that lacks blocks, whoever holds them."""

    def serve_one(books: Books, plan: StepPlan, position: int, choose_victim: Any) -> int | None:
        wish, _ = running_pass._wish_of_one(books, position)
        if len(wish.rows) and running_pass._shortage(books, wish) is not None:
            return None
        place: int | None = sound(books, plan, position, choose_victim)
        return place

    return serve_one


def stays_in_the_list(sound: Handler) -> Handler:
    """Let a victim stay among those that run."""

    def preempt(books: Books, plan: StepPlan, victim: int, needy: int, wanted: int) -> None:
        sound(books, plan, victim, needy, wanted)
        books.running.append(victim)

    return preempt
