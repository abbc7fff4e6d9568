"""Running a recorded workload until nothing moves, and asking the scheduler why.

A freeze is what the watchdog reports. A livelock is a circle: the same requests stand in the same
places with the same tokens again and again, nothing is in transfer or to come, and nobody brings a
token. Both are what vLLM 0.25.1 does with some workloads; wishes of vllm#56816 and vllm#53130.
"""

from __future__ import annotations

from collections import Counter
from enum import StrEnum

from attrs import define, field, frozen

from kvproof.runtime.explanation import Explanation, Outlook
from kvproof.runtime.profile import Profile
from kvproof.verify.courses import Course, course_of
from kvproof.verify.difference import Difference
from kvproof.verify.outcome import Outcome
from kvproof.verify.recording import Recording

TIMES = 3  # A place that the run comes to so often is one of a circle.


class Ending(StrEnum):
    """How a run ends."""

    DRAINED = "drained"
    STOPPED = "stopped"
    FROZEN = "frozen"
    CIRCLING = "circling"
    FAULTY = "faulty"


@frozen(kw_only=True)
class Stand:
    """Where a run stands at its end.

    Attributes:
        ending: how it ends.
        step: its last step, counted from 1.
        period: steps of a circle; 0 if it is none.
        explanations: why each request that is left is where it is.
        faults: what went wrong on the way: tokens of foreign KV; or what ended the run.
        outcome: what became of the others.

    """

    ending: Ending
    step: int
    period: int
    explanations: tuple[Explanation, ...]
    faults: tuple[Difference, ...]
    outcome: Outcome


def run_until_stuck(recording: Recording, profile: Profile, last: int | None = None) -> Stand:
    """Run a recorded workload until nobody is left, nothing moves, or its step `last` is over."""
    return _Run(course_of(recording, profile), last).stand()


@define
class _Run:
    """A run, and the places that it has come to since somebody brought a token."""

    course: Course
    last: int | None
    faults: list[Difference] = field(factory=list)
    been_at: Counter[object] = field(factory=Counter)
    since: dict[object, int] = field(factory=dict)
    tokens: int = 0

    def stand(self) -> Stand:
        step = 0
        while not self.course.is_over(step) and step != self.last:
            step += 1
            fault = self.course.advance(step)
            if fault is not None:
                self.faults.append(fault)
            if fault is not None and not fault.what.startswith("KV of "):
                return self._at(Ending.FAULTY, step)
            if self.course.is_to_change(step):
                self.been_at.clear()
            elif self.course.scheduler.statistics().is_frozen:
                return self._at(Ending.FROZEN, step)
            elif period := self._period(step):
                return self._in_circle(step, period)
        left = self.course.scheduler.has_work()
        return self._at(Ending.STOPPED if left else Ending.DRAINED, step)

    def _at(self, ending: Ending, step: int, period: int = 0) -> Stand:
        return Stand(
            ending=ending,
            step=step,
            period=period,
            explanations=tuple(self.course.scheduler.explain_all()),
            faults=tuple(self.faults),
            outcome=self.course.outcome,
        )

    def _period(self, step: int) -> int:
        """Return how many steps a circle has, if the run goes round in one."""
        tokens = sum(map(len, self.course.outcome.tokens.values()))
        if tokens != self.tokens:
            self.tokens = tokens
            self.been_at.clear()
        place = self._place()
        self.been_at[place] += 1
        period = step - self.since.get(place, step)
        self.since[place] = step
        return period if self.been_at[place] >= TIMES else 0

    def _place(self) -> object:
        """Return where everybody stands, and with how much."""
        scheduler, connector = self.course.scheduler, self.course.connector
        orders = (
            tuple(scheduler.running_request_ids()),
            tuple(scheduler.waiting_request_ids()),
            tuple(scheduler.skipped_request_ids()),
        )
        requests = tuple(
            (
                scheduler.status(name),
                len(scheduler.token_ids(name)),
                scheduler.num_computed_tokens(name),
                len(scheduler.block_ids(name)),
            )
            for order in orders
            for name in order
        )
        free = scheduler.statistics().num_free_blocks
        memory = None if connector is None else connector.memory()
        return orders, requests, free, self.course.flying(), memory

    def _in_circle(self, step: int, period: int) -> Stand:
        """Go on to where the circle takes back what it gave: the next preemption, if any."""
        for further in range(step + 1, step + 1 + period):
            explanations = self.course.scheduler.explain_all()
            preempts = any(found.outlook is Outlook.PREEMPTED for found in explanations)
            if preempts or self.course.is_over(step):
                break
            self.course.advance(further)
            step = further
        return self._at(Ending.CIRCLING, step, period)
