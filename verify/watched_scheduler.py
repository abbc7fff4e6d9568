"""A scheduler that is watched: each call is recorded, repeated on the plain one, and compared."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import cycle

from kvproof.runtime import Request, Scheduler, SchedulerConfig, StepOutput
from kvproof.verify.plain_scheduler import Decision, PlainScheduler
from kvproof.verify.recorded_run import TITLE, RecordedRun, request_text
from kvproof.verify.stamping_model import StampingModel
from kvproof.verify.step_claims import check_results, check_state, check_step
from kvproof.verify.victim_rule import VictimRule


class WatchedScheduler:
    """A scheduler of the runtime in debug mode, its plain counterpart, and a model.

    Whatever goes wrong in a call carries a note: a program that goes wrong in the same way.

    Attributes:
        counts: how often what happened.
        endings: how often each request that was ever added has ended.
        is_broken: something went wrong; the run is over.

    """

    def __init__(
        self,
        config: SchedulerConfig,
        victim: VictimRule = VictimRule(),  # noqa: B008 - frozen
        *,
        keep_claims: bool = False,
    ) -> None:
        """Make a scheduler without requests."""
        self.config, self.victim = config, victim
        self.recorded = RecordedRun(config, victim, keep_claims=keep_claims)
        self.plain = PlainScheduler(config, victim)
        self.model = StampingModel(config)
        self.scheduler = Scheduler(
            config, kv_pool=self.model.pool, choose_victim=victim, debug=True
        )
        self.counts: Counter[str] = Counter()
        self.endings: dict[Request, int] = {}
        self.is_broken = False
        self._output: StepOutput | None = None

    @property
    def in_flight(self) -> bool:
        """Whether a step waits for its samples."""
        return self._output is not None

    def add(self, request: Request) -> None:
        """Add a request that can be taken."""
        with self._attach_program():
            self.recorded.call(f"scheduler.add_request({request_text(request)})")
            self.scheduler.add_request(request)
            self.plain.add(request)
            self.endings[request] = 0
            self._compare()

    def dispatch(self) -> Decision:
        """Schedule a step; nothing may be in flight."""
        with self._attach_program():
            self.recorded.call("output = scheduler.schedule()")
            finished = set(self.plain.finished)
            self._output = self.scheduler.schedule()
            decision = self.plain.schedule()
            check_step(self.recorded, self.scheduler, self._output, decision, finished)
            self._count_step(decision)
            self._compare()
            return decision

    def compute(self, *, tensors: bool = True) -> None:
        """Run the model on the step in flight."""
        assert self._output is not None
        with self._attach_program():
            plainly = "" if tensors else ", tensors=False"
            self.recorded.call(f"model.run(scheduler, output{plainly})")
            self.model.run(self.scheduler, self._output, tensors=tensors)

    def account(self, tokens: Sequence[int], *, by_name: bool = True) -> None:
        """Give the step in flight its samples: the tokens, over and over."""
        assert self._output is not None
        with self._attach_program():
            names = self._output.sampled_req_ids
            sampled = dict(zip(names, cycle(tokens), strict=False))
            given = sampled if by_name else list(sampled.values())
            self.recorded.call(f"results = scheduler.update(output, {given})")
            results = list(self.scheduler.update(self._output, given))
            self._output = None
            before = dict(self.plain.live)
            expected = self.plain.account(sampled)
            check_results(self.recorded, results, expected)
            for name, _, reason in expected:
                if reason:
                    self.endings[before[name].request] += 1
                    self.counts[f"finished by {reason}"] += 1
            self._compare()

    def abort(self, names: Sequence[str]) -> None:
        """Abort requests, live or not."""
        with self._attach_program():
            before = dict(self.plain.live)
            self.recorded.call(f"aborted = scheduler.abort({list(names)})")
            aborted = self.scheduler.abort(names)
            for name in names:
                self._count_abort(before[name].state if name in before else "not live")
            expected = self.plain.abort(names)
            self.recorded.equal("aborted", aborted, expected)
            for name in expected:
                self.endings[before[name].request] += 1
            self._compare()

    def drain(self, token: int) -> None:
        """Step until nobody is left; with the last running as victim this ends in time.

        In each step the request that runs first computes a token, or nobody runs and one is
        admitted; a preemption costs the first nothing. So the tokens bound the steps.
        """
        live = self.plain.live.values()
        bound = sum(r.limit for r in live) + len(live)
        for _ in range(bound):
            if not self.plain.live:
                break
            self.dispatch()
            self.account([token])
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

    def _compare(self) -> None:
        """Compare with the plain one; the declared invariants are checked in debug mode itself."""
        check_state(self.recorded, self.scheduler, self.plain)

    def _count_step(self, decision: Decision) -> None:
        self.counts["steps"] += 1
        self.counts["tokens"] += decision.tokens
        self.counts["admitted"] += len(decision.new)
        self.counts["resumed"] += len(decision.resumed)
        self.counts["preempted"] += len(decision.preempted)
        self.counts["undone in the step"] += decision.undone

    def _count_abort(self, state: str) -> None:
        when = " in flight" if state == "RUNNING" and self.in_flight else ""
        self.counts[f"aborted while {state}{when}"] += 1

    @contextmanager
    def _attach_program(self) -> Iterator[None]:
        try:
            yield
        except Exception as fault:
            if not self.is_broken:
                fault.add_note(TITLE + self.recorded.program(fault))
            self.is_broken = True
            raise
