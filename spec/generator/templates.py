"""The parts of `core/` that are the same for every declaration: arrays and tables."""

ARRAYS = '''
from __future__ import annotations

from typing import Any, Final, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.int64]
Flags = NDArray[np.bool_]
Value = TypeVar("Value")
Column = TypeVar("Column", bound=NDArray[Any])

# Numbers that meet columns: numpy takes an array in half the time of a plain number.
ZERO: Final = np.array(0)
ONE: Final = np.array(1)

_FEW = 16  # Up to here a Python set costs less than four numpy calls.
_last_distinct: list[Integers] = []


class Cells(Protocol[Value]):
    """A column seen one plain Python value at a time."""

    def __getitem__(self, index: int, /) -> Value:
        """Return the value of one instance."""
        ...

    def __setitem__(self, index: int, value: Value, /) -> None:
        """Set the value of one instance."""
        ...


def enlarged(column: Column, fresh: Column) -> Column:
    """Return `fresh` with the values of the shorter `column` at its start."""
    fresh[: len(column)] = column
    return fresh


def everywhere(flags: Flags) -> bool:
    """Return whether all flags are true; counting costs a fraction of `flags.all()`."""
    return int(np.count_nonzero(flags)) == len(flags)


def nowhere(column: Integers | Flags) -> bool:
    """Return whether every value is zero, or false."""
    return not np.count_nonzero(column)


def all_distinct(scratch: Integers, instances: Integers) -> bool:
    """Return whether no instance is named twice; `scratch` is a column that may be overwritten.

    A read-only array that owns its memory is looked at once: the same array is what a scheduler
    passes in every step in which its running list is what it was.
    """
    if _last_distinct and instances is _last_distinct[0]:
        return True
    if len(instances) <= _FEW:
        return len(set(instances.tolist())) == len(instances)
    positions = np.arange(len(instances))
    scratch[instances] = positions
    distinct = everywhere(scratch[instances] == positions)
    if distinct and instances.flags.owndata and not instances.flags.writeable:
        _last_distinct[:] = [instances]
    return distinct


def occurrences(scratch: Integers, instances: Integers) -> Integers:
    """Return, for each position, how many earlier positions name the same instance."""
    if all_distinct(scratch, instances):
        return np.zeros(len(instances), dtype=np.int64)
    order = np.argsort(instances, kind="stable")
    grouped = instances[order]
    starts = np.flatnonzero(np.r_[True, grouped[1:] != grouped[:-1]])
    group = np.cumsum(np.r_[True, grouped[1:] != grouped[:-1]]) - 1
    ranks = np.empty(len(instances), dtype=np.int64)
    ranks[order] = np.arange(len(instances)) - starts[group]
    return ranks
'''

TABLES = '''
from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kvproof.core.arrays import Flags, Integers


class Tables:
    """Lists of block ids, one a row; a row's length is kept by the variable that counts it.

    `rows` is an int32 array [owners, width]; entries at and beyond a row's length mean nothing.
    """

    __slots__ = ("_sought", "rows")

    def __init__(self, owners: int, width: int = 16) -> None:
        """Make empty lists for `owners` owners."""
        self.rows: NDArray[np.int32] = np.zeros((owners, width), dtype=np.int32)
        self._sought: NDArray[np.int32] = np.zeros((), dtype=np.int32)

    def reserve(self, owners: int, width: int = 0) -> None:
        """Make room for `owners` lists of `width` entries; earlier views of `rows` are stale."""
        old_owners, old_width = self.rows.shape
        if owners <= old_owners and width <= old_width:
            return
        fresh = np.zeros((max(owners, old_owners), max(width, old_width)), dtype=np.int32)
        fresh[:old_owners, :old_width] = self.rows
        self.rows = fresh

    def count(self, owner: int, length: int, entry: int) -> int:
        """Return how often the list of `owner` names `entry`."""
        self._sought[()] = entry  # An array is compared with in half the time of a number.
        return int(np.count_nonzero(self.rows[owner, :length] == self._sought))

    def stands_at(self, owner: int, length: int, position: int, entry: int) -> bool:
        """Return whether the list of `owner` has `entry` at `position`."""
        return 0 <= position < length and int(self.rows[owner, position]) == entry

    def stand_at(
        self, owners: Integers, lengths: Integers, positions: Integers, entries: Integers
    ) -> Flags:
        """Return where the list of an owner has the entry at the position."""
        inside = (positions >= 0) & (positions < lengths)
        there: Flags = self.rows[owners, np.where(inside, positions, 0)] == entries
        return inside & there

    def append(self, owner: int, length: int, entry: int) -> None:
        """Put `entry` at the end of a list of the given length."""
        if length >= self.rows.shape[1]:
            self.reserve(0, 2 * length)
        self.rows[owner, length] = entry

    def put(self, owners: Integers, lengths: Integers, entries: Integers) -> None:
        """Put each entry at the given position of the list of its owner."""
        width = int(lengths.max()) + 1
        if width > self.rows.shape[1]:
            self.reserve(0, 2 * width)
        self.rows[owners, lengths] = entries

    def remove(self, owner: int, length: int, entry: int) -> None:
        """Take the last `entry` out of a list; what stands behind it moves up."""
        row = self.rows[owner]
        place = int(np.flatnonzero(row[:length] == entry)[-1])
        row[place : length - 1] = row[place + 1 : length]

    def copy(self, owner: int, source: Tables, giver: int, length: int) -> None:
        """Make the list of `owner` equal to the first `length` entries of another list."""
        self.reserve(0, length)
        self.rows[owner, :length] = source.rows[giver, :length]

    def entries(self, owner: int, length: int) -> Integers:
        """Return a copy of a list, in order."""
        return self.rows[owner, :length].astype(np.int64)

    def backwards(self, owner: int, length: int) -> Integers:
        """Return a copy of a list, the last entry first."""
        return self.rows[owner, :length][::-1].astype(np.int64)

    def times_named(self, lengths: Integers, entries: int) -> Integers:
        """Return, for each entry below `entries`, how often all lists together name it."""
        real = np.arange(self.rows.shape[1]) < lengths[:, None]
        return np.bincount(self.rows[: len(lengths)][real], minlength=entries)

    def valid_entries(self, lengths: Integers, first: int, entries: int) -> Integers:
        """Return, for each list, how many entries are at least `first` and below `entries`."""
        real = np.arange(self.rows.shape[1]) < lengths[:, None]
        rows = self.rows[: len(lengths)]
        return np.asarray((real & (rows >= first) & (rows < entries)).sum(axis=1))
'''
