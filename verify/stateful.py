"""A Hypothesis machine that drives the real scheduler: random calls, every claim after each.

Only calls that are allowed are drawn. A fault shrinks to a short program against the runtime's
interface, which is attached to the exception and printed with it; `program_of` returns it.

    from kvproof.verify.stateful import run_fuzz, summary
    print(summary(run_fuzz(max_examples=200, steps=50, seed=0)))

In a suite of pytest `TestScheduler = SchedulerMachine.TestCase` does the same without the counts.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import HealthCheck, Phase, event, seed, settings, target
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from kvproof.runtime import SchedulerConfig
from kvproof.verify import workload
from kvproof.verify.victim_rule import VictimRule
from kvproof.verify.watched_scheduler import WatchedScheduler

TENSORS = ("at once", "after other calls", "from lists")
ABORTS_IN_A_ROW_MAX = 2  # Otherwise half of all calls are aborts, and pools never fill.


class SchedulerMachine(RuleBasedStateMachine):
    """Adds, steps and aborts at any moment, with the samples of a step in flight or not.

    `counts` adds up over all runs of the class; a subclass that sets its own keeps them apart.
    """

    counts: Counter[str] = Counter()  # noqa: RUF012 - shared by intent

    @initialize(config=workload.configurations, victim=workload.victims, drained=st.booleans())
    def configure(self, config: SchedulerConfig, victim: VictimRule, drained: bool) -> None:
        """Make a scheduler; `drained` says how its requests end: by steps, or by abort."""
        self.watched = WatchedScheduler(config, victim)
        self.drained = drained and victim.place == -1
        self.number = self.aborts_in_a_row = 0
        self.tensors = TENSORS[0]
        self.pressure = 0.0

    @rule(drafts=workload.drafts, again=st.booleans())
    def add(self, drafts: list[workload.Draft], again: bool) -> None:
        """Add some requests, under new ids or ones that have been in use."""
        for draft in drafts:
            name = self._free_name(again)
            request = workload.fitting_request(self.watched.config, name, self.number, draft)
            self.watched.add(request)
        self._count("add")

    @precondition(lambda self: self.number and not self.watched.in_flight)
    @rule(times=st.integers(1, 10), sampled=workload.samples)
    def step(self, times: int, sampled: list[int]) -> None:
        """Schedule, compute and update, several times in a row while somebody is there."""
        for _ in range(times):
            self._dispatch("at once")
            self._account(sampled, by_name=True)
            if not self.watched.plain.live:
                break
        self._count("step")

    @precondition(lambda self: self.number and not self.watched.in_flight)
    @rule(tensors=st.sampled_from(TENSORS))
    def dispatch(self, tensors: str) -> None:
        """Schedule a step whose samples come later."""
        self._dispatch(tensors)
        self._count("dispatch")

    @precondition(lambda self: self.watched.in_flight)
    @rule(sampled=workload.samples, by_name=st.booleans())
    def account(self, sampled: list[int], by_name: bool) -> None:
        """Give the step in flight its samples."""
        self._account(sampled, by_name)
        self._count("account")

    @precondition(lambda self: self.number and self.aborts_in_a_row < ABORTS_IN_A_ROW_MAX)
    @rule(places=st.lists(st.integers(0, 15), min_size=1, max_size=3))
    def abort(self, places: list[int]) -> None:
        """Abort some of those that run, wait or have ended, or one never heard of."""
        self.aborts_in_a_row += 1
        names = [*self.watched.plain.live, *self._gone()[-2:], "nobody"]
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
        if watched.in_flight:
            watched.account([workload.NO_STOP])
        if self.drained:
            watched.drain(workload.NO_STOP)
        else:
            watched.abort(list(watched.plain.live))
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
        plain = self.watched.plain
        used = plain.live.keys() | {r.name for r in plain.leaving}
        return [name for number in range(self.number) if (name := f"r{number}") not in used]

    def _dispatch(self, tensors: str) -> None:
        self.aborts_in_a_row = 0
        decision = self.watched.dispatch()
        for name in ("new", "resumed", "preempted", "undone"):
            if getattr(decision, name):
                event(f"a step has {name} requests")
        plain = self.watched.plain
        self.pressure = max(self.pressure, 1 - plain.num_free / plain.config.num_usable_blocks)
        self.tensors = tensors
        if tensors in {"at once", "from lists"}:
            self.watched.compute(tensors=tensors == "at once")

    def _account(self, sampled: list[int], by_name: bool) -> None:
        if self.tensors == "after other calls":
            self.watched.compute()
        self.watched.account(sampled, by_name=by_name)

    def _count(self, call: str) -> None:
        self.counts[f"call {call}"] += 1


def run_fuzz(max_examples: int, steps: int, seed: int, *, shrink: bool = True) -> Counter[str]:
    """Run the machine that often, and return how often each rule was called and what happened.

    Args:
        max_examples: runs.
        steps: most calls of one run.
        seed: the same seed draws the same calls.
        shrink: look for the shortest program that fails, which takes some seconds; if not, the
            first one is reported.

    Raises:
        Exception: What went wrong; `program_of` returns its program.

    """
    machine = counting_machine(seed)
    run_state_machine_as_test(machine, settings=fuzz_settings(max_examples, steps, shrink))
    return machine.counts


def counting_machine(number: int) -> type[SchedulerMachine]:
    """Return the machine with counts of its own, and a seed."""
    machine: Any = type("SchedulerMachine", (SchedulerMachine,), {"counts": Counter()})
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
