"""The explorer as a catcher: every order of calls, steps and ends of transfers, for small sizes."""

from __future__ import annotations

import time
from typing import Any

from attrs import evolve, frozen

from kvproof.verify.bugs.injection import Injection
from kvproof.verify.bugs.run_catchers import quiet
from kvproof.verify.bugs.sighting import Sighting
from kvproof.verify.explorer import Scope, explore


@frozen
class Explorer:
    """Everything that can happen to a few requests in a few blocks, until something is wrong.

    Attributes:
        requests: requests that are there at once.
        blocks: blocks that can be used.
        policy: "fcfs" or "priority".
        in_flight: steps that may be in flight.
        states: states of one kind of workload at most.

    """

    requests: int = 2
    blocks: int = 4
    policy: str = "fcfs"
    in_flight: int = 1
    states: int = 1_000

    @property
    def name(self) -> str:
        """Say what is explored."""
        flying = f", {self.in_flight} in flight" if self.in_flight > 1 else ""
        size = f"{self.requests} requests, {self.blocks} blocks, {self.policy}"
        return f"explorer ({size}{flying})"

    def look(self, injection: Injection) -> Sighting | None:
        """Return the first thing that is wrong, with the shortest way there."""
        start = time.perf_counter()
        scope = evolve(Scope(**self._options()), profile=injection.profile())
        with injection.planted(), quiet():
            found = explore(scope, jobs=1, stop_at_first=True, most_states=self.states)
        if not found.findings:
            return None
        first = found.findings[0]
        seconds = time.perf_counter() - start
        claim = f"{first.kind}: {first.what}"
        return Sighting("explorer", (claim,), first.length, "calls", first.program, seconds)

    def _options(self) -> dict[str, Any]:
        names = ("requests", "blocks", "policy", "in_flight")
        return {name: getattr(self, name) for name in names}
