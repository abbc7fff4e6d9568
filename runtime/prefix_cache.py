"""The prefix cache: hash on arrival, look up at admission, publish what is written.

Rule: vLLM KVCacheManager.get_computed_blocks and cache_blocks; BlockPool.
"""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from attrs import define, field

from kvproof.core import State, batches
from kvproof.core import rows as core_rows
from kvproof.core.arrays import Integers
from kvproof.runtime.block_hash import BlockHash
from kvproof.runtime.block_keys import BlockKeys
from kvproof.runtime.errors import BrokenInvariant
from kvproof.runtime.kv_events import EventLog
from kvproof.runtime.prefix_index import PrefixIndex
from kvproof.runtime.prefixes import Prefix, Prefixes
from kvproof.runtime.request import Request
from kvproof.runtime.token_store import TokenStore


@define
class PrefixStatistics:
    """Tokens looked up and found, as vLLM counts them; apart for requests once preempted."""

    requests: int = 0
    queries: int = 0
    hits: int = 0
    preempted_requests: int = 0
    preempted_queries: int = 0
    preempted_hits: int = 0

    def record(self, tokens: int, hits: int, *, preempted: bool) -> None:
        """Count one look-up (vLLM PrefixCacheStats.record)."""
        if preempted:
            self.preempted_requests += 1
            self.preempted_queries += tokens
            self.preempted_hits += hits
        else:
            self.requests += 1
            self.queries += tokens
            self.hits += hits


@define
class RowPrefixes:
    """The prefixes that end with a request's full blocks, and how many of them it has published."""

    keys: BlockKeys
    known: list[Prefix] = field(factory=list)
    published: int = 0


class BlockListener(Protocol):
    """Who is told of blocks that are published, and of those that will be overwritten."""

    def published(self, digests: list[bytes], blocks: list[int]) -> None:
        """Take note of blocks that a dispatched frame writes, or has written."""
        ...

    def evicted(self, digests: list[bytes], blocks: list[int]) -> None:
        """Take note of blocks that are about to be overwritten."""
        ...


