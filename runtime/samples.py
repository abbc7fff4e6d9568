"""The samples of one step: one token a request, or, with draft tokens, one or more."""

from __future__ import annotations

from typing import Self

import numpy as np
from attrs import define

from kvproof.core.arrays import Flags, Integers


@define(eq=False)  # made in each step, and a frozen one takes three times as long to make
class Samples:
    """Tokens of several requests, in their order.

    Attributes:
        tokens: all tokens, request after request, int64 [sum of counts].
        counts: tokens of each request, int64 [S]; None if each has one.

    """

    tokens: Integers
    counts: Integers | None = None

    @classmethod
    def single(cls, tokens: Integers) -> Self:
        """Return one token for each request."""
        return cls(tokens)

    @classmethod
    def ragged(cls, lists: list[list[int]]) -> Self:
        """Return a list of tokens for each request."""
        flat = np.array([token for tokens in lists for token in tokens], dtype=np.int64)
        return cls(flat, np.array([len(tokens) for tokens in lists], dtype=np.int64))

    def __len__(self) -> int:
        """Return the number of requests."""
        return len(self.tokens if self.counts is None else self.counts)

    def lists(self) -> list[list[int]]:
        """Return the tokens of each request."""
        if self.counts is None:
            return [[token] for token in self.tokens.tolist()]
        ends = self.counts.cumsum().tolist()
        flat = self.tokens.tolist()
        return [flat[end - n : end] for end, n in zip(ends, self.counts.tolist(), strict=True)]

    def last(self) -> Integers:
        """Return the last token of each request, int64 [S]."""
        return self.tokens if self.counts is None else self.tokens[self.counts.cumsum() - 1]

    def only(self, wanted: Flags) -> Samples:
        """Return the samples of some requests."""
        if self.counts is None:
            return Samples(self.tokens[wanted])
        return Samples(self.tokens[np.repeat(wanted, self.counts)], self.counts[wanted])
