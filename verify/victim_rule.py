"""Victim policies that can be drawn, printed and repeated."""

from __future__ import annotations

from attrs import frozen

from kvproof.runtime.running_view import RunningView


@frozen
class VictimRule:
    """Choose the running request at `place`, counted around: -1 is the last, 0 the first.

    Any other number hits a place that depends on how many run, so victims before, at and behind
    the request in need all occur.
    """

    place: int = -1

    def __call__(self, running: RunningView) -> int:
        """Return the row to preempt."""
        return int(running.rows[self.position(len(running))])

    def position(self, count: int) -> int:
        """Return which of `count` running requests is the victim."""
        return self.place % count
