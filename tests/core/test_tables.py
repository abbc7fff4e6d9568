"""Block tables behave as lists of numbers do."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kvproof.core.tables import Tables

OWNERS = 3
ENTRIES = 6
LISTS = st.lists(st.integers(1, ENTRIES - 1), max_size=20)
OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["append", "put", "remove", "copy", "reserve"]),
        st.integers(0, OWNERS - 1),
        st.integers(0, OWNERS - 1),
        st.integers(1, ENTRIES - 1),
    ),
    max_size=60,
)


class Model:
    """Tables, and plain lists that the same is done to."""

    def __init__(self, width: int = 2) -> None:
        """Start with empty lists, and with room for few entries."""
        self.tables = Tables(OWNERS, width)
        self.lists: list[list[int]] = [[] for _ in range(OWNERS)]

    def append(self, owner: int, _: int, entry: int) -> None:
        """Put an entry at the end."""
        self.tables.append(owner, len(self.lists[owner]), entry)
        self.lists[owner].append(entry)

    def put(self, owner: int, other: int, entry: int) -> None:
        """Put an entry at the end of one list, and one at the end of another."""
        owners = list(dict.fromkeys((owner, other)))
        lengths = [len(self.lists[item]) for item in owners]
        self.tables.put(np.array(owners), np.array(lengths), np.full(len(owners), entry))
        for item in owners:
            self.lists[item].append(entry)

    def remove(self, owner: int, _: int, entry: int) -> None:
        """Take the last one of an entry out, if there is one."""
        held = self.lists[owner]
        if entry in held:
            self.tables.remove(owner, len(held), entry)
            del held[len(held) - 1 - held[::-1].index(entry)]

    def copy(self, owner: int, other: int, _: int) -> None:
        """Make a list equal to another one."""
        self.tables.copy(owner, self.tables, other, len(self.lists[other]))
        self.lists[owner] = list(self.lists[other])

    def reserve(self, owner: int, _: int, entry: int) -> None:
        """Make room."""
        self.tables.reserve(OWNERS + owner, 5 * entry)

    def seen(self) -> list[list[int]]:
        """Return the lists that the tables hold."""
        return [self.tables.entries(o, len(held)).tolist() for o, held in enumerate(self.lists)]


@given(OPERATIONS)
def test_tables_are_lists(operations: list[tuple[str, int, int, int]]) -> None:
    """After any operations the tables hold what lists would hold, in the same order."""
    model = Model()
    for name, owner, other, entry in operations:
        getattr(model, name)(owner, other, entry)

        assert model.seen() == model.lists


@given(st.lists(LISTS, min_size=OWNERS, max_size=OWNERS), st.integers(0, ENTRIES))
def test_questions_are_answered_as_of_lists(lists: list[list[int]], entry: int) -> None:
    """Counts, order, names and valid entries are those of the lists below their lengths."""
    tables = Tables(OWNERS, 30)
    tables.rows[:] = entry  # What lies beyond a list must not be counted.
    for owner, held in enumerate(lists):
        tables.rows[owner, : len(held)] = held
    lengths = np.array([len(held) for held in lists])
    named = Counter(item for held in lists for item in held)

    for owner, held in enumerate(lists):
        assert tables.count(owner, len(held), entry) == held.count(entry)
        assert tables.backwards(owner, len(held)).tolist() == held[::-1]
    assert tables.times_named(lengths, ENTRIES).tolist() == [named[e] for e in range(ENTRIES)]
    assert tables.valid_entries(lengths, 1, ENTRIES).tolist() == lengths.tolist()


@given(
    st.lists(LISTS, min_size=OWNERS, max_size=OWNERS),
    st.lists(st.tuples(st.integers(0, OWNERS - 1), st.integers(-2, 25)), min_size=1),
    st.integers(1, ENTRIES - 1),
)
def test_what_stands_at_a_place_is_what_the_list_has_there(
    lists: list[list[int]], asked: list[tuple[int, int]], entry: int
) -> None:
    """A place in a list is asked for one by one or at once; none is before or beyond the list."""
    tables = Tables(OWNERS, 30)
    tables.rows[:] = entry  # What lies beyond a list stands nowhere.
    for owner, held in enumerate(lists):
        tables.rows[owner, : len(held)] = held
    lengths = [len(held) for held in lists]

    expected = [entry in lists[owner][place : place + 1] and place >= 0 for owner, place in asked]

    owners, places = (np.array(column) for column in zip(*asked, strict=True))
    entries, ends = np.full(len(asked), entry), np.array([lengths[owner] for owner in owners])
    assert tables.stand_at(owners, ends, places, entries).tolist() == expected
    for (owner, place), there in zip(asked, expected, strict=True):
        assert tables.stands_at(owner, lengths[owner], place, entry) is there


def test_copies_do_not_share_memory() -> None:
    """What `entries` and `backwards` return does not change with the table."""
    tables = Tables(1)
    tables.append(0, 0, 7)
    entries, backwards = tables.entries(0, 1), tables.backwards(0, 1)

    tables.rows[0, 0] = 8

    assert (entries.tolist(), backwards.tolist()) == ([7], [7])


def test_numbers_that_are_no_entries_are_not_valid() -> None:
    """Neither the null block nor a number beyond the last block is a valid entry."""
    tables = Tables(2)
    tables.rows[0, :3] = (0, 3, 9)
    tables.rows[1, :2] = (1, -1)

    assert tables.valid_entries(np.array([3, 2]), 1, 4).tolist() == [1, 1]


def test_lists_copied_between_tables_may_be_longer_than_the_table() -> None:
    """A list that is longer than any before it finds room in the table it is copied to."""
    source, target = Tables(2, 40), Tables(2, 4)
    source.rows[1, :30] = range(1, 31)

    target.copy(0, source, 1, 30)

    assert target.entries(0, 30).tolist() == list(range(1, 31))
