"""A Hypothesis machine that drives the real scheduler: random calls, every claim after each.

Only calls that are allowed are drawn. A fault shrinks to a short program against the runtime's
interface, which is attached to the exception and printed with it; `program_of` returns it.

    from kvproof.verify.stateful import run_fuzz, summary
    print(summary(run_fuzz(max_examples=200, steps=50, seed=0)))

In a suite of pytest `TestScheduler = SchedulerMachine.TestCase` does the same without the counts.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, ClassVar

from attrs import evolve
from hypothesis import HealthCheck, Phase, event, seed, settings, target
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvproof.runtime import Profile, SchedulerConfig
from kvproof.verify import workload
from kvproof.verify.ledger import Entry
from kvproof.verify.victim_rule import VictimRule
from kvproof.verify.watched_scheduler import WatchedScheduler

TENSORS = ("at once", "after other calls", "from lists")
# Calls between two steps: otherwise most are aborts of those that wait, and pools never fill.
IN_A_ROW_MAX = {"add": 2, "abort": 1, "propose": 1, "reset prefix cache": 1}
LIVE_MAX = 12
RUN_STEPS = 24


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, steps and aborts at any moment, with as many steps in flight as there may be or fewer.

    `counts` adds up over all runs of the class; a subclass that sets its own keeps them apart.
    `profile` says which rules the scheduler follows; `explains` that every request is explained
    after each call.
    """

    counts: Counter[str] = Counter()  # noqa: RUF012 - shared by intent
    profile: ClassVar[Profile] = Profile()
    explains: ClassVar[bool] = False

    @initialize(config=workload.configurations, victim=workload.victims, drained=st.booleans())
    def configure(self, config: SchedulerConfig, victim: VictimRule | None, drained: bool) -> None:
        """Make a scheduler; `drained` says how its requests end: by steps, or by abort."""
        self._configure(config, victim, drained)

    def _configure(self, config: SchedulerConfig, victim: VictimRule | None, drained: bool) -> None:
        limits = evolve(config, profile=self.profile)
        self.watched = WatchedScheduler(limits, victim, explains=self.explains)
        self.drained = drained and _gets_on(config, victim)
        self.number = 0
        self.since_step = Counter[str]()
        self.tensors = ""
        self.pressure = 0.0

    @precondition(lambda self: self._may("add") and len(self.watched.ledger.live) < LIVE_MAX)
    @rule(drafts=workload.drafts, again=st.booleans())
    def add(self, drafts: list[workload.Draft], again: bool) -> None:
        """Add some requests, under new ids or ones that have been in use."""
        for draft in drafts:
            name = self._free_name(again)
            request = workload.fitting_request(self.watched.config, name, self.number, draft)
            self.watched.add(request)
        self._count("add")

    @precondition(lambda self: self.number and not self.watched.in_flight)
    @rule(
        times=st.integers(1, 10),
        sampled=workload.samples,
        throttle=st.booleans(),
        proposals=workload.proposals,
        accepted=st.integers(0, 3),
    )
    def step(
        self,
        times: int,
        sampled: list[int],
        throttle: bool,
        proposals: list[int],
        accepted: int,
    ) -> None:
        """Schedule, compute and update, several times in a row while somebody is there."""
        self._run(times, throttle, sampled, proposals, accepted)
        self._count("step")

    @precondition(lambda self: self.watched.ledger.unfinished and not self.watched.in_flight)
    @rule(sampled=workload.samples, proposals=workload.proposals, accepted=st.integers(0, 3))
    def run(self, sampled: list[int], proposals: list[int], accepted: int) -> None:
        """Do the same until about everybody has ended."""
        self._run(RUN_STEPS, False, sampled, proposals, accepted)
        self._count("run")

    @precondition(lambda self: self.number and self._may_fly())
    @rule(tensors=st.sampled_from(TENSORS), sampled=workload.samples, throttle=st.booleans())
    def dispatch(self, tensors: str, sampled: list[int], throttle: bool) -> None:
        """Schedule a step whose samples come later."""
        self._dispatch(tensors, sampled, throttle)
        self._count("dispatch")

    @precondition(lambda self: self.watched.in_flight)
    @rule(by_name=st.booleans(), accepted=st.integers(0, 3))
    def account(self, by_name: bool, accepted: int) -> None:
        """Give the oldest step in flight its samples."""
        self._account(by_name, accepted)
        self._count("account")

    @precondition(lambda self: self._may("propose") and not self.watched.in_flight)
    @precondition(lambda self: self.watched.config.num_speculative_tokens and self.number)
    @rule(proposals=workload.proposals)
    def propose(self, proposals: list[int]) -> None:
        """Give those that run draft tokens, or take them away again."""
        self._propose(proposals)
        self._count("propose")

    @precondition(lambda self: self.watched.ledger.parked_as("WAITING_FOR_GRAMMAR"))
    @rule(place=st.integers(0, 7))
    def grammar_ready(self, place: int) -> None:
        """Let a request go on that waits for its grammar."""
        parked = self.watched.ledger.parked_as("WAITING_FOR_GRAMMAR")
        self.watched.grammar_ready(parked[place % len(parked)].name)
        self._count("grammar ready")

    @precondition(lambda self: self._sessions())
    @rule(place=st.integers(0, 7), tokens=workload.samples, length=st.integers(1, 12))
    def continue_session(self, place: int, tokens: list[int], length: int) -> None:
        """Send the next input of a session: as much as fits."""
        sessions = self._sessions()
        session = sessions[place % len(sessions)]
        room = self.watched.ledger.room(session)
        tokens = tokens[: room - 1]
        self.watched.continue_session(session.name, tokens, min(length, room - len(tokens)))
        self._count("continue session")

    @precondition(lambda self: self._may("reset prefix cache") and self.number)
    @precondition(lambda self: self.watched.config.enable_prefix_caching)
    @rule()
    def reset_prefix_cache(self) -> None:
        """Forget all prefixes, if no block is in use."""
        self.watched.reset_prefix_cache()
        self._count("reset prefix cache")

    @precondition(lambda self: self._may("abort") and self.number)
    @rule(places=st.lists(st.integers(0, 15), min_size=1, max_size=2))
    def abort(self, places: list[int]) -> None:
        """Abort some of those that run, wait or have ended, or one never heard of."""
        names = [*self.watched.ledger.live, *self._gone()[-2:], "nobody"]
        self.watched.abort([names[place % len(names)] for place in places])
        self._count("abort")

    def teardown(self) -> None:
        """End every request, and demand that each has ended once and all blocks are back."""
        watched: WatchedScheduler | None = getattr(self, "watched", None)
        if watched is None:
            return
        if not watched.is_broken:
            self._end(watched)
        self.counts.update(watched.counts)

    def _end(self, watched: WatchedScheduler) -> None:
        while watched.in_flight:
            watched.account()
        if self.drained:
            watched.drain(workload.NO_STOP)
        if watched.ledger.live:
            watched.abort(list(watched.ledger.live))
        watched.check_end()
        target(self.pressure, label="largest share of the pool in use")
        target(float(watched.counts["preempted"]), label="preemptions")

    def _free_name(self, again: bool) -> str:
        gone = self._gone()
        if again and gone:
            return gone[-1]
        self.number += 1
        return f"r{self.number - 1}"

    def _gone(self) -> list[str]:
        """Return the ids that have been in use and may be used again."""
        ledger = self.watched.ledger
        used = ledger.live.keys() | {r.name for r in ledger.leaving}
        return [name for number in range(self.number) if (name := f"r{number}") not in used]

    def _sessions(self) -> list[Entry]:
        """Return the sessions that can have another turn."""
        ledger = self.watched.ledger
        return [r for r in ledger.parked_as("WAITING_FOR_STREAMING") if ledger.room(r) > 0]

    def _run(
        self,
        times: int,
        throttle: bool,
        sampled: list[int],
        proposals: list[int],
        accepted: int,
    ) -> None:
        for _ in range(times):
            self._dispatch("at once", sampled, throttle)
            if not self._may_fly():
                self._account(by_name=True, accepted=accepted)
            if not self.watched.in_flight:
                self._propose(proposals)
            if not self.watched.ledger.unfinished:
                break
        while self.watched.in_flight:
            self._account(by_name=True, accepted=accepted)

    def _may_fly(self) -> bool:
        return self.watched.in_flight < self.watched.config.max_steps_in_flight

    def _dispatch(self, tensors: str, sampled: list[int], throttle: bool) -> None:
        self._compute()
        self.since_step.clear()
        output = self.watched.dispatch(sampled, throttle)
        for name in ("new_rows", "resumed_rows", "preempted_req_ids", "scheduled_encoder_inputs"):
            if getattr(output, name):
                event(f"a step has {name}")
        free = len(self.watched.scheduler.free_block_ids())
        self.pressure = max(self.pressure, 1 - free / self.watched.config.num_usable_blocks)
        self.tensors = tensors
        if tensors != "after other calls":
            self._compute()

    def _compute(self) -> None:
        """Run the model on the last step, if it has not run yet: the next one takes its buffers."""
        if self.tensors:
            self.watched.compute(tensors=self.tensors != "from lists")
        self.tensors = ""

    def _account(self, by_name: bool, accepted: int) -> None:
        if self.watched.in_flight == 1:
            self._compute()
        self.watched.account(by_name=by_name, accepted=accepted)

    def _propose(self, proposals: list[int]) -> None:
        if most := self.watched.config.num_speculative_tokens:
            self.watched.propose(proposals[:most])

    def _may(self, call: str) -> bool:
        return self.since_step[call] < IN_A_ROW_MAX[call]

    def _count(self, call: str) -> None:
        self.since_step[call] += 1
        self.counts[f"call {call}"] += 1


