"""What the requests of a stretch would get, before budget and blocks have been looked at."""

from __future__ import annotations

from attrs import define

from kvproof.core.arrays import Flags, Integers


@define(eq=False)  # made in each step, and a frozen one takes three times as long to make
class Wish:
    """The requests of a stretch that want tokens, in order.

    Attributes:
        rows: rows of the request table, int64 [n].
        computed: tokens of each computed before this step, int64 [n].
        known: tokens of each that are known, int64 [n].
        tokens: tokens that each wants, int64 [n].
        places: where each stands in the stretch, int64 [n]; None if nobody was left out.

    """

    rows: Integers
    computed: Integers
    known: Integers
    tokens: Integers
    places: Integers | None

    def first(self, count: int, tokens: Integers) -> Wish:
        """Return the first `count` requests, with `tokens` in place of what they want."""
        if count == len(self.rows):
            if tokens is self.tokens:
                return self
            return Wish(self.rows, self.computed, self.known, tokens, self.places)
        return Wish(
            self.rows[:count], self.computed[:count], self.known[:count], tokens[:count], None
        )

    def only(self, wanted: Flags) -> Wish:
        """Return the requests of a whole stretch that are wanted, bool [n], and where each stood.

        Nothing is copied if all are.
        """
        if wanted.all():
            return self
        return Wish(
            self.rows[wanted],
            self.computed[wanted],
            self.known[wanted],
            self.tokens[wanted],
            wanted.nonzero()[0],
        )

    def end_of(self, count: int, affordable: int, length: int) -> int:
        """Return where a pass over a stretch of `length` stands after serving `count` requests.

        `affordable` is how many the budget reaches: if they were all served the rest is passed
        over, and if one of them was not, the pass stands at that one.
        """
        if count == affordable:
            return length if affordable == len(self.rows) else self._place(count)
        return self._place(count)

    def _place(self, number: int) -> int:
        return number if self.places is None else int(self.places[number])
