"""The mixed run as a catcher: transfers with every other feature, at random."""

from __future__ import annotations

import time

from attrs import evolve, frozen

from kvproof.verify.bugs.injection import Injection
from kvproof.verify.bugs.run_catchers import quiet
from kvproof.verify.bugs.sighting import Sighting
from kvproof.verify.mixed_run import MixedRun


@frozen
class Mixed:
    """Runs with limits and calls of their own, until one goes wrong.

    Attributes:
        runs: how many at most.
        calls: random calls of each.
        seed: of the first.

    """

    runs: int = 12
    calls: int = 120
    seed: int = 0

    @property
    def name(self) -> str:
        """Say what is run."""
        return f"mixed runs ({self.runs} of {self.calls} calls, seed {self.seed})"

    def look(self, injection: Injection) -> Sighting | None:
        """Return what went wrong in the first run in which something did."""
        start = time.perf_counter()
        with injection.planted(), quiet():
            for seed in range(self.seed, self.seed + self.runs):
                run = MixedRun.of(seed, injection.profile())
                try:
                    run.run(self.calls)
                except Exception as fault:  # whatever the runtime raises
                    claim = f"{type(fault).__name__}: {fault}"
                    found = Sighting("mixed run", (claim,), run.calls, "calls", f"seed {seed}")
                    return evolve(found, seconds=time.perf_counter() - start)
        return None
