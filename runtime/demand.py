"""What a rule asks for and what there is: the arithmetic of a guard, for passes and explanations.

A pass decides by `fits`; whoever wants to know why a request was refused reads the same numbers, so
that an explanation cannot say something else than the pass does (wishes of vllm#53130).
"""

from __future__ import annotations

from enum import StrEnum

from attrs import define


class Quantity(StrEnum):
    """What can be short."""

    BLOCKS = "blocks"
    POOL = "blocks of the whole pool"
    PLACES = "places among the running"
    TOKENS = "tokens of the step"
    EMBEDDINGS = "encoder embeddings"
    ANSWER = "the connector has not answered yet"
    LOAD = "its load has not ended"
    RELEASE = "the step defers prefills"
    TURN = "requests that wait with loaded blocks go first"


@define(unsafe_hash=True)  # made for each request that is looked at; a frozen one takes longer
class Demand:
    """One guard in numbers; whole numbers of the quantity. Nobody changes it once it is made.

    Attributes:
        rule: the row of the declaration, or the rule of the configuration or profile, that asks.
        quantity: what it asks for.
        needed: how many are needed in all.
        free: how many can be taken.
        there: how many of the needed ones the request has, or will share with others.
        kept: how many must stay free: the watermark.
        reserved: how many are reserved for others.

    """

    rule: str
    quantity: Quantity
    needed: int
    free: int
    there: int = 0
    kept: int = 0
    reserved: int = 0

    @property
    def shortage(self) -> int:
        """How many are missing; none if it is not above 0."""
        return self.needed - self.there + self.kept + self.reserved - self.free

    @property
    def fits(self) -> bool:
        """Whether there is enough."""
        return self.shortage <= 0

    def __str__(self) -> str:
        """Return rule and arithmetic in words: "admit: 12 blocks needed, 3 free; 9 missing"."""
        if self.quantity in (Quantity.ANSWER, Quantity.LOAD, Quantity.RELEASE, Quantity.TURN):
            return f"{self.rule}: {self.quantity}"
        parts = (
            (self.kept, f"{self.kept} kept by the watermark"),
            (self.reserved, f"{self.reserved} reserved for others"),
        )
        others = "".join(f", {text}" for number, text in parts if number)
        there = f" + {self.there} shared or held" if self.there else ""
        what = str(self.quantity) if self.needed != 1 else _SINGULAR[self.quantity]
        numbers = f"{self.needed} {what} needed, {self.free} free{there}{others}"
        return f"{self.rule}: {numbers}; {max(self.shortage, 0)} missing"


_SINGULAR = {
    Quantity.BLOCKS: "block",
    Quantity.POOL: "block of the whole pool",
    Quantity.PLACES: "place among the running",
    Quantity.TOKENS: "token of the step",
    Quantity.EMBEDDINGS: "encoder embedding",
}
NO_ANSWER = Demand("match", Quantity.ANSWER, 1, 0)
STILL_LOADING = Demand("promote", Quantity.LOAD, 1, 0)
LOADED_GO_FIRST = Demand("admit", Quantity.TURN, 1, 0)
PREFILLS_DEFERRED = Demand("schedule", Quantity.RELEASE, 1, 0)
