"""A scheduler that is watched: each call is recorded, written down, and held against all before.

Where the plain scheduler models the configuration, each decision is compared with its own.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle

from attrs import frozen

from kvproof.runtime import Explanation, Request, Scheduler, SchedulerConfig, StepOutput
from kvproof.verify.event_replay import EventReplay
from kvproof.verify.explanation_claims import check_explanations, check_step
from kvproof.verify.ledger import Frame, Ledger
from kvproof.verify.plain_scheduler import PlainScheduler
from kvproof.verify.recorded_run import TITLE, RecordedRun, request_text
from kvproof.verify.stamping_model import StampingModel
from kvproof.verify.state_claims import check_against_plain, check_state
from kvproof.verify.step_claims import StepClaims, check_decision, check_results
from kvproof.verify.victim_rule import VictimRule


@frozen
class Flying:
    """A step in flight, and the token that it is going to bring each request that samples."""

    output: StepOutput
    samples: dict[str, int]


class WatchedScheduler:
    """A scheduler of the runtime in debug mode, its plain counterpart, and a model.

    Whatever goes wrong in a call carries a note: a program that goes wrong in the same way.

    Attributes:
        ledger: what the scheduler has said so far.
        plain: the plain scheduler, if it models the configuration.
        counts: how often what happened.
        endings: how often each request that was ever added has ended.
        is_broken: something went wrong; the run is over.

    """

    def __init__(
        self,
        config: SchedulerConfig,
        victim: VictimRule | None = VictimRule(),  # noqa: B008 - frozen
        *,
        keep_claims: bool = False,
        explains: bool = False,
    ) -> None:
        """Make a scheduler without requests; without a victim rule its policy chooses.

        With `explains` every request is explained after each call, and steps must be as foretold.
        """
        self.config, self.victim = config, victim
        self.recorded = RecordedRun(config, victim, keep_claims=keep_claims)
        self.ledger = Ledger(config)
        models = PlainScheduler.models(config)
        self.plain = PlainScheduler(config, victim) if models else None
        self.model = StampingModel(config)
        self.scheduler = Scheduler(
            config, kv_pool=self.model.pool, choose_victim=victim, debug=True
        )
        self.events = EventReplay(self.scheduler)
        self.counts: Counter[str] = Counter()
        self.endings: dict[Request, int] = {}
        self.is_broken = False
        self._flying: deque[Flying] = deque()
        self._explains = explains
        self._foretold: dict[str, Explanation] = {}

    @property
    def in_flight(self) -> int:
        """Steps that wait for their samples."""
        return len(self._flying)

    def add(self, request: Request) -> None:
        """Add a request that can be taken."""
        with self._call(f"scheduler.add_request({request_text(request)})"):
            self.scheduler.add_request(request)
            self.ledger.add(request)
            if self.plain:
                self.plain.add(request)
            self.endings[request] = 0

    def grammar_ready(self, name: str) -> None:
        """Let a request that is parked for its grammar go on."""
        with self._call(f"ready = scheduler.grammar_ready({name!r})"):
            ready = self.scheduler.grammar_ready(name)
            self.recorded.equal("ready", ready, expected=True)
            self.ledger.grammar_ready(name)
            if self.plain:
                self.plain.grammar_ready(name)

    def continue_session(self, name: str, tokens: Sequence[int], max_tokens: int) -> None:
        """Send the next input of a parked session; it must fit."""
        given = f"{name!r}, {list(tokens)}, max_tokens={max_tokens}"
        with self._call(f"scheduler.continue_session({given})"):
            self.scheduler.continue_session(name, tokens, max_tokens)
            self.ledger.continue_session(name, tokens, max_tokens)
            if self.plain:
                self.plain.continue_session(name, tokens, max_tokens)

    def dispatch(self, tokens: Sequence[int], throttle: bool = False) -> StepOutput:
        """Schedule a step that samples `tokens`, one for each request, over and over."""
        given = "throttle_prefills=True" if throttle else ""
        with self._call(f"{self._next_name()} = scheduler.schedule({given})"):
            output = self.scheduler.schedule(throttle)
            if self._explains and not throttle:
                check_step(self._foretold, output)
            self._see(output)
            claims = StepClaims(
                self.recorded, self.scheduler, output, self.ledger, self.victim, throttle
            )
            claims.check()
            self._count_step(output, throttle)
            running = self.scheduler.running_request_ids()
            tables = {name: self.scheduler.block_ids(name) for name in running}
            self.ledger.schedule(output, throttle, self.scheduler.waiting_request_ids(), tables)
            if self.plain:
                decision = self.plain.schedule(throttle)
                check_decision(self.recorded, output, decision)
                self.counts["undone in the step"] += decision.undone
                self.counts["steps that wait for a victim"] += decision.awaits
            samples = dict(zip(output.sampled_req_ids, cycle(tokens), strict=False))
            self._flying.append(Flying(output, samples))
            return output

    def compute(self, *, tensors: bool = True) -> None:
        """Run the model on the step that was scheduled last."""
        plainly = "" if tensors else ", tensors=False"
        with self._call(f"model.run(scheduler, output{plainly})"):
            self.model.run(self.scheduler, self._flying[-1].output, tensors=tensors)

    def account(self, *, by_name: bool = True, accepted: int = 0) -> None:
        """Give the oldest step in flight its samples.

        Args:
            by_name: give a mapping; if not, a list, which accepts no draft tokens.
            accepted: how many draft tokens the first request accepts, the next one more, and so on,
                counted around.

        """
        frame, flying = self.ledger.frames[0], self._flying.popleft()
        last = flying.samples
        sampled = {name: [token] for name, token in last.items()}
        if by_name:
            sampled |= _with_drafts(frame, flying, accepted)
        plainly = all(len(some) == 1 for some in sampled.values())
        given = (last if by_name else list(last.values())) if plainly else sampled
        with self._call(f"results = scheduler.update({self._name(flying.output.step)}, {given})"):
            results = list(self.scheduler.update(flying.output, given))
            before = self.ledger.live
            expected = self.ledger.account(sampled)
            check_results(self.recorded, results, expected)
            if self.plain:
                self.plain.account(last)
            self.counts["samples dropped"] += len(frame.sampling) - len(expected)
            for name, some, reason in expected:
                self.counts["draft tokens accepted"] += len(some) - 1
                if reason:
                    self.endings[before[name].request] += not before[name].request.resumable
                    self.counts[f"finished by {reason}"] += 1

    def propose(self, tokens: Sequence[int]) -> None:
        """Give every running request the same draft tokens; nothing may be in flight."""
        drafts = {r.name: list(tokens) for r in self.ledger.running}
        with self._call(f"scheduler.update_draft_tokens({drafts})"):
            self.scheduler.update_draft_tokens(drafts)
            self.ledger.propose(drafts)

    def reset_prefix_cache(self) -> None:
        """Forget all prefixes, which is done if no block is in use."""
        with self._call("done = scheduler.reset_prefix_cache()"):
            done = self.scheduler.reset_prefix_cache()
            used = any(r.table for r in self.ledger.running) or self.ledger.fenced
            self.recorded.equal("done", done, expected=not used)
            self.counts["prefix cache emptied"] += done

    def abort(self, names: Sequence[str]) -> None:
        """Abort requests, live or not."""
        with self._call(f"aborted = scheduler.abort({list(names)})"):
            before = self.ledger.live
            aborted = self.scheduler.abort(names)
            for name in names:
                self._count_abort(before[name].state if name in before else "not live")
            expected = self.ledger.abort(names)
            self.recorded.equal("aborted", aborted, expected)
            if self.plain:
                self.plain.abort(names)
            for name in expected:
                self.endings[before[name].request] += 1

    def drain(self, token: int) -> None:
        """Step until nobody runs or waits; with the policy's victims this ends in time.

        First come, first served: in each step the request that runs first computes a token, or
        nobody runs and one is admitted; a preemption costs the first nothing. So the tokens bound
        the steps. With priorities or an encoder it need not be the first, so that others may have
        to start over: the bound is then as much for each of them. With several steps in flight
        each of those may have to wait for the others first.
        """
        live = self.ledger.unfinished
        bound = sum(r.limit for r in live) + len(live)
        bound *= 1 if self.plain and self.config.policy == "fcfs" else max(1, len(live))
        for _ in range(bound * self.config.max_steps_in_flight):
            if not self.ledger.unfinished:
                break
            self.dispatch([token])
            if self.in_flight == self.config.max_steps_in_flight:
                self.account()
        while self.in_flight:
            self.account()
        with self._attach_program():
            left = self.scheduler.has_unfinished_requests()
            self.recorded.equal("scheduler.has_unfinished_requests()", left, expected=False)

    def check_end(self) -> None:
        """Demand that every block is back and every request has ended once."""
        with self._attach_program():
            free = sorted(self.scheduler.free_block_ids())
            every_block = list(range(1, self.config.num_blocks))
            self.recorded.equal("sorted(scheduler.free_block_ids())", free, every_block)
            if wrong := {r.request_id: n for r, n in self.endings.items() if n != 1}:
                message = f"each request ends once, but these so often: {wrong}"
                raise AssertionError(message)

    def _next_name(self) -> str:
        """Return how a program calls the next step; the last one is always `output`, too."""
        name = self._name(self.counts["steps"] + 1)
        return name if name == "output" else f"output = {name}"

    def _name(self, step: int) -> str:
        return "output" if self.config.max_steps_in_flight == 1 else f"output_{step}"

    def _see(self, output: StepOutput) -> None:
        """Show the model a step, and the tokens in it that steps in flight still sample."""
        members, coming = set(output.req_ids), dict[str, list[int]]()
        for frame, flying in zip(self.ledger.frames, self._flying, strict=True):
            for part in frame.sampling:
                name = part.request.name
                if part.is_wanted and name in members:
                    coming.setdefault(name, []).append(flying.samples[name])
        given = f", {coming}" if coming else ""
        self.recorded.call(f"model.see(scheduler, output{given})")
        self.model.see(self.scheduler, output, coming)

    def _count_step(self, output: StepOutput, throttle: bool) -> None:
        live, tried = self.ledger.live, output.scheduled_spec_decode_tokens
        admitted = [*output.new_rows, *output.resumed_rows]
        starts = dict(zip(output.rows.tolist(), output.computed.tolist(), strict=True))
        preempted = [live[name] for name in output.preempted_req_ids]
        encoded = sum(map(len, output.scheduled_encoder_inputs.values()))
        self.counts += Counter(
            {
                "steps": 1,
                "tokens": output.total_num_scheduled_tokens,
                "admitted": len(output.new_rows),
                "resumed": len(output.resumed_rows),
                "resumed on a hit": sum(starts[row] > 0 for row in output.resumed_rows),
                "preempted": len(preempted),
                "preempted with draft tokens": sum(bool(r.drafts) for r in preempted),
                "prefix hits": sum(starts[row] > 0 for row in admitted),
                "draft tokens tried": sum(map(len, tried.values())),
                "items encoded": encoded,
                "items evicted": len(output.free_encoder_mm_hashes),
                "steps that defer prefills": int(self.ledger.defers(throttle)),
                "tokens not known yet": len(output.pending_places),
                "steps ahead of others": int(bool(self.ledger.computing)),
            }
        )

    def _count_abort(self, state: str) -> None:
        when = " in flight" if state == "RUNNING" and self.in_flight else ""
        self.counts[f"aborted while {state}{when}"] += 1

    @contextmanager
    def _call(self, line: str) -> Iterator[None]:
        """Record a call; compare all there is afterwards, the declared invariants included."""
        with self._attach_program():
            self.recorded.call(line)
            yield
            check_state(self.recorded, self.scheduler, self.ledger)
            self.recorded.equal("events.differences()", self.events.differences(), [])
            if self.plain:
                check_against_plain(self.recorded, self.scheduler, self.plain)
            if self._explains:
                found = check_explanations(self.scheduler)
                self._foretold = {explanation.request_id: explanation for explanation in found}
                self.counts.update(f"explained: {e.outlook}" for e in found)

    @contextmanager
    def _attach_program(self) -> Iterator[None]:
        try:
            yield
        except Exception as fault:
            if not self.is_broken:
                fault.add_note(TITLE + self.recorded.program(fault))
            self.is_broken = True
            raise


def _with_drafts(frame: Frame, flying: Flying, accepted: int) -> dict[str, list[int]]:
    """Return tokens of the requests that tried drafts: those accepted, and one more."""
    tried = flying.output.scheduled_spec_decode_tokens
    own = {part.request.name: list(part.drafts) for part in frame.sampling}
    counts = {
        name: (accepted + place) % (min(len(tried[name]), len(drafts)) + 1)
        for place, (name, drafts) in enumerate((n, d) for n, d in own.items() if n in tried)
    }
    return {name: [*own[name][:count], flying.samples[name]] for name, count in counts.items()}
