"""Spans of tokens keep their contents while others come, go and make the store grow."""

from hypothesis import given
from hypothesis import strategies as st

from kvproof.runtime.token_store import TokenStore

# For each step: a row, tokens to give to it if it has none, and room for how many more.
steps = st.lists(
    st.tuples(st.integers(0, 5), st.lists(st.integers(0, 99), min_size=1), st.integers(0, 9)),
    max_size=40,
)


@given(capacity=st.integers(1, 32), steps=steps)
def test_spans_keep_their_tokens(capacity: int, steps: list[tuple[int, list[int], int]]) -> None:
    """Each row has the tokens that were put into it, however often the store is packed."""
    store = TokenStore(6, capacity)
    expected: dict[int, list[int]] = {}
    for row, tokens, room in steps:
        if row in expected:
            store.release(row)
            del expected[row]
        else:
            limit = len(tokens) + room
            store.allocate(row, tuple(tokens), limit)
            last = int(store.starts[row]) + limit - 1
            store.tokens[last] = 100 + row  # what is written at the end of a span stays there
            expected[row] = [*tokens, *[-1] * room]
            expected[row][-1] = 100 + row
        for other, known in expected.items():
            seen = store.known(other, len(known))
            assert [s for s, k in zip(seen, known, strict=True) if k >= 0] == [
                k for k in known if k >= 0
            ]


def test_empty_store_starts_again_at_its_beginning() -> None:
    """When the last span is given back the whole room is free, without any packing."""
    store = TokenStore(2, 8)
    tokens = store.tokens
    for _ in range(5):
        store.allocate(0, (1, 2), 4)
        store.allocate(1, (3,), 4)
        store.release(0)
        store.release(1)

    assert store.tokens is tokens


def test_store_grows_by_halves_of_what_it_holds() -> None:
    """A store that must grow makes room for as many tokens again, so it seldom grows."""
    store = TokenStore(1, 2)
    store.allocate(0, (1, 2, 3), 10)

    assert len(store.tokens) == 20
    assert store.known(0, 3) == [1, 2, 3]


def test_rows_are_added_behind_the_others() -> None:
    """More rows do not move the spans of those that are there."""
    store = TokenStore(1)
    store.allocate(0, (5, 6), 2)
    store.reserve_rows(4)
    store.allocate(3, (7,), 1)

    assert (store.known(0, 2), store.known(3, 1)) == ([5, 6], [7])
    store.reserve_rows(2)
    assert len(store.starts) == 4
