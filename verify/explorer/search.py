"""Breadth first through everything that one workload can come to."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence

from attrs import define, field, frozen

from kvproof.runtime import BrokenInvariant
from kvproof.verify.explorer.events import Event, Schedule, Update
from kvproof.verify.explorer.fair_cycles import Cycle, fair_cycles, way_of
from kvproof.verify.explorer.findings import Check, Explored, Fault, Finding, Kind, Transition
from kvproof.verify.explorer.graph import Graph
from kvproof.verify.explorer.machine import Machine, Position
from kvproof.verify.explorer.program import finding_of
from kvproof.verify.explorer.scope import Scope, Workload
from kvproof.verify.explorer.stuck import described

Watch = Callable[[int, int, int], None]  # states, transitions, states that wait
_LOOK_EVERY = 256  # states


@frozen
class Settings:
    """How to explore.

    Attributes:
        stop_at_first: end with the first thing that is wrong.
        states_max: give a workload up beyond so many states; None for never.
        checks: what is asked of each call besides.
        watch: told now and then how far it is.

    """

    stop_at_first: bool = False
    states_max: int | None = None
    checks: Sequence[Check] = ()
    watch: Watch | None = None


@define(eq=False)
class Search:
    """One workload, explored until nothing is new.

    Attributes:
        scope: the bound.
        workload: the kinds of requests.
        settings: how to explore it.
        checked: core states whose invariants hold, shared between workloads.

    """

    scope: Scope
    workload: Workload
    settings: Settings = field(factory=Settings)
    checked: set[bytes] = field(factory=set)
    machine: Machine = field(init=False)
    twin: Machine = field(init=False)
    graph: Graph = field(factory=Graph, init=False)
    findings: list[Finding] = field(factory=list, init=False)
    transitions: int = field(default=0, init=False)
    _numbers: dict[bytes, int] = field(factory=dict, init=False)
    _frontier: deque[tuple[int, Position]] = field(factory=deque, init=False)
    _state: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self.machine = Machine(self.scope, self.workload)
        self.twin = Machine(self.scope, self.workload)

    def run(self) -> Explored:
        """Explore, then look for cycles in which nobody gains."""
        start = time.process_time()
        self._reach(None, gains=True)
        complete = self._explore()
        for cycle in () if self._has_enough() else fair_cycles(self.graph):
            self._add_cycle(cycle)
            if self.settings.stop_at_first:
                break
        found = tuple(sorted(self.findings, key=lambda finding: finding.length))
        seconds = time.process_time() - start
        return Explored(self.workload, len(self.graph), self.transitions, seconds, complete, found)

    def _has_enough(self) -> bool:
        return self.settings.stop_at_first and bool(self.findings)

    def _is_too_large(self) -> bool:
        most = self.settings.states_max
        return most is not None and len(self.graph) > most

    def _explore(self) -> bool:
        """Expand states until none is left; return whether it came to that."""
        watch = self.settings.watch
        while self._frontier:
            if self._has_enough() or self._is_too_large():
                return False
            self._state, position = self._frontier.popleft()
            self._expand(position)
            if watch is not None and self._state % _LOOK_EVERY == 0:
                watch(len(self.graph), self.transitions, len(self._frontier))
        return True

    def _expand(self, position: Position) -> None:
        """Let everything happen that can happen in one state."""
        machine = self.machine
        machine.go_back(position)
        if self.settings.checks:
            self.twin.go_back(position)
        events, throttles = list(machine.simple_events()), machine.throttles()
        for throttled in throttles:
            scripts: list[tuple[int, ...]] = [()]
            while scripts:
                scripts += self._try_script(throttled, scripts.pop())
                machine.go_back(position)
        for event in events:
            self._try(event)
            machine.go_back(position)

    def _try(self, event: Event) -> None:
        self.transitions += 1
        try:
            gains = self.machine.do(event)
        except Exception as error:
            self._add_error(event, error)
        else:
            self._reach(event, gains=gains)

    def _try_script(self, throttled: bool, script: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Decide a step with given answers; return the scripts for other answers behind them."""
        self.transitions += 1
        machine = self.machine
        try:
            event = machine.schedule(throttled, script)
        except Exception as error:
            self._add_error(machine.last_step(throttled), error)
        else:
            self._reach(event, gains=False)
        asked = machine.connector.asked
        chosen = tuple(choice for choice, _ in asked)
        return [
            (*chosen[:place], other)
            for place in range(len(script), len(asked))
            for other in range(1, asked[place][1])
        ]

    def _reach(self, event: Event | None, *, gains: bool) -> None:
        """Take note of the state where the machine stands."""
        core, key = self.machine.key()
        number = self._numbers.get(key)
        if number is None:
            number = self.graph.add_state(self._state, event, self.machine.pending())
            self._numbers[key] = number
            if self._is_sound(core, number):
                self._frontier.append((number, self.machine.position()))
        if not gains and isinstance(event, Schedule | Update):
            self.graph.add_idle_call(self._state, number, event)
        if event is not None and self.settings.checks:
            self._ask(event)

    def _is_sound(self, core: bytes, number: int) -> bool:
        """Check the invariants of a new state; return whether it is worth going on from it."""
        if core in self.checked:
            return True
        try:
            self.machine.scheduler.check()
        except BrokenInvariant as error:
            broken = _names(str(error)) - self.scope.broken_by_rule()
            if broken:
                names = ", ".join(sorted(broken))
                events = tuple(self.graph.path(number))
                self._add(Fault(Kind.INVARIANT, names, names, events))
                return False
        self.checked.add(core)
        return True

    def _ask(self, event: Event) -> None:
        transition = Transition(
            self.twin.scheduler, self.machine.scheduler, event, self.machine.outcome
        )
        for check in self.settings.checks:
            message = check(transition)
            if message is not None:
                events = (*self.graph.path(self._state), event)
                self._add(Fault(Kind.LEMMA, message, message, events))

    def _add_error(self, event: Event, error: Exception) -> None:
        kind, events = type(error).__name__, (*self.graph.path(self._state), event)
        signature = f"{kind} {type(event).__name__}"
        self._add(Fault(Kind.ERROR, f"{kind}: {error}", signature, events))

    def _add_cycle(self, cycle: Cycle) -> None:
        events, calls = way_of(self.graph, cycle)
        stuck = described(self.scope, self.workload, events, calls)
        if stuck is not None:
            self._add(Fault(stuck.kind, stuck.what, stuck.signature, events, calls))

    def _add(self, fault: Fault) -> None:
        """Add a fault, unless there is one like it with a way that is no longer."""
        likes = [f for f in self.findings if f.is_like(fault)]
        if all(len(fault.events) < f.length for f in likes):
            found = finding_of(self.scope, self.workload, fault)
            self.findings = [f for f in self.findings if not f.is_like(fault)] + [found]


def _names(message: str) -> frozenset[str]:
    """Return the names of broken invariants without what else is said of them."""
    text = message.removesuffix(". This is a fault in kvproof.")
    return frozenset(part.split(" (")[0] for part in text.split("; "))
