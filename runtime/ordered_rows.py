"""The running list: rows in the order in which a step visits them."""

from __future__ import annotations

import numpy as np

from kvproof.core.arrays import Flags, Integers


class OrderedRows:
    """A list of rows of the request table."""

    __slots__ = ("_array", "_length", "_rows")

    def __init__(self, capacity: int) -> None:
        """Make an empty list for at most `capacity` rows."""
        self._array: Integers = np.zeros(capacity, dtype=np.int64)
        self._length = 0
        self._rows: Integers | None = None

    def __len__(self) -> int:
        """Return the number of rows."""
        return self._length

    @property
    def rows(self) -> Integers:
        """The rows in order, int64 [length], read-only.

        The same array is returned until the list changes, so what was worked out about one can be
        kept for as long as it is that one.
        """
        if self._rows is None:
            self._rows = self._array[: self._length].copy()
            self._rows.flags.writeable = False
        return self._rows

    def snapshot(self) -> Integers:
        """Return the rows in order, for `restore`; the array is read-only."""
        return self.rows

    def restore(self, kept: Integers) -> None:
        """Have the rows that were there when `snapshot` was called."""
        self._length = len(kept)
        self._array[: self._length] = kept
        self._rows = kept

    def append(self, row: int) -> None:
        """Put a row at the end."""
        self._array[self._length] = row
        self._length += 1
        self._rows = None

    def remove(self, row: int) -> None:
        """Take one row out; the rows behind it move up."""
        self.keep(self.rows != row)

    def keep(self, wanted: Flags) -> None:
        """Keep the rows at which `wanted` is true, in order."""
        kept = self.rows[wanted]
        self._array[: len(kept)] = kept
        self._length = len(kept)
        self._rows = None