def _gets_on(config: SchedulerConfig, victim: VictimRule | None) -> bool:
    """Return whether everybody ends in time if nobody aborts them.

    They do while some request is never a victim. Of equals, however, the one that is furthest is
    preempted first under "priority", and where a first chunk is enough to be admitted three of them
    can preempt one another for ever, as in vLLM 0.25.1.
    """
    if victim is None and config.policy == "priority":
        return config.scheduler_reserve_full_isl
    return victim in (None, VictimRule(-1))


def run_fuzz(
    max_examples: int,
    steps: int,
    seed: int,
    *,
    shrink: bool = True,
    profile: Profile = Profile(),  # noqa: B008 - frozen
    configurations: st.SearchStrategy[SchedulerConfig] = workload.configurations,
    explains: bool = False,
) -> Counter[str]:
    """Run the machine that often, and return how often each rule was called and what happened.

    Args:
        max_examples: runs.
        steps: most calls of one run.
        seed: the same seed draws the same calls.
        shrink: look for the shortest program that fails, which takes some seconds; if not, the
            first one is reported.
        profile: the rules that the scheduler follows.
        configurations: the limits to draw from.
        explains: explain every request after each call, and hold each step against that.

    Raises:
        Exception: What went wrong; `program_of` returns its program.

    """
    machine = counting_machine(seed, profile, configurations)
    machine.explains = explains
    run_state_machine_as_test(machine, settings=fuzz_settings(max_examples, steps, shrink))
    return machine.counts


