"""The running list: rows in the order in which a step visits them."""

from __future__ import annotations

import numpy as np

from kvproof.core.arrays import Flags, Integers


class OrderedRows:
    """A list of rows kept in one array; `rows` is a view of it, int64 [length]."""

    __slots__ = ("_array", "_length")

    def __init__(self, capacity: int) -> None:
        """Make an empty list for at most `capacity` rows."""
        self._array: Integers = np.zeros(capacity, dtype=np.int64)
        self._length = 0

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._length

    @property
    def rows(self) -> Integers:
        """The rows in order; stale after the next change."""
        return self._array[: self._length]

    def append(self, row: int) -> None:
        """Put a row at the end."""
        self._array[self._length] = row
        self._length += 1

    def last(self) -> int:
        """Return the row at the end."""
        return int(self._array[self._length - 1])

    def remove(self, row: int) -> None:
        """Take one row out; the rows behind it move up."""
        self.keep(self.rows != row)

    def keep(self, wanted: Flags) -> None:
        """Keep the rows at which `wanted` is true, in order."""
        kept = self.rows[wanted]
        self._array[: len(kept)] = kept
        self._length = len(kept)
