"""Two ways to run a recorded workload step by step: as it was recorded, or as it would go now."""

from __future__ import annotations

from typing import Protocol

from attrs import define, field

from kvproof.runtime import Scheduler
from kvproof.runtime.profile import Profile
from kvproof.verify.difference import Difference
from kvproof.verify.outcome import Drain, Outcome
from kvproof.verify.recorded_connector import RecordedConnector
from kvproof.verify.recording import Recording
from kvproof.verify.replay import WorkloadRun, replayed_step


class Course(Protocol):
    """A run of a workload that is taken step by step."""

    outcome: Outcome

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler that it drives."""
        ...

    @property
    def connector(self) -> RecordedConnector | None:
        """Where KV comes from."""
        ...

    def is_over(self, step: int) -> bool:
        """Return whether nothing is left to do after a step, counted from 1."""
        ...

    def advance(self, step: int) -> Difference | None:
        """Do a step; return what is wrong with it, if something is."""
        ...

    def is_to_change(self, step: int) -> bool:
        """Return whether something comes after a step that the scheduler does not decide."""
        ...

    def flying(self) -> tuple[tuple[str, ...], ...]:
        """Return who is in each step in flight."""
        ...


def course_of(recording: Recording, profile: Profile) -> Course:
    """Return the recorded steps again under the rules that they were recorded with, else a new run.

    A recording that reads foreign KV is run anew too, for a new run has a shadow of the memory.
    """
    as_recorded = profile == Profile.vllm_0_25_1() and recording.steps
    if as_recorded and recording.header.verdict != "kv":
        return AsRecorded(recording, profile)
    return Anew(recording, profile)


@define
class Anew:
    """A run whose transfers take as many steps as the workload says, with a shadow of the KV."""

    recording: Recording
    profile: Profile
    outcome: Outcome = field(factory=Outcome)
    drain: Drain = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make the run."""
        self.drain = Drain(self.recording, self.profile, self.outcome)

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler that it drives."""
        return self.drain.run.scheduler

    @property
    def connector(self) -> RecordedConnector | None:
        """Where KV comes from."""
        return self.drain.connector

    def is_over(self, step: int) -> bool:
        """Return whether nobody is left, or the run has taken too long."""
        return not self.drain.has_work or step >= self.drain.steps_max

    def advance(self, step: int) -> Difference | None:
        """Do a step."""
        return self.drain.advance(step)

    def is_to_change(self, step: int) -> bool:
        """Return whether somebody is to come or to be aborted, or a transfer to end."""
        connector = self.drain.connector
        transfers = connector is not None and connector.has_pending_transfers()
        return transfers or _calls_come(self.drain.run, step)

    def flying(self) -> tuple[tuple[str, ...], ...]:
        """Return who is in each step in flight."""
        return tuple(tuple(output.req_ids) for _, output, _ in self.drain.in_flight)


@define
class AsRecorded:
    """The recorded steps over again, with the recorded samples and ends of transfers."""

    recording: Recording
    profile: Profile
    outcome: Outcome = field(factory=Outcome)
    run: WorkloadRun = field(init=False)

    def __attrs_post_init__(self) -> None:
        """Make the run."""
        self.run = WorkloadRun.of(self.recording.header, self.profile)

    @property
    def scheduler(self) -> Scheduler:
        """The scheduler that it drives."""
        return self.run.scheduler

    @property
    def connector(self) -> RecordedConnector | None:
        """Where KV comes from."""
        return self.run.connector

    def is_over(self, step: int) -> bool:
        """Return whether there is no other recorded step."""
        return step >= len(self.recording.steps)

    def advance(self, step: int) -> Difference | None:
        """Do the recorded step; a decision that differs is what is wrong."""
        recorded = self.recording.steps[step - 1]
        found = replayed_step(self.run, recorded)
        if recorded.results is not None:
            self.outcome.add(recorded.results)
        return found

    def is_to_change(self, step: int) -> bool:
        """Return whether somebody is to come or to be aborted, or a transfer to end."""
        transfers = any(later.transfers for later in self.recording.steps[step:])
        return transfers or _calls_come(self.run, step)

    def flying(self) -> tuple[tuple[str, ...], ...]:
        """Return who is in each step in flight."""
        return tuple(tuple(output.req_ids) for output in self.run.in_flight.values())


def _calls_come(run: WorkloadRun, step: int) -> bool:
    """Return whether a request is to come, or to be aborted, after a step."""
    aborts = (
        max(arrival.abort_before or 0, arrival.abort_during or 0) for arrival in run.header.workload
    )
    return bool(run.to_come) or max(aborts, default=0) > step
