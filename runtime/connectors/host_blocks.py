"""Which blocks are kept in host memory, and where: the least recently used one makes room."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence


class HostBlocks:
    """A bounded number of places, each for the block of one hash; used by one thread only."""

    def __init__(self, capacity: int) -> None:
        """Start empty, with `capacity` places, numbered from 0."""
        self._vacant = list(range(capacity - 1, -1, -1))
        self._places: OrderedDict[bytes, int] = OrderedDict()
        self._pins: Counter[bytes] = Counter()

    def __contains__(self, block_hash: bytes) -> bool:
        """Return whether the block is kept."""
        return block_hash in self._places

    def __len__(self) -> int:
        """Return how many blocks are kept."""
        return len(self._places)

    def add(self, block_hash: bytes) -> int | None:
        """Return the place that the block's bytes are to be put in.

        None if there is nothing to do: it is kept already, and counts as used now, or every place
        is pinned, and it is not kept.
        """
        if block_hash in self._places:
            self._places.move_to_end(block_hash)
            return None
        place = self._vacant.pop() if self._vacant else self._least_recently_used()
        if place is not None:
            self._places[block_hash] = place
        return place

    def pin(self, block_hashes: Sequence[bytes]) -> list[int]:
        """Return the places of the chain, up to the first that is gone; they stay until `unpin`.

        The chain counts as used now, its head last: what is behind a gap is of no use.
        """
        places: list[int] = []
        for block_hash in block_hashes:
            if block_hash not in self._places:
                break
            places.append(self._places[block_hash])
        for block_hash in reversed(block_hashes[: len(places)]):
            self._places.move_to_end(block_hash)
            self._pins[block_hash] += 1
        return places

    def unpin(self, block_hashes: Iterable[bytes]) -> None:
        """Let blocks go that were pinned, once for each time."""
        for block_hash in block_hashes:
            self._pins[block_hash] -= 1
            if not self._pins[block_hash]:
                del self._pins[block_hash]

    def _least_recently_used(self) -> int | None:
        oldest = next((known for known in self._places if known not in self._pins), None)
        return None if oldest is None else self._places.pop(oldest)
