"""Who ends with an error when a load has not brought everything: by policy, all or nobody."""

from __future__ import annotations

from collections.abc import Iterable

from kvproof.core import Status
from kvproof.runtime import Scheduler
from kvproof.runtime.connector import TransferReport
from kvproof.runtime.request import FinishReason
from kvproof.runtime.step_results import StepResults


def to_fail(scheduler: Scheduler, report: TransferReport) -> set[str]:
    """Return who has to end with an error when a report is given to `update`.

    Under "recompute" nobody has to. Under "fail" it is who is still being loaded and whose load is
    lost, and whose block table holds a block that its load did not fill.
    """
    if scheduler.config.kv_load_failure_policy == "recompute":
        return set()
    loading = set(_loading(scheduler))
    holders = {
        name
        for name in (*loading, *scheduler.running_request_ids())
        if not report.failed_blocks.isdisjoint(scheduler.block_ids(name))
    }
    return holders | (loading & report.lost)


def failed(results: StepResults) -> set[str]:
    """Return who has ended with an error."""
    return {result.request_id for result in results if result.finish_reason is FinishReason.ERROR}


def _loading(scheduler: Scheduler) -> Iterable[str]:
    for name in scheduler.skipped_request_ids():
        if scheduler.status(name) is Status.WAITING_FOR_REMOTE_KVS:
            yield name
