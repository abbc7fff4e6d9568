"""Replay: the runtime does a recorded workload over again, and every step is compared.

The samples come from the recording, so that nothing but decisions can differ; drafts are what the
recorder proposed. Rule: the order of calls is that of vLLM EngineCore.step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator

from attrs import evolve, field, frozen

from kvproof.runtime import Scheduler, StepOutput
from kvproof.runtime.profile import Profile
from kvproof.verify.difference import Difference, first_difference
from kvproof.verify.observation import observed_decision, observed_results, observed_snapshot
from kvproof.verify.recorded_connector import RecordedConnector
from kvproof.verify.recording import STOP_TOKEN, Arrival, Header, Recording
from kvproof.verify.step_record import Step

DRAFT_TOKEN, OTHER_TOKEN = STOP_TOKEN + 1, STOP_TOKEN + 2


def replay(recording: Recording, profile: Profile) -> Iterator[Difference | None]:
    """Replay a recording; yield None after each step that is identical, else what differs first.

    A difference is the last thing that is yielded.
    """
    run = WorkloadRun.of(recording.header, profile)
    for step in recording.steps:
        found = replayed_step(run, step)
        yield found
        if found is not None:
            return


@frozen
class WorkloadRun:
    """A scheduler and the workload that comes to it step by step."""

    header: Header
    scheduler: Scheduler
    connector: RecordedConnector | None
    to_come: deque[Arrival] = field(repr=False)
    in_flight: dict[int, StepOutput] = field(factory=dict, repr=False)

    @classmethod
    def of(
        cls,
        header: Header,
        profile: Profile,
        *,
        connector: RecordedConnector | None = None,
        debug: bool = False,
    ) -> WorkloadRun:
        """Return a run before its first step; `debug` checks every invariant after each call.

        A freeze does not end it, for the reference has some.
        """
        connector = _connector(header) if connector is None else connector
        limits = evolve(header.limits, profile=profile)
        scheduler = Scheduler(limits, connector=connector, on_freeze=_go_on, debug=debug)
        return cls(header, scheduler, connector, deque(header.arrivals))

    def next_arrival(self, step: int) -> Arrival | None:
        """Take the next request that is there before a step, if there is one."""
        if self.to_come and self.to_come[0].step <= step:
            return self.to_come.popleft()
        return None

    def abort_before(self, step: int) -> None:
        """Abort what is to be aborted before `schedule`."""
        for arrival in self.header.workload:
            if arrival.abort_before == step:
                self.scheduler.abort(arrival.request.request_id)

    def abort_during(self, step: int) -> None:
        """Abort what is to be aborted between `schedule` and `update`."""
        for arrival in self.header.workload:
            if arrival.abort_during == step:
                self.scheduler.abort(arrival.request.request_id)

    def propose_drafts(self, output: StepOutput) -> None:
        """Give every request of a step all the draft tokens it may have, as the recorder did."""
        count = self.header.limits.num_speculative_tokens
        if count and output.num_requests:
            self.scheduler.update_draft_tokens(dict.fromkeys(output.req_ids, [DRAFT_TOKEN] * count))


def _go_on(explanations: object) -> None:
    """Do nothing about a freeze."""


def _connector(header: Header) -> RecordedConnector | None:
    if not header.has_connector:
        return None
    return RecordedConnector({a.request.request_id: a.remote for a in header.workload})


def replayed_step(run: WorkloadRun, step: Step) -> Difference | None:
    """Do one recorded step and return what differs first; what the runtime raises does, too."""
    try:
        return _compared(run, step)
    except Exception as error:
        return Difference(step.number, type(error).__name__, "(none)", str(error))


def _compared(run: WorkloadRun, step: Step) -> Difference | None:
    while (arrival := run.next_arrival(step.number)) is not None:
        run.scheduler.add_request(arrival.request)
    run.abort_before(step.number)
    found = _compare_decided(run, step) if step.decision is not None else None
    if found is not None:
        return found
    run.abort_during(step.number)
    found = _compare_updated(run, step) if step.updated_step is not None else None
    return found or _compare_end(run, step)


def _compare_decided(run: WorkloadRun, step: Step) -> Difference | None:
    output = run.scheduler.schedule(step.throttled)
    run.in_flight[step.number] = output
    number, when = step.number, "after schedule"
    found = first_difference(number, "as scheduled", step.decision, observed_decision(output))
    return found or first_difference(number, when, step.scheduled, observed_snapshot(run.scheduler))


def _compare_updated(run: WorkloadRun, step: Step) -> Difference | None:
    """Account for the step that the recorder accounted for, the oldest in flight."""
    assert step.updated_step is not None
    output = run.in_flight.pop(step.updated_step)
    samples = _recorded_samples(step, output)
    results = run.scheduler.update(output, samples, step.transfers)
    found = first_difference(step.number, "as updated", step.results, observed_results(results))
    run.propose_drafts(output)
    return found


def _recorded_samples(step: Step, output: StepOutput) -> dict[str, list[int]]:
    """Return what was sampled; a request aborted in mid-step has something that is thrown away."""
    assert step.results is not None
    recorded = step.results.tokens_accepted
    return {name: list(recorded.get(name) or [OTHER_TOKEN]) for name in output.sampled_req_ids}


def _compare_end(run: WorkloadRun, step: Step) -> Difference | None:
    found = first_difference(
        step.number, "after update", step.updated, observed_snapshot(run.scheduler)
    )
    if found is not None or step.free_queue is None:
        return found
    expected, seen = FreeQueueOrder(step.free_queue), FreeQueueOrder.of(run.scheduler)
    return first_difference(step.number, "after update", expected, seen)


@frozen
class FreeQueueOrder:
    """The free blocks in the order in which they will be taken."""

    free_queue: tuple[int, ...]

    @classmethod
    def of(cls, scheduler: Scheduler) -> FreeQueueOrder:
        """Read it off a scheduler."""
        return cls(tuple(scheduler.free_block_ids()))
