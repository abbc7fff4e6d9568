"""Ends of transfers that a faulty connector knows and has not reported yet."""

from __future__ import annotations

from collections.abc import Set
from typing import Literal

from attrs import define

Kind = Literal["received", "sent", "lost"]


@define(eq=False)
class End:
    """One end signal.

    Attributes:
        request_id: the request whose transfer has ended.
        kind: the part of the report that it will be in.
        due: the poll that it is reported in at the earliest.
        failed_blocks: blocks reported with it.
        waits_until: if set, it waits for a later end to be reported, but not beyond this poll.
        is_repeated: it has been reported before, so nobody waits for it.
        number: its place in the order in which ends became known.

    """

    request_id: str
    kind: Kind
    due: int
    failed_blocks: frozenset[int] = frozenset()
    waits_until: int | None = None
    is_repeated: bool = False
    number: int = 0


class HeldEnds:
    """The ends that wait, in the order in which they became known."""

    def __init__(self) -> None:
        """Start with none."""
        self._ends: list[End] = []
        self._count = 0

    def add(self, end: End) -> None:
        """Hold an end until it is due."""
        end.number, self._count = self._count, self._count + 1
        self._ends.append(end)

    def take_due(self, poll: int) -> list[End]:
        """Return the ends to report in this poll, and hold them no longer."""
        due = [e for e in self._ends if e.due <= poll and _has_waited(e, poll)]
        self._ends = [e for e in self._ends if e not in due]
        return due

    def overtaken(self, reported: list[End], poll: int) -> int:
        """Let those go in the next poll that waited for any of these; return how many did."""
        latest = max((e.number for e in reported if not e.is_repeated), default=-1)
        freed = [e for e in self._ends if e.waits_until is not None and e.number < latest]
        for end in freed:
            end.waits_until, end.due = None, poll + 1
        return len(freed)

    def any_owed(self) -> bool:
        """Return whether a first report is held."""
        return any(not end.is_repeated for end in self._ends)

    def forget_repeated(self, request_id: str, kinds: Set[Kind]) -> None:
        """Drop repeated reports of these kinds about a request: a newer transfer has begun."""
        self._ends = [
            e
            for e in self._ends
            if not (e.is_repeated and e.request_id == request_id and e.kind in kinds)
        ]


def _has_waited(end: End, poll: int) -> bool:
    return end.waits_until is None or end.waits_until <= poll
