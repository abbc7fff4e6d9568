"""One report: what is planted for it, who is to catch it, and what that check must say."""

from __future__ import annotations

import re
from typing import Protocol

from attrs import frozen

from kvproof.verify.bugs.injection import Injection
from kvproof.verify.bugs.proof_catchers import Proofs
from kvproof.verify.bugs.sighting import Sighting


class Catcher(Protocol):
    """A check of the house that knows nothing of any report.

    It must be the same for the healthy house and for one with a fault, so that the one is the
    control of the other.
    """

    @property
    def name(self) -> str:
        """How the check is called in the table."""
        ...

    def look(self, injection: Injection) -> Sighting | None:
        """Return what the check says, or None if it is content."""
        ...


@frozen
class Bug:
    """A report as a fault that can be planted.

    Attributes:
        name: the letter of its group, and a number.
        reports: the public reports; none if nobody has reported it.
        injection: the fault.
        catcher: the check that is expected to see it.
        breaks: the property that it breaks; see `kvproof.spec.properties`.
        expected: a pattern that something which the check says must match.

    """

    name: str
    reports: tuple[str, ...]
    injection: Injection
    catcher: Catcher
    breaks: str
    expected: str

    def recognises(self, sighting: Sighting) -> str | None:
        """Return the first claim that is the expected one, or None if the check saw others."""
        return next((c for c in sighting.claims if re.search(self.expected, c)), None)


@frozen
class Unplanted:
    """A report that cannot be planted here, and why."""

    name: str
    reports: tuple[str, ...]
    reason: str


def proved(
    name: str, reports: tuple[str, ...], injection: Injection, breaks: str, expected: str
) -> Bug:
    """Return a fault in a row that the obligations of this row are expected to refute."""
    return Bug(name, reports, injection, Proofs(injection.rows), breaks, expected)