class PrefixCache:
    """Everything a scheduler does for prefix caching; without it, `None` stands in its place."""

    def __init__(
        self,
        state: State,
        tokens: TokenStore,
        block_hash: BlockHash,
        *,
        at_allocation: bool,
        is_shared: bool = True,
    ) -> None:
        """Start with nothing published.

        Args:
            state: the core's state.
            tokens: where the tokens of a row are.
            block_hash: hashes one block.
            at_allocation: publish before content is written, as vLLM 0.25.1 does (vllm#43569).
            is_shared: publish anything at all; without it there are only hashes.

        """
        self._state, self._tokens = state, tokens
        self.at_allocation, self.is_shared = at_allocation, is_shared
        self.listener: BlockListener | None = None
        self.prefixes = Prefixes(block_hash)
        self.index = PrefixIndex()
        self.statistics = PrefixStatistics()
        self.events = EventLog()
        self._rows: dict[int, RowPrefixes] = {}

    def arrive(self, row: int, known: int, request: Request) -> None:
        """Hash the full blocks of a new request."""
        self._rows[row] = RowPrefixes(BlockKeys(request.cache_salt, request.mm_features))
        self.learn(row, known)

    def leave(self, row: int) -> None:
        """Forget the prefixes of a request; what it published stays."""
        del self._rows[row]

    def learn(self, row: int, known: int) -> None:
        """Hash the blocks that new tokens have filled."""
        own, size = self._rows[row], self._state.block_size
        done, full = len(own.known), known // size
        if full == done:
            return
        start = int(self._tokens.starts[row])
        tokens = self._tokens.tokens[start + done * size : start + full * size]
        before = own.known[-1] if done else None
        own.known += self.prefixes.follow(before, tokens, size, own.keys.of(done, full, size))

    def hits(self, row: int, known: int) -> list[int]:
        """Return published blocks that hold the request's first tokens; one is left to compute."""
        if not self.is_shared:
            return []
        found: list[int] = []
        for prefix in self._rows[row].known[: (known - 1) // self._state.block_size]:
            block = self.index.find(prefix)
            if block is None:
                break
            found.append(block)
        return found

    def numbers(self, row: int, count: int) -> list[int]:
        """Return the numbers of the prefixes that end with the first blocks of a request."""
        return [prefix.number for prefix in self._rows[row].known[:count]]

    def digests(self, row: int) -> list[bytes]:
        """Return the hashes of a request's full blocks, the whole prefix in each."""
        return [prefix.digest for prefix in self._rows[row].known]

    def admitted(self, row: int, hits: int) -> None:
        """Take note that a request starts with `hits` published blocks in its table."""
        self._rows[row].published = hits

    def publish(self, rows: Integers, ends: Integers) -> None:
        """Publish the blocks that lie wholly before `ends`, int64 [len(rows)] tokens."""
        if not self.is_shared:
            return
        full = ends // self._state.block_size
        for row, count in zip(rows.tolist(), full.tolist(), strict=True):
            own = self._rows[row]
            if own.published < count:
                self._publish(row, own, count)

    def _publish(self, row: int, own: RowPrefixes, count: int) -> None:
        first, fresh = own.published, own.known[own.published : count]
        blocks = self._state.request.block_table.rows[row, first:count].astype(np.int64)
        numbers = np.array([prefix.number for prefix in fresh], dtype=np.int64)
        owner, places = np.full(len(fresh), row), np.arange(first, count)
        rule = batches.publish_early if self.at_allocation else batches.publish
        if not rule(self._state, owner, places, blocks, numbers):
            raise BrokenInvariant(f"row {row} may not publish blocks {blocks.tolist()}.")
        for block, prefix in zip(blocks.tolist(), fresh, strict=True):
            self.index.add(block, prefix)
        if self.events.wanted:
            self._log(row, own, first, fresh)
        if self.listener is not None:
            self.listener.published([prefix.digest for prefix in fresh], blocks.tolist())
        own.published = count

    def _log(self, row: int, own: RowPrefixes, first: int, fresh: list[Prefix]) -> None:
        size, last = self._state.block_size, first + len(fresh)
        start = int(self._tokens.starts[row])
        tokens = self._tokens.tokens[start + first * size : start + last * size].tolist()
        self.events.stored(fresh, tokens, size, own.keys.of(first, last, size))

    def evict(self, blocks: Integers) -> None:
        """Take note that blocks are taken for something else; call it before they are."""
        published = blocks[self._state.block.content[blocks] != 0].tolist()
        evicted = [self.index.remove(block) for block in published]
        for prefix in evicted:
            if self.index.find(prefix) is None:
                self.events.removed(prefix)
        if evicted and self.listener is not None:
            self.listener.evicted([prefix.digest for prefix in evicted], published)

    def unpublish(self, blocks: list[int]) -> None:
        """Forget blocks whose content is not what it should be, whoever holds them."""
        for block in blocks:
            if self._state.block.cells.content[block]:
                prefix = self.index.remove(block)
                if self.index.find(prefix) is None:
                    self.events.removed(prefix)
                if not core_rows.unpublish(self._state, block):
                    raise BrokenInvariant(f"block {block} is published but may not be forgotten.")

    def reset(self) -> bool:
        """Forget every published block, if all blocks are free; return whether that was so."""
        if self._state.pool.referenced:
            return False
        published = np.flatnonzero(self._state.block.content)
        if len(published) and not batches.forget(self._state, published):
            raise BrokenInvariant("free blocks may not be forgotten.")
        self.index.clear()
        self.events.cleared()
        return True

    def snapshot(self) -> tuple[Any, ...]:
        """Return the prefixes of each row and what is published, for `restore`; no counts."""
        own = [(row, o.keys, o.known.copy(), o.published) for row, o in self._rows.items()]
        return own, self.index.snapshot() if len(self.index) else ()

    def restore(self, kept: tuple[Any, ...]) -> None:
        """Have the prefixes that were there when `snapshot` was called."""
        own, published = kept
        self._rows = {row: RowPrefixes(k, known.copy(), done) for row, k, known, done in own}
        if published or len(self.index):
            self.index.restore(published)

    def mismatches(self) -> list[str]:
        """Return where the index and the core disagree about what is published."""
        said = {block: prefix.number for block, prefix in self.index}
        content = self._state.block.content
        kept = {int(block): int(content[block]) for block in np.flatnonzero(content)}
        return [] if said == kept else ["the prefix index and the core disagree about blocks"]
