"""What can happen to a scheduler from outside, as values: calls, and what comes with them."""

from __future__ import annotations

from attrs import frozen

Answer = tuple[str, int | None, bool]


@frozen
class Arrive:
    """A request comes."""

    name: str


@frozen
class Abort:
    """A request is ended by its caller."""

    name: str


@frozen
class Schedule:
    """A step is decided and dispatched.

    Attributes:
        throttled: it is asked to leave prefills for later.
        answers: what the connector answered, in order: whom, how many tokens or None for "ask
            again", and whether they are loaded asynchronously.

    """

    throttled: bool = False
    answers: tuple[Answer, ...] = ()


@frozen
class Update:
    """The oldest step comes back.

    Attributes:
        stops: who samples a stop token; all others go on.
        received: whose loads have ended, wholly or in part.
        failed: places in block tables that a load did not fill.
        lost: whose loads will never end.
        sent: whose kept blocks have been sent.

    """

    stops: tuple[str, ...] = ()
    received: tuple[str, ...] = ()
    failed: tuple[tuple[str, int], ...] = ()
    lost: tuple[str, ...] = ()
    sent: tuple[str, ...] = ()


Event = Arrive | Abort | Schedule | Update
