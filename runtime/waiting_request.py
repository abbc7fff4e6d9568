"""What an order policy sees of one request that waits for admission."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from attrs import frozen


@frozen
class WaitingRequest:
    """A request as it is when it is queued; it does not change while it waits.

    Attributes:
        request_id: the caller's name for it.
        priority: the least is the most urgent.
        arrival_time: seconds on the caller's clock.
        known: tokens of its prompt and of what it has sampled, all of which are to be computed.
        remaining: tokens that it may still sample.
        preemptions: how often it has been preempted.

    """

    request_id: str
    priority: int
    arrival_time: float
    known: int
    remaining: int
    preemptions: int


Order = Callable[[WaitingRequest], Any]
