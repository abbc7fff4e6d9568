"""Outcomes: a recorded workload under other rules, where steps differ but ends must not.

A profile that decides differently takes other steps, so nothing is compared step by step. What is
asked instead: everybody ends, every block comes back, and a request that nobody aborted brings the
tokens that were recorded. For that, samples depend on the request and the position alone: they are
the recorded ones, then any that is no stop token. Transfers take as many steps as the workload
says, and a shadow of the KV memory tells whether an accepted token was computed from what was not
there. Under the safe profile every invariant is checked after each call; the other profiles are
there to break some.
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterator

from attrs import define, field

from kvproof.runtime import RequestRefused, StepOutput
from kvproof.runtime.connector import NOTHING_HAPPENED
from kvproof.runtime.profile import Profile
from kvproof.verify import failure_policy
from kvproof.verify.difference import Difference
from kvproof.verify.kv_shadow import KVShadow
from kvproof.verify.recording import Header, Recording
from kvproof.verify.replay import OTHER_TOKEN, WorkloadRun
from kvproof.verify.simulated_connector import SimulatedConnector
from kvproof.verify.step_record import Results

Tokens = tuple[int, ...]


@define
class Outcome:
    """What became of a workload, by request: its tokens, why it ended, why it was refused."""

    tokens: dict[str, Tokens] = field(factory=dict)
    ended: dict[str, str] = field(factory=dict)
    refused: dict[str, str] = field(factory=dict)

    def add(self, results: Results) -> None:
        """Take note of what a recorded step brought."""
        for name, tokens in results.tokens_accepted.items():
            self.tokens[name] = self.tokens.get(name, ()) + tokens
        self.ended |= results.ended

    def end_of(self, name: str) -> str | None:
        """Return how a request ended by itself, in words; None if it did not."""
        if name not in self.ended:
            return None
        return f"{self.ended[name]} after {len(self.tokens[name])} tokens"


def recorded_outcome(recording: Recording) -> Outcome:
    """Return what became of the workload when it was recorded."""
    outcome = Outcome()
    for step in recording.steps:
        if step.results is not None:
            outcome.add(step.results)
    return outcome


def changed_end(
    step: int, header: Header, recorded: Outcome, outcome: Outcome
) -> Difference | None:
    """Return the first request that has no end, or another than was recorded.

    Requests that were aborted in either run, refused, or failed, may end as they will.
    """
    for arrival in header.workload:
        name = arrival.request.request_id
        expected, seen = recorded.end_of(name), outcome.end_of(name)
        if name in outcome.refused or (arrival.is_aborted and None in (expected, seen)):
            continue
        if seen is not None and "error" in (recorded.ended.get(name), outcome.ended.get(name)):
            continue
        if seen is None or expected not in (seen, None):
            return Difference(step, f"end of {name}", expected or "any end", seen or "(none)")
        if expected is not None and outcome.tokens[name] != recorded.tokens[name]:
            return Difference(step, f"tokens of {name}", "as recorded", "others")
    return None


def run_to_end(
    recording: Recording, profile: Profile, outcome: Outcome
) -> Iterator[Difference | None]:
    """Run a recorded workload to its end; yield None after each step that is in order.

    A fault is the last thing that is yielded. `outcome` is filled with what comes of the workload.
    """
    return Drain(recording, profile, outcome).steps()


@define
class Drain:
    """A run until nobody is left, or until it has taken far longer than when it was recorded.

    Attributes:
        recording: the workload, and what came of it when it was recorded.
        profile: the rules to follow.
        outcome: filled with what comes of it.

    """

    recording: Recording
    profile: Profile
    outcome: Outcome
    recorded: Outcome = field(init=False)
    run: WorkloadRun = field(init=False)
    shadow: KVShadow = field(init=False)
    connector: SimulatedConnector | None = field(init=False)
    in_flight: deque[tuple[int, StepOutput, set[str]]] = field(factory=deque)

    def __attrs_post_init__(self) -> None:
        header = self.recording.header
        self.recorded = recorded_outcome(self.recording)
        self.shadow = KVShadow(header.limits.block_size, self._tokens)
        self.connector = self._new_connector()
        debug = self.profile == Profile.safe()
        self.run = WorkloadRun.of(header, self.profile, connector=self.connector, debug=debug)

    def _new_connector(self) -> SimulatedConnector | None:
        header = self.recording.header
        if not header.has_connector:
            return None
        entries = {arrival.request.request_id: arrival.remote for arrival in header.workload}
        return SimulatedConnector(
            entries, block_size=header.limits.block_size, fill=self.shadow.fill
        )

    def _tokens(self, name: str, count: int) -> list[int]:
        """Return the first tokens of a request, of which some may not have been sampled yet."""
        prompts = {
            a.request.request_id: a.request.prompt_token_ids for a in self.run.header.workload
        }
        sampled = [
            *self._brought(name),
            *self.recorded.tokens.get(name, ())[len(self._brought(name)) :],
        ]
        known = [*prompts[name], *sampled]
        return [*known[:count], *[OTHER_TOKEN] * (count - len(known))]

    @property
    def has_work(self) -> bool:
        """Whether somebody is to come or has not ended, or blocks are not back."""
        return bool(self.run.to_come) or self.run.scheduler.has_work()

    @property
    def steps_max(self) -> int:
        """Steps after which the run is taken to have no end."""
        tokens = sum(arrival.request.max_tokens for arrival in self.recording.header.workload)
        return 100 + 10 * (len(self.recording.steps) or tokens)

    def steps(self) -> Iterator[Difference | None]:
        """Yield None after each step that is in order; a fault is the last thing."""
        step, header = 0, self.recording.header
        while self.has_work:
            step += 1
            found = self._late(step) if step > self.steps_max else self.advance(step)
            yield found
            if found is not None:
                return
        fault = self._left_over(step) or changed_end(step, header, self.recorded, self.outcome)
        if fault is not None:
            yield fault

    def advance(self, step: int) -> Difference | None:
        """Do one step, counted from 1; return what is wrong, whatever the runtime raises too."""
        try:
            return self._step(step)
        except Exception as error:  # whatever the runtime raises
            return Difference(step, type(error).__name__, "(none)", str(error))

    def _step(self, step: int) -> Difference | None:
        """Do one step as the recorder did: schedule, and account for the oldest when it is time."""
        run, depth = self.run, self.recording.header.limits.max_steps_in_flight
        self._arrive(step)
        run.abort_before(step)
        if self.connector is not None:
            self.connector.step = step
        if self.in_flight and not run.scheduler.has_unfinished_requests():
            run.abort_during(step)
            return self._account(step)
        output = run.scheduler.schedule(self.recording.header.throttles(step))
        tables = {name: run.scheduler.block_ids(name) for name in output.req_ids}
        self.in_flight.append((step, output, self.shadow.run(output, tables)))
        run.abort_during(step)
        if len(self.in_flight) < depth and output.num_requests:
            return None
        return self._account(step)

    def _account(self, step: int) -> Difference | None:
        """Account for the oldest step; no token may come of KV that was not there."""
        of, output, misled = self.in_flight.popleft()
        report = NOTHING_HAPPENED if self.connector is None else self.connector.poll_of(of)
        samples = {name: list(self._samples(name, output)) for name in output.sampled_req_ids}
        fault, to_fail = None, failure_policy.to_fail(self.run.scheduler, report)
        results = self.run.scheduler.update(output, samples, report)
        failed = failure_policy.failed(results)
        if self.profile == Profile.safe() and failed != to_fail:
            fault = Difference(step, "failed loads", str(sorted(to_fail)), str(sorted(failed)))
        for result in results:
            name = result.request_id
            self.outcome.tokens[name] = self._brought(name) + result.new_token_ids
            if result.finish_reason is not None:
                self.outcome.ended[name] = result.finish_reason.value
            if result.new_token_ids and name in misled:
                fault = Difference(step, f"KV of {name}", "its own", "what nobody wrote")
        self.run.propose_drafts(output)
        return fault

    def _arrive(self, step: int) -> None:
        while (arrival := self.run.next_arrival(step)) is not None:
            try:
                self.run.scheduler.add_request(arrival.request)
            except RequestRefused as refusal:
                self.outcome.refused[arrival.request.request_id] = str(refusal)

    def _brought(self, name: str) -> Tokens:
        return self.outcome.tokens.get(name, ())

    def _samples(self, name: str, output: StepOutput) -> Iterator[int]:
        """Yield one token and those of the accepted drafts, which the recorder drew by position."""
        recorded, start = self.recorded.tokens.get(name, ()), len(self._brought(name))
        for place in range(start, start + self._count(name, start, output)):
            yield recorded[place] if place < len(recorded) else OTHER_TOKEN

    def _count(self, name: str, start: int, output: StepOutput) -> int:
        header, drafts = self.recording.header, output.scheduled_spec_decode_tokens.get(name, ())
        for accepted in range(len(drafts)):
            drawn = zlib.crc32(f"{header.seed}:a:{name}:{start + accepted}".encode()) % 10_000
            if drawn >= 10_000 * header.draft_acceptance:
                return 1 + accepted
        return 1 + len(drafts)

    def _late(self, step: int) -> Difference:
        waiting = self.run.scheduler.waiting_request_ids()
        waiting += self.run.scheduler.skipped_request_ids()
        running = self.run.scheduler.running_request_ids()
        recorded = f"everybody ends, as recorded in {len(self.recording.steps)} steps"
        return Difference(step, "end", recorded, f"running {running}, waiting {waiting}")

    def _left_over(self, step: int) -> Difference | None:
        usable = self.recording.header.limits.num_usable_blocks
        free = self.run.scheduler.statistics().num_free_blocks
        return None if free == usable else Difference(step, "free blocks", f"{usable}", f"{free}")
