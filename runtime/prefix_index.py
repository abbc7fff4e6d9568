"""The prefix index: which blocks hold the tokens of a prefix.

The core says whether a block is published, and under which number (`block.content`); the index
finds the block for a prefix, and `Scheduler.check` compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator

from attrs import define, field

from kvproof.runtime.prefixes import Prefix


@define
class PrefixIndex:
    """Published blocks by prefix; of several with the same content the oldest is offered."""

    _blocks: dict[Prefix, dict[int, None]] = field(factory=dict)
    _prefixes: dict[int, Prefix] = field(factory=dict)

    def __len__(self) -> int:
        """Return the number of published blocks."""
        return len(self._prefixes)

    def __iter__(self) -> Iterator[tuple[int, Prefix]]:
        """Yield each published block with its prefix."""
        return iter(self._prefixes.items())

    def find(self, prefix: Prefix) -> int | None:
        """Return a block that holds the prefix, or None."""
        blocks = self._blocks.get(prefix)
        return next(iter(blocks)) if blocks else None

    def add(self, block: int, prefix: Prefix) -> None:
        """Take note that a block is published."""
        self._blocks.setdefault(prefix, {})[block] = None
        self._prefixes[block] = prefix

    def remove(self, block: int) -> Prefix:
        """Take note that a block is no longer published; return its prefix."""
        prefix = self._prefixes.pop(block)
        blocks = self._blocks[prefix]
        del blocks[block]
        if not blocks:
            del self._blocks[prefix]
        return prefix

    def snapshot(self) -> tuple[tuple[Prefix, tuple[int, ...]], ...]:
        """Return what is published, the oldest first for each prefix, for `restore`."""
        return tuple((prefix, tuple(blocks)) for prefix, blocks in self._blocks.items())

    def restore(self, kept: tuple[tuple[Prefix, tuple[int, ...]], ...]) -> None:
        """Have published what was published when `snapshot` was called."""
        self._blocks = {prefix: dict.fromkeys(blocks) for prefix, blocks in kept}
        self._prefixes = {block: prefix for prefix, blocks in kept for block in blocks}

    def clear(self) -> None:
        """Take note that no block is published."""
        self._blocks.clear()
        self._prefixes.clear()
