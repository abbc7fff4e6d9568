"""Handlers that count wrong: references, free blocks, and what a request needs.

Each function takes the sound handler and returns the one that is put in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvproof.core.arrays import Integers
from kvproof.runtime.books import Books
from kvproof.runtime.free_queue import FreeQueue
from kvproof.runtime.prefix_index import PrefixIndex
from kvproof.runtime.prefixes import Prefix
from kvproof.runtime.transfers import Transfers

Handler = Callable[..., Any]


def queues_twice(sound: Handler) -> Handler:
    """Queue the first of the blocks that come back a second time."""

    def put_first(queue: FreeQueue, blocks: Sequence[int]) -> None:
        sound(queue, [*blocks, *blocks[:1]])

    return put_first


def asserts_an_owner(sound: Handler) -> Handler:
    """Take it that whatever ends has an owner."""

    def release(transfers: Transfers, name: str, kind: str) -> None:
        assert name in transfers._obligations, f"no request {name!r}"
        sound(transfers, name, kind)

    return release


def counts_idle_hits_twice(_: Handler) -> Handler:
    """Count hits that idle in the free queue as held by others, and as free blocks, too."""

    def num_shared(books: Books, hits: list[int]) -> int:
        return len(hits)

    return num_shared


def leaves_the_old_hash(_: Handler) -> Handler:
    """Let a block that is taken for something else be found under its old hash."""

    def remove(index: PrefixIndex, block: int) -> Prefix:
        return index._prefixes.pop(block)

    return remove


def rounds_blocks_down(_: Handler) -> Handler:
    """Work out what requests lack by another formula than the one that guards their tokens."""

    def growth(books: Books, some: Integers, ends: Integers) -> tuple[Integers, Integers]:
        lacking = ends // books.state.block_size - books.state.request.held[some]
        places = (lacking > 0).nonzero()[0]
        return places, lacking[places]

    return growth
