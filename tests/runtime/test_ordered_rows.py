"""The running list keeps order, and one array for as long as it does not change."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.runtime.ordered_rows import OrderedRows

calls = st.lists(st.tuples(st.sampled_from(("append", "remove", "keep")), st.integers(0, 255)))


@given(calls)
def test_list_is_a_list(calls: list[tuple[str, int]]) -> None:
    """Any sequence of calls leaves the rows in the order that a list would have."""
    rows, expected = OrderedRows(8), list[int]()
    for number, (name, choice) in enumerate(calls):
        if name == "append" and len(expected) < 8:
            rows.append(number)
            expected.append(number)
        elif name == "remove" and expected:
            rows.remove(expected.pop(choice % len(expected)))
        elif name == "keep":
            wanted = [bool(choice >> place & 1) for place in range(len(expected))]
            rows.keep(np.array(wanted, dtype=np.bool_))
            expected = [row for row, kept in zip(expected, wanted, strict=True) if kept]
        assert rows.rows.tolist() == expected
        assert len(rows) == len(expected)


def test_array_is_the_same_until_the_list_changes() -> None:
    """What was worked out for an array holds for as long as it is handed out."""
    rows = OrderedRows(3)
    rows.append(4)
    first = rows.rows

    assert rows.rows is first
    rows.append(5)
    assert rows.rows is not first
    assert first.tolist() == [4]


def test_array_cannot_be_written() -> None:
    """Nobody who is shown the running list can change it."""
    rows = OrderedRows(1)
    rows.append(0)
    with pytest.raises(ValueError, match="read-only"):
        rows.rows[0] = 1