def counting_machine(
    number: int, profile: Profile, configurations: st.SearchStrategy[SchedulerConfig]
) -> type[SchedulerMachine]:
    """Return the machine with counts and configurations of its own, and a seed."""

    def configure(
        self: SchedulerMachine, config: SchedulerConfig, victim: VictimRule | None, drained: bool
    ) -> None:
        self._configure(config, victim, drained)

    drawn = initialize(config=configurations, victim=workload.victims, drained=st.booleans())
    own = {"counts": Counter(), "profile": profile, "configure": drawn(configure)}
    machine: Any = type("SchedulerMachine", (SchedulerMachine,), own)
    return seed(number)(machine)  # type: ignore[no-any-return]


def fuzz_settings(max_examples: int, steps: int, shrink: bool) -> settings:
    """Return settings in which nothing depends on the clock or on earlier runs."""
    return settings(
        max_examples=max_examples,
        stateful_step_count=steps,
        deadline=None,
        derandomize=False,
        database=None,
        print_blob=False,
        report_multiple_bugs=False,
        phases=(Phase.generate, Phase.target, *([Phase.shrink] if shrink else [])),
        suppress_health_check=list(HealthCheck),
    )


def summary(counts: Counter[str]) -> str:
    """Return the counts as lines, what happened most often first."""
    width = max(map(len, counts), default=0)
    return "\n".join(f"{name:<{width}} {number:>9,}" for name, number in counts.most_common())
