"""The free queue: idle blocks in the order in which they will be taken.

A doubly linked list over block ids, so that a block can leave from anywhere in constant time. It
holds order alone; whether a block is free is said by the core (`block.queued`), and
`Scheduler.check` compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

_END = 0  # The null block is never free, so its links can hold both ends of the list.


class FreeQueue:
    """Blocks in the order in which they will be taken, the next one first."""

    __slots__ = ("_after", "_before", "_length")

    def __init__(self, num_blocks: int) -> None:
        """Queue every block but the null block, in the order of their ids."""
        self._after = [*range(1, num_blocks), _END]
        self._before = [num_blocks - 1, *range(num_blocks - 1)]
        self._length = num_blocks - 1

    def __len__(self) -> int:
        """Return the number of queued blocks."""
        return self._length

    def __iter__(self) -> Iterator[int]:
        """Yield the block ids, the next one to be taken first."""
        block = self._after[_END]
        while block != _END:
            yield block
            block = self._after[block]

    def take(self, count: int) -> list[int]:
        """Remove and return the first `count` blocks, in order.

        Raises IndexError, and takes nothing, if there are fewer.
        """
        if count > self._length:
            message = f"take {count} blocks: only {self._length} are free."
            raise IndexError(message)
        taken, block, after = [], self._after[_END], self._after
        for _ in range(count):
            taken.append(block)
            block = after[block]
        self._link(_END, block)
        self._length -= count
        return taken

    def remove(self, block: int) -> None:
        """Remove one queued block, wherever it stands."""
        self._link(self._before[block], self._after[block])
        self._length -= 1

    def put_first(self, blocks: Sequence[int]) -> None:
        """Queue blocks before all others, in the given order."""
        self._insert(_END, blocks)

    def put_last(self, blocks: Sequence[int]) -> None:
        """Queue blocks behind all others, in the given order."""
        self._insert(self._before[_END], blocks)

    def snapshot(self) -> tuple[list[int], list[int], int]:
        """Return the order, for `restore`."""
        return self._after.copy(), self._before.copy(), self._length

    def restore(self, kept: tuple[list[int], list[int], int]) -> None:
        """Queue what was queued when `snapshot` was called, in that order."""
        after, before, self._length = kept
        self._after[:], self._before[:] = after, before

    def _insert(self, place: int, blocks: Iterable[int]) -> None:
        following = self._after[place]
        for block in blocks:
            self._link(place, block)
            place = block
            self._length += 1
        self._link(place, following)

    def _link(self, first: int, second: int) -> None:
        self._after[first] = second
        self._before[second] = first
