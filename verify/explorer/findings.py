"""What an exploration finds, and what it was like."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum

from attrs import field, frozen

from kvproof.runtime import Scheduler, StepOutput
from kvproof.runtime.step_results import StepResults
from kvproof.verify.explorer.events import Event
from kvproof.verify.explorer.scope import Scope, Workload


class Kind(StrEnum):
    """What is wrong."""

    INVARIANT = "invariant"
    FREEZE = "freeze"
    LIVELOCK = "livelock"
    ERROR = "error"
    LEMMA = "lemma"


@frozen
class Fault:
    """Something that is wrong, and the calls that lead to it; see `Finding`."""

    kind: Kind
    what: str
    signature: str
    events: tuple[Event, ...]
    loop: tuple[Event, ...] = ()


@frozen
class Finding:
    """Something that is wrong, with the shortest way there.

    Attributes:
        kind: what it is.
        what: the same in words.
        program: a program against the public runtime that fails for it.
        length: calls of that program, up to the fault.
        signature: the same for findings that are alike.
        workload: the kinds of requests in it.
        events: the calls, as values.
        loop: those that go on for ever behind them, if any do.

    """

    kind: Kind
    what: str
    program: str = field(repr=False)
    length: int
    signature: str = field(repr=False)
    workload: Workload = field(repr=False)
    events: tuple[Event, ...] = field(repr=False)
    loop: tuple[Event, ...] = field(default=(), repr=False)

    def is_like(self, other: Finding | Fault) -> bool:
        """Return whether another one is of the same sort."""
        return (self.kind, self.signature) == (other.kind, other.signature)


@frozen
class Explored:
    """What became of one workload.

    Attributes:
        workload: the kinds of requests.
        states: how many states there are.
        transitions: how many calls of the runtime were made.
        seconds: of one core.
        is_complete: whether nothing within the bound was left out.
        findings: what is wrong, the shortest first.

    """

    workload: Workload
    states: int
    transitions: int
    seconds: float
    is_complete: bool
    findings: tuple[Finding, ...] = ()


@frozen
class Exploration:
    """What `explore` returns: the sums over all workloads, and what was found, once each.

    Attributes:
        scope: the bound.
        parts: the workloads that were explored.
        findings: what is wrong, the shortest first, one of those that are alike.
        seconds: from start to end.
        is_complete: whether everything within the bound was explored.

    """

    scope: Scope
    parts: tuple[Explored, ...]
    seconds: float
    is_complete: bool
    findings: tuple[Finding, ...] = ()

    @property
    def states(self) -> int:
        """States of all workloads."""
        return sum(part.states for part in self.parts)

    @property
    def transitions(self) -> int:
        """Calls of the runtime."""
        return sum(part.transitions for part in self.parts)

    @property
    def core_seconds(self) -> float:
        """Time of the processors."""
        return sum(part.seconds for part in self.parts)


@frozen(eq=False)
class Transition:
    """One call, for checks of what it may do.

    Attributes:
        before: a scheduler that stands where the call was made.
        after: the scheduler after it.
        event: the call.
        outcome: what `schedule` or `update` returned, None for the others.

    """

    before: Scheduler
    after: Scheduler
    event: Event
    outcome: StepOutput | StepResults | None


Check = Callable[[Transition], str | None]


def without_likes(findings: list[Finding]) -> tuple[Finding, ...]:
    """Return the shortest of each group of findings that are alike, the shortest first."""
    found: list[Finding] = []
    for finding in sorted(findings, key=lambda f: (f.length, len(f.workload), f.what)):
        if not any(other.is_like(finding) for other in found):
            found.append(finding)
    return tuple(found)
