"""The states of one workload that have been reached, how, and the calls that bring nobody on."""

from __future__ import annotations

from array import array

from attrs import define, field

from kvproof.verify.explorer.events import Event


@define(eq=False)
class Graph:
    """States are numbered in the order in which they were reached, so the first path is shortest.

    Attributes:
        parents: for each state, from which one it was first reached.
        calls: for each state, by which call; None for the start.
        depths: for each state, after how many calls.
        loading: for each state, who is being loaded, as bits.
        sending: for each state, whose blocks wait to be sent, as bits.
        sources: for each call that brings nobody on, the state before it.
        targets: the state after it.
        idle_calls: the call.

    """

    parents: array[int] = field(factory=lambda: array("l"))
    calls: list[Event | None] = field(factory=list)
    depths: array[int] = field(factory=lambda: array("l"))
    loading: array[int] = field(factory=lambda: array("l"))
    sending: array[int] = field(factory=lambda: array("l"))
    sources: array[int] = field(factory=lambda: array("l"))
    targets: array[int] = field(factory=lambda: array("l"))
    idle_calls: list[Event] = field(factory=list)

    def __len__(self) -> int:
        """Return the number of states."""
        return len(self.parents)

    def add_state(self, parent: int, call: Event | None, pending: tuple[int, int]) -> int:
        """Add a state that was reached from another one; return its number."""
        self.parents.append(parent)
        self.calls.append(call)
        self.depths.append(self.depths[parent] + 1 if call is not None else 0)
        self.loading.append(pending[0])
        self.sending.append(pending[1])
        return len(self.parents) - 1

    def add_idle_call(self, source: int, target: int, call: Event) -> None:
        """Add a call that brings nobody on."""
        self.sources.append(source)
        self.targets.append(target)
        self.idle_calls.append(call)

    def path(self, state: int) -> list[Event]:
        """Return the calls of a shortest way to a state."""
        calls: list[Event] = []
        while (call := self.calls[state]) is not None:
            calls.append(call)
            state = self.parents[state]
        return calls[::-1]
