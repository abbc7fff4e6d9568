"""Which faults a connector is to have, and how often."""

from __future__ import annotations

from collections.abc import Callable

from attrs import Attribute, field, fields, frozen

# Choose(n) returns a number from 0 to n - 1, and 0 is the calm choice, so that a minimised example
# has no fault that it does not need: random.Random(seed).randrange, or a draw of Hypothesis.
Choose = Callable[[int], int]


def _percent(_: object, attribute: Attribute[int], value: int) -> None:
    if not 0 <= value <= 100:
        raise ValueError(f"{attribute.name}: got {value}, expected 0 (never) to 100 (always)")


def _at_least_one(_: object, attribute: Attribute[int], value: int) -> None:
    if value < 1:
        raise ValueError(f"{attribute.name}: got {value}, expected at least 1")


def _fault() -> int:
    percent: int = field(default=0, validator=_percent, metadata={"is_fault": True})
    return percent


def _bound(default: int) -> int:
    bound: int = field(default=default, validator=_at_least_one)
    return bound


@frozen(kw_only=True)
class ConnectorFaults:
    """How often each fault occurs, in percent of its chances: 0 is never, 100 is always.

    Raises ValueError for a percentage outside 0 to 100 and for a bound below 1.

    Attributes:
        asked_again: `match` answers None (public report: vllm#57841).
        delayed: the end of a load, or of a send, is reported later than it is known.
        reordered: an end waits until one that came after it has been reported.
        duplicated: an end is reported once more (public report: vllm#43226).
        lost: the end of a load is dropped; it becomes `lost` after `lost_polls` polls (public
            report: vllm#46283).
        failed: blocks of a load hold NaN and are failed ones (public report: vllm#50719).
        failed_early: failed blocks are reported before the end of their load.
        unknown: a report names a request that nobody has (public report: vllm#43226).
        torn: the hook that damages a stored block is called before a load starts.
        asked_again_max: times in a row that a request is asked to ask again.
        delay_polls_max: polls that a delay, a reordering or a repetition takes at most.
        lost_polls: polls between the dropped end of a load and the report that it is lost.

    """

    asked_again: int = _fault()
    delayed: int = _fault()
    reordered: int = _fault()
    duplicated: int = _fault()
    lost: int = _fault()
    failed: int = _fault()
    failed_early: int = _fault()
    unknown: int = _fault()
    torn: int = _fault()
    asked_again_max: int = _bound(3)
    delay_polls_max: int = _bound(4)
    lost_polls: int = _bound(6)

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the name of each kind of fault."""
        return tuple(each.name for each in fields(cls) if "is_fault" in each.metadata)

    @classmethod
    def all_kinds(cls, percent: int) -> ConnectorFaults:
        """Return settings in which every fault is equally frequent."""
        return cls(**dict.fromkeys(cls.names(), percent))

    def happens(self, name: str, choose: Choose) -> bool:
        """Choose whether a fault occurs now; where it never can, nothing is drawn."""
        percent: int = getattr(self, name)
        return percent > 0 and choose(100) >= 100 - percent
