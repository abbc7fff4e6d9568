"""The free queue behaves as a plain list, but for what it costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvproof.runtime.free_queue import FreeQueue

# A call by name, and a number that says how many blocks, or which.
calls = st.lists(
    st.tuples(st.sampled_from(("take", "remove", "put_first", "put_last")), st.integers(0, 2**16)),
    max_size=40,
)


@given(num_blocks=st.integers(1, 12), calls=calls)
def test_queue_is_a_list(num_blocks: int, calls: list[tuple[str, int]]) -> None:
    """Any sequence of calls leaves the queue in the order that a list would have."""
    queue, expected, taken = FreeQueue(num_blocks), list(range(1, num_blocks)), list[int]()
    for name, number in calls:
        if name == "take":
            count = number % (len(expected) + 1)
            assert queue.take(count) == expected[:count]
            taken += expected[:count]
            expected = expected[count:]
        elif name == "remove" and expected:
            taken.append(expected.pop(number % len(expected)))
            queue.remove(taken[-1])
        elif name in {"put_first", "put_last"}:
            count = number % (len(taken) + 1)
            back, taken = taken[:count], taken[count:]
            getattr(queue, name)(back)
            expected = [*back, *expected] if name == "put_first" else [*expected, *back]
        assert list(queue) == expected
        assert len(queue) == len(expected)


def test_taking_too_many_takes_nothing() -> None:
    """More blocks than there are cannot be had, and none is lost in the attempt."""
    queue = FreeQueue(4)
    with pytest.raises(IndexError, match="take 4 blocks: only 3 are free"):
        queue.take(4)

    assert list(queue) == [1, 2, 3]


def test_null_block_is_never_queued() -> None:
    """Block 0 is nobody's, so a pool of it alone has no block to give."""
    assert list(FreeQueue(1)) == []
    assert 0 not in list(FreeQueue(5))
