"""The tokens of all requests, in one array, so that a step can gather and append without a loop."""

from __future__ import annotations

import numpy as np

from kvproof.core.arrays import Integers
from kvproof.runtime.samples import Samples


class TokenStore:
    """One span of `tokens` for each row of the request table.

    `tokens` is int64 [capacity]; the token at position p of row r is `tokens[starts[r] + p]`.
    Views of `tokens` and `starts` are stale after `allocate`.
    """

    __slots__ = ("_lengths", "_used", "starts", "tokens")

    def __init__(self, rows: int, capacity: int = 4096) -> None:
        """Make an empty store."""
        self.tokens: Integers = np.zeros(capacity, dtype=np.int64)
        self.starts: Integers = np.zeros(rows, dtype=np.int64)
        self._lengths: dict[int, int] = {}
        self._used = 0

    def reserve_rows(self, rows: int) -> None:
        """Make room for more rows."""
        if rows > len(self.starts):
            self.starts = np.resize(self.starts, rows)

    def allocate(self, row: int, tokens: tuple[int, ...], limit: int) -> None:
        """Give a row a span for `limit` tokens that begins with `tokens`."""
        if self._used + limit > len(self.tokens):
            self._make_room(limit)
        start = self._used
        if tokens:
            self.tokens[start : start + len(tokens)] = tokens
        self.starts[row] = start
        self._lengths[row] = limit
        self._used += limit

    def append(self, rows: Integers, known: Integers, samples: Samples) -> None:
        """Write the samples of each row behind its known tokens."""
        places, counts = self.starts[rows] + known, samples.counts
        if counts is not None:
            within = np.arange(len(samples.tokens)) - np.repeat(counts.cumsum() - counts, counts)
            places = np.repeat(places, counts) + within
        self.tokens[places] = samples.tokens

    def write(self, row: int, known: int, tokens: list[int]) -> None:
        """Write draft tokens behind the known ones."""
        start = int(self.starts[row]) + known
        self.tokens[start : start + len(tokens)] = tokens

    def release(self, row: int) -> None:
        """Give a row's span back; it is reused when the store is next packed."""
        del self._lengths[row]
        if not self._lengths:
            self._used = 0

    def known(self, row: int, count: int) -> list[int]:
        """Return the first `count` tokens of a row."""
        start = int(self.starts[row])
        return self.tokens[start : start + count].tolist()  # type: ignore[no-any-return]

    def snapshot(self) -> tuple[tuple[int, int, bytes], ...]:
        """Return each row that has a span, its length and its tokens, for `restore`."""
        tokens, starts = self.tokens, self.starts.data
        return tuple(
            (row, length, tokens[starts[row] : starts[row] + length].tobytes())
            for row, length in self._lengths.items()
        )

    def restore(self, kept: tuple[tuple[int, int, bytes], ...]) -> None:
        """Give back the spans that rows had when `snapshot` was called, side by side."""
        self._lengths, self._used = {}, 0
        for row, length, content in kept:
            self.allocate(row, (), length)
            start = 8 * (self._used - length)
            self.tokens.data.cast("B")[start : start + 8 * length] = content

    def _make_room(self, extra: int) -> None:
        """Pack the live spans into an array with room for as many again."""
        live = sum(self._lengths.values()) + extra
        fresh = np.zeros(max(len(self.tokens), 2 * live), dtype=np.int64)
        used = 0
        for row, length in self._lengths.items():
            start = int(self.starts[row])
            fresh[used : used + length] = self.tokens[start : start + length]
            self.starts[row] = used
            used += length
        self.tokens, self._used = fresh, used
