"""Why a request is where it is: what was short, who holds it, and what would end the wait.

Wishes of vllm#56816 (say what the scheduler waits for when it stalls) and vllm#53130 (counters by
reason did not tell the cause: name reason and blocking resource for each request).
"""

from __future__ import annotations

from enum import StrEnum

from attrs import frozen

from kvproof.core import Status
from kvproof.runtime.demand import Demand


class Queue(StrEnum):
    """Where a request stands."""

    RUNNING = "running"
    WAITING = "waiting"
    SKIPPED = "skipped"
    LANDED = "landed"
    NONE = "no queue"


class Outlook(StrEnum):
    """What comes next for a request."""

    SCHEDULED = "gets tokens in the next step"
    ADMITTED = "is admitted in the next step"
    LOADS = "starts to be loaded in the next step"
    PREEMPTED = "is preempted in the next step"
    IN_FLIGHT = "waits for samples of steps in flight"
    LOADING = "is being loaded"
    REFUSED = "is refused"
    BEHIND = "stands behind a request at which the pass stops"
    UNSEEN = "waits for the next step to look at it"
    PARKED = "is parked until its caller does something"
    ENDED = "has ended"


class Doing(StrEnum):
    """What a holder does with what it holds."""

    RUNS = "runs"
    LOADING = "is being loaded"
    LANDED = "waits with what was loaded"
    FENCED = "has given them up"
    SENDING = "has ended and is being sent"
    LOADING_STILL = "has ended while it was being loaded"
    WAITS = "waits"


@frozen
class Holder:
    """Who has something of what is short.

    Attributes:
        request_id: the request, or the ended or preempted one that held it last.
        doing: what it does with it.
        blocks: blocks in its table, or behind its fence.
        alone: how many of these nobody else has, and would come back from it.
        until: the step whose samples give back what is behind a fence; None for other holders.
        reserved: blocks that the rule which refuses reserves for it.
        embeddings: encoder embeddings that it uses, those that it shares among them.

    """

    request_id: str
    doing: Doing
    blocks: int
    alone: int = 0
    until: int | None = None
    reserved: int = 0
    embeddings: int = 0

    def __str__(self) -> str:
        """Return it as a phrase: "r1 has 5 blocks and runs"."""
        shared = f" ({self.alone} of them alone)" if self.alone != self.blocks else ""
        has = f"{self.request_id} has {_many(self.blocks, 'block')}{shared}"
        has += f", {_many(self.reserved, 'block')} reserved" if self.reserved else ""
        has += f", {_many(self.embeddings, 'embedding')}" if self.embeddings else ""
        until = f" until step {self.until} is back" if self.until is not None else ""
        return f"{has} and {self.doing}{until}"


class Kind(StrEnum):
    """What kind of event ends a wait."""

    NEXT_STEP = "the next step"
    SAMPLES = "the samples of step"
    RELEASE = "a step that does not defer prefills"
    END = "the end of"
    LOADED = "the end of the load of"
    SENT = "the end of the transfer of"
    ANSWER = "the connector's answer about"
    GRAMMAR = "a call of grammar_ready for"
    INPUT = "a call of continue_session for"


@frozen
class Event:
    """Something that would end a wait, or at least shorten it.

    Attributes:
        kind: what happens.
        request_id: to whom; None where it is a step.
        step: which step; None where it is a request, or any step.

    """

    kind: Kind
    request_id: str | None = None
    step: int | None = None

    def __str__(self) -> str:
        """Return it as a phrase: "the samples of step 7"."""
        what = self.step if self.request_id is None else self.request_id
        return str(self.kind) if what is None else f"{self.kind} {what}"


@frozen(kw_only=True)
class Explanation:
    """Why a request is where it is; its text is a short paragraph.

    Attributes:
        request_id: the request.
        status: its state; ABSENT if it has left and only its blocks are kept for a transfer.
        queue: where it stands.
        place: how many stand there before it; None if it stands nowhere.
        outlook: what comes next for it.
        step: the step that has been decided last, if the guards are those of its pass: as many
            steps are in flight as there may be. None if they are those of the next step.
        tokens: tokens that it gets in the next step.
        behind: the request at which the pass stops before it comes to this one.
        demand: what the guard asks that refuses it, or refuses the one that it stands behind.
        first: of what was short, how much others are given first in the same step.
        own: what would refuse a request that holds blocks and stands behind another, were it the
            first; None if nothing would, or it is no such request.
        is_held_up: it is such a request, and nothing would refuse it.
        holders: who has what is short, but the refused request itself.
        events: what would end the wait; none if nothing but an abort would.
        abortable: whose abort would, if nothing else does.
        note: what else is to be said.

    """

    request_id: str
    status: Status
    queue: Queue
    place: int | None
    outlook: Outlook
    step: int | None = None
    tokens: int = 0
    behind: str | None = None
    demand: Demand | None = None
    first: int = 0
    own: Demand | None = None
    is_held_up: bool = False
    holders: tuple[Holder, ...] = ()
    events: tuple[Event, ...] = ()
    abortable: tuple[str, ...] = ()
    note: str = ""

    @property
    def is_frozen(self) -> bool:
        """Whether it will wait for ever unless somebody is aborted."""
        return not self.events and self.outlook is not Outlook.ENDED

    def __str__(self) -> str:
        """Return it as a paragraph."""
        return " ".join(part for part in (self._where(), *self._why(), self._exit()) if part)

    def _where(self) -> str:
        stands = f", place {self.place + 1} of {self.queue}" if self.place is not None else ""
        when = f" (as of step {self.step})" if self.step is not None else ""
        return f"{self.request_id} ({self.status.name}{stands}) {self._what()}{when}."

    def _what(self) -> str:
        if self.outlook is Outlook.SCHEDULED:
            return f"gets {_many(self.tokens, 'token')} in the next step"
        if self.outlook is Outlook.BEHIND:
            return f"stands behind {self.behind}, at which the pass stops"
        return str(self.outlook)

    def _why(self) -> tuple[str, ...]:
        if self.demand is None:
            return (self.note,)
        refused = f"{self.behind} is refused by {self.demand}" if self.behind else str(self.demand)
        first = f", after {self.first} that others take first" if self.first else ""
        holders = "; ".join(map(str, self.holders))
        return f"{refused}{first}.", f"{holders}." if holders else "", self._alone(), self.note

    def _alone(self) -> str:
        if self.is_held_up:
            return f"Were {self.request_id} looked at first, it could go on at once."
        return f"{self.request_id} itself would be refused by {self.own}." if self.own else ""

    def _exit(self) -> str:
        if self.outlook is Outlook.ENDED and not self.events:
            return ""
        if self.events:
            return f"Ends with {_any_of([str(event) for event in self.events])}."
        aborts = f" but the abort of {_any_of(list(self.abortable))}" if self.abortable else ""
        return f"Frozen: nothing ends this wait{aborts}."


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _any_of(phrases: list[str]) -> str:
    *others, last = phrases
    return f"{', '.join(others)} or {last}" if others else last
