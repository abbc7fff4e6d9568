"""Handlers that publish, keep or find what is not there, or not there yet.

Each function takes the sound handler and returns the one that is put in its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kvproof.core.arrays import Integers
from kvproof.runtime.books import Books
from kvproof.runtime.prefix_cache import PrefixCache
from kvproof.runtime.transfers import Transfers

Handler = Callable[..., Any]


def remembers_hits(sound: Handler) -> Handler:
    """Look a request's prefix up once, and take the answer for good."""

    def hits(prefix: PrefixCache, row: int, known: int) -> list[int]:
        kept: dict[Any, list[int]] = prefix.__dict__.setdefault("_hits", {})
        key = (row, tuple(prefix.numbers(row, known)))
        if not kept.get(key):
            kept[key] = sound(prefix, row, known)
        return kept[key]

    return hits


def removes_first_copy(_: Handler) -> Handler:
    """Say that a prefix is gone when the first of its blocks is."""

    def evict(prefix: PrefixCache, blocks: Integers) -> None:
        published = blocks[prefix._state.block.content[blocks] != 0].tolist()
        evicted = [prefix.index.remove(block) for block in published]
        for item in evicted:
            prefix.events.removed(item)
        if evicted and prefix.listener is not None:
            prefix.listener.evicted([item.digest for item in evicted], published)

    return evict


def overlooks_failures(_: Handler) -> Handler:
    """Take every load that has ended for whole."""

    def note_failures(transfers: Transfers, failed: Iterable[int]) -> list[int]:
        return []

    return note_failures


def confirms_at_once(_: Handler) -> Handler:
    """Take a synchronous load for right before its first step has come back."""

    def note_synchronous(transfers: Transfers, row: int) -> None:
        return None

    return note_synchronous


def finds_all(_: Handler) -> Handler:
    """Find hits for every token of a prompt, and leave none to compute."""

    def hits(prefix: PrefixCache, row: int, known: int) -> list[int]:
        found: list[int] = []
        for item in prefix._rows[row].known[: known // prefix._state.block_size]:
            block = prefix.index.find(item)
            if block is None:
                break
            found.append(block)
        return found

    return hits


def unpublishes_shared(_: Handler) -> Handler:
    """Withdraw all blocks of a request whose load has failed, those of others among them."""

    def compute_anew(books: Books, row: int, valid: int) -> None:
        from kvproof.runtime import loads

        if books.prefix is not None:
            books.prefix.unpublish(books.table.block_ids(row))
        loads.restart(books, row)

    return compute_anew
