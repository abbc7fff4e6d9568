"""What a step decided and what it left behind, alike for a recording and for the runtime.

Both sides make the same records, so that comparing them is comparing field by field. A field's
name is its heading where a difference is shown; the order of the fields is the order in which
they are compared, causes before their consequences.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from kvproof.runtime.connector import TransferReport

Names = tuple[str, ...]
Counts = Mapping[str, int]
Lists = Mapping[str, tuple[int, ...]]


@frozen(kw_only=True)
class Decision:
    """What `schedule` returned; mappings are by request id, sets are sorted."""

    preempted: Names
    finished: Names
    new: Names
    resumed: Names
    tokens_scheduled: Counts
    order_of_the_batch: Names
    drafts_scheduled: Counts
    tokens_computed_before: Counts
    new_blocks: Lists


@frozen(kw_only=True)
class Snapshot:
    """The scheduler between two calls; mappings are by request id and name every live request."""

    running: Names
    waiting: Names
    skipped: Names
    status: Mapping[str, str]
    tokens_known: Counts
    tokens_computed: Counts
    preemptions: Counts
    blocks: Lists
    free_blocks: int
    capacity_bound: bool


@frozen(kw_only=True)
class Results:
    """What `update` returned; `ended` says why, for each request that did."""

    tokens_accepted: Lists
    ended: Mapping[str, str]


@frozen(kw_only=True)
class Step:
    """One step of a recording.

    Attributes:
        number: counted from 1.
        throttled: what `schedule` was told.
        decision: None if there was nothing to schedule, so that only time went by.
        scheduled: the state after `schedule`.
        updated_step: the step whose samples `update` was given; None if it was not called.
        results: what came of those samples.
        transfers: what the connector reported with them.
        updated: the state after `update`.
        free_queue: the free blocks in the order in which they will be taken, if recorded.

    """

    number: int
    throttled: bool
    decision: Decision | None
    scheduled: Snapshot | None
    updated_step: int | None
    results: Results | None
    transfers: TransferReport
    updated: Snapshot
    free_queue: tuple[int, ...] | None
