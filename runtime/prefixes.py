"""Prefixes that end with a full block: equal ones are one object, so that comparing costs nothing.

They are made when tokens arrive, and there all hashing and comparing is done; a step only looks at
who is who. One that neither a request nor a published block needs any more is forgotten.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Self
from weakref import WeakValueDictionary

from attrs import define

from kvproof.core.arrays import Integers
from kvproof.runtime.block_hash import BlockHash
from kvproof.runtime.block_keys import Keys


@define(eq=False, weakref_slot=True)
class Prefix:
    """All tokens up to the end of a block, and the keys that go with them.

    Attributes:
        digest: its hash, by which other processes know it.
        number: its number, at least 1, by which the core knows it; no other prefix ever has it.
        before: the prefix that is one block shorter, or None.

    """

    digest: bytes
    number: int
    before: Prefix | None

    def __deepcopy__(self, memo: object) -> Self:
        """Return the prefix itself: a copy would not be equal to it, and nothing in it changes."""
        return self


class Prefixes:
    """Every prefix that is in use, each of them once."""

    def __init__(self, block_hash: BlockHash) -> None:
        """Start with none."""
        self._hash = block_hash
        self._numbers = count(1)
        self._known: WeakValueDictionary[object, Prefix] = WeakValueDictionary()

    def __len__(self) -> int:
        """Return the number of prefixes in use."""
        return len(self._known)

    def follow(
        self, before: Prefix | None, tokens: Integers, block_size: int, keys: Sequence[Keys]
    ) -> list[Prefix]:
        """Return the prefixes that end with each of some consecutive blocks.

        Args:
            before: the prefix that ends where the blocks begin, or None.
            tokens: the tokens of the blocks, int64 [blocks * block_size].
            block_size: tokens of a block.
            keys: the keys of each block.

        """
        data, width = tokens.astype("<i8", copy=False).tobytes(), 8 * block_size
        found = []
        for place, own in enumerate(keys):
            before = self._one(before, data[place * width : (place + 1) * width], own)
            found.append(before)
        return found

    def _one(self, before: Prefix | None, tokens: bytes, keys: Keys) -> Prefix:
        """Return the one prefix that has this content; a fast hash alone does not tell which."""
        digest = self._hash.digest(before.digest if before else self._hash.root, tokens, keys)
        content = digest if self._hash.is_exact else (digest, before, tokens, keys)
        prefix = self._known.get(content)
        if prefix is None:
            prefix = self._known[content] = Prefix(digest, next(self._numbers), before)
        return prefix
