"""A stand-in for the core's `Tables`: which entries a list has, and how often, as z3 terms.

The order of entries is not kept: nothing that is declared depends on it. What is kept is the length
up to which the entries of a list are known. An operation that is told another length would read or
write somewhere else, so that it is told this one is demanded of the path.
"""

from __future__ import annotations

from functools import reduce
from operator import add
from typing import Any

import numpy as np
import z3
from attrs import define, field
from numpy.typing import NDArray

from kvproof.verify.instances import Place, place_of
from kvproof.verify.paths import current_path
from kvproof.verify.symbolic import (
    SymbolicFlag,
    SymbolicNumber,
    WrongKindError,
    number_term,
)
from kvproof.verify.symbolic_columns import column
from kvproof.verify.terms import Term

Integers = NDArray[np.int64]
TRUE = z3.BoolVal(val=True)


def same(one: Term, other: Term) -> bool:
    """Return whether two terms are written alike; most of the time they are one object."""
    return one is other or bool(one.eq(other))


@define
class SymbolicList:
    """How often a list names each entry, among its first `length` ones.

    `order` says what stands where, for a list that is read in order; `stands` says where an entry
    was put, for a list whose declaration keeps that.
    """

    counts: dict[Place, Term]
    length: Term
    order: tuple[Place, ...] | None = None
    stands: dict[Place, Term] = field(factory=dict)

    def cut_to(self, length: Term, entry: Place) -> tuple[Term, Term]:
        """Return how often the list names the entry when its length is set, and if that is known.

        The empty list names nothing; beyond the written length stands nothing that is known.
        """
        if same(length, self.length):
            return self.counts[entry], TRUE
        count = z3.If(length == self.length, self.counts[entry], z3.IntVal(0))
        return count, z3.Or(length == self.length, length == 0)


@define
class SymbolicTables:
    """Lists of `entry` instances, one for each `owner`, with those methods of `Tables` rows use."""

    owner: str
    entry: str
    lists: dict[Place, SymbolicList]

    def copied(self) -> SymbolicTables:
        """Return tables that have the same lists now."""
        return SymbolicTables(self.owner, self.entry, dict(self.lists))

    def _list(self, owner: object, length: object) -> SymbolicList:
        found = self.lists[place_of(owner, self.owner)]
        seen = number_term(length)
        if seen is None:
            raise WrongKindError(f"the length of a list is {length!r}")
        current_path().demand(seen == found.length)
        return found

    def count(self, owner: object, length: object, entry: object) -> SymbolicNumber:
        """Return how often the list of `owner` names `entry`."""
        return SymbolicNumber(self._list(owner, length).counts[place_of(entry, self.entry)])

    def stands_at(
        self, owner: object, length: object, position: object, entry: object
    ) -> SymbolicFlag:
        """Return whether the list of `owner` has `entry` at `position`."""
        found, place = self._list(owner, length), place_of(entry, self.entry)
        asked = number_term(position)
        if asked is None or place not in found.stands:
            raise WrongKindError(f"{position!r} is no position of a list that keeps positions")
        return SymbolicFlag(z3.And(found.counts[place] >= 1, found.stands[place] == asked))

    def stand_at(self, owners: Integers, lengths: Any, positions: Any, entries: Integers) -> Any:
        """Return where the list of an owner has the entry at the position."""
        asked = zip(owners, np.atleast_1d(lengths), np.atleast_1d(positions), entries, strict=True)
        return column(self.stands_at(*one) for one in asked)

    def append(self, owner: object, length: object, entry: object) -> None:
        """Put `entry` at the end of a list of the given length."""
        self._change(owner, length, entry, 1)

    def remove(self, owner: object, length: object, entry: object) -> None:
        """Take one `entry` out of a list that has it."""
        current_path().demand(self.count(owner, length, entry).term >= 1)
        self._change(owner, length, entry, -1)

    def _change(self, owner: object, length: object, entry: object, change: int) -> None:
        found, place = self._list(owner, length), place_of(entry, self.entry)
        counts = {**found.counts, place: found.counts[place] + change}
        stands = {**found.stands, place: found.length} if found.stands else {}
        self.lists[place_of(owner, self.owner)] = SymbolicList(
            counts, found.length + change, stands=stands
        )

    def copy(self, owner: object, source: SymbolicTables, giver: object, length: object) -> None:
        """Make the list of `owner` equal to a whole list of another table."""
        given = source._list(giver, length)
        self.lists[place_of(owner, self.owner)] = SymbolicList(dict(given.counts), given.length)

    def put(self, owners: Integers, lengths: Any, entries: Integers) -> None:
        """Put each entry at the end of the list of its owner, which has the given length."""
        for owner, length, entry in zip(owners, np.atleast_1d(lengths), entries, strict=True):
            self.append(owner, length, entry)

    def backwards(self, owner: object, length: object) -> Integers:
        """Return a list, the last entry first."""
        found = self._list(owner, length)
        if found.order is None:
            raise WrongKindError("a list whose order is not known was read in order")
        return np.array(found.order[::-1], dtype=np.int64)


def facts(item: SymbolicList) -> list[Term]:
    """Return what is true of every list: no count is negative, and all fit into its length."""
    counts = list(item.counts.values())
    # A sum of one term is no sum to every solver, so that it is written with `+`.
    found = [*(count >= 0 for count in counts), reduce(add, counts) <= item.length]
    if item.order is not None:
        found.append(item.length == len(item.order))
        found += [count == item.order.count(entry) for entry, count in item.counts.items()]
    return found
