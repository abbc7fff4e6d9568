"""What a check has seen of a fault, and the shortest way there that it has come upon."""

from __future__ import annotations

import time

from attrs import define, evolve, field, frozen

SHORTENING_SECONDS = 1.0


@frozen
class Sighting:
    """A fault that a check has found.

    Attributes:
        method: how it was found, in a word or two.
        claims: everything that it breaks, as the check says it: names of obligations, or what was
            expected and what was seen.
        length: how long the way to the fault is, in `unit`.
        unit: what is counted: rows, calls or steps.
        program: the way there as Python, where there is one.
        seconds: how long it took to find it; finding a shorter way is not counted.

    """

    method: str
    claims: tuple[str, ...]
    length: int
    unit: str
    program: str = ""
    seconds: float = 0.0


class EnoughError(BaseException):
    """The time for finding a shorter way is over; no `Exception`, so that no fuzzer holds it."""


@define
class Sightings:
    """What a fuzzer comes upon while it makes an example smaller, for as long as it may."""

    start: float = field(factory=time.perf_counter)
    shortest: Sighting | None = None

    def note(self, sighting: Sighting) -> None:
        """Keep the sighting if it is the first one, or a shorter way to the same kind of fault.

        Raises EnoughError when there has been time enough.
        """
        now, kept = time.perf_counter() - self.start, self.shortest
        if kept is None:
            self.shortest = evolve(sighting, seconds=now)
            return
        if _kind(sighting) == _kind(kept) and sighting.length < kept.length:
            self.shortest = evolve(sighting, seconds=kept.seconds)
        if now > kept.seconds + SHORTENING_SECONDS:
            raise EnoughError


def _kind(sighting: Sighting) -> str:
    return sighting.claims[0].partition(":")[0].partition(" of ")[0]
