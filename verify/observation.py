"""The runtime's side of a comparison: its steps and states as the records of a recording."""

from __future__ import annotations

from collections.abc import Iterable

from kvproof.core import Status
from kvproof.runtime import RequestOutput, Scheduler, StepOutput
from kvproof.verify.step_record import Decision, Results, Snapshot


def observed_decision(output: StepOutput) -> Decision:
    """Return what a step decided; read it before `update`."""
    drafts = output.scheduled_spec_decode_tokens
    resumed = output.resumed_req_ids
    return Decision(
        preempted=tuple(sorted(output.preempted_req_ids)),
        finished=tuple(sorted(output.finished_req_ids)),
        new=tuple(request.req_id for request in output.scheduled_new_reqs),
        resumed=tuple(name for name in output.req_ids if name in resumed),
        tokens_scheduled=output.num_scheduled_tokens,
        order_of_the_batch=tuple(output.req_ids),
        drafts_scheduled={name: len(tokens) for name, tokens in drafts.items()},
        tokens_computed_before=dict(zip(output.req_ids, output.computed.tolist(), strict=True)),
        new_blocks={name: tuple(blocks) for name, blocks in output.new_block_ids.items()},
    )


def observed_snapshot(scheduler: Scheduler) -> Snapshot:
    """Return the state of a scheduler between two calls."""
    statistics = scheduler.statistics()
    # One that has ended is gone for the reference, which needs its row no more.
    names = sorted(
        name for name in statistics.blocks_by_request if _status(scheduler, name) not in _ENDED
    )
    return Snapshot(
        running=tuple(scheduler.running_request_ids()),
        waiting=tuple(scheduler.waiting_request_ids()),
        skipped=tuple(scheduler.skipped_request_ids()),
        status={name: _status(scheduler, name).name for name in names},
        tokens_known={name: len(scheduler.token_ids(name)) for name in names},
        tokens_computed={name: scheduler.num_computed_tokens(name) for name in names},
        preemptions={name: statistics.preemptions_by_request[name] for name in names},
        blocks={name: tuple(scheduler.block_ids(name)) for name in names},
        free_blocks=statistics.num_free_blocks,
        capacity_bound=statistics.is_capacity_bound,
    )


def observed_results(outputs: Iterable[RequestOutput]) -> Results:
    """Return what `update` brought."""
    listed = list(outputs)
    return Results(
        tokens_accepted={output.request_id: output.new_token_ids for output in listed},
        ended={o.request_id: o.finish_reason.value for o in listed if o.finish_reason is not None},
    )


_ENDED = (
    Status.FINISHED_STOPPED,
    Status.FINISHED_LENGTH,
    Status.FINISHED_ABORTED,
    Status.FINISHED_ERROR,
)


def _status(scheduler: Scheduler, name: str) -> Status:
    status = scheduler.status(name)
    assert status is not None
    return status
