"""What besides tokens says what a block holds: the cache salt, and items for an encoder.

Rule: vLLM generate_block_hash_extra_keys.
"""

from __future__ import annotations

from attrs import frozen

from kvproof.runtime.request import EncoderItem

Key = str | tuple[str, int]
Keys = tuple[Key, ...]


@frozen
class BlockKeys:
    """The salt and the items of one request, told apart by block.

    A salt is a key of the first block alone; all that follow are chained to it. An item is a key of
    each block that it overlaps, with where it starts, counted from the start of the block.
    """

    salt: str = ""
    items: tuple[EncoderItem, ...] = ()

    def of(self, first: int, last: int, block_size: int) -> list[Keys]:
        """Return the keys of the blocks from `first` to before `last`."""
        if not self.items and (first > 0 or not self.salt):
            return [()] * (last - first)
        return [self._at(place * block_size, block_size) for place in range(first, last)]

    def _at(self, start: int, length: int) -> Keys:
        items = tuple(
            (item.identifier, item.offset - start)
            for item in self.items
            if item.offset < start + length and item.end > start
        )
        return (*items, self.salt) if self.salt and start == 0 else items
