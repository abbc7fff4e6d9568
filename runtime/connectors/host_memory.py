"""Blocks that the pool had to give up, kept in host memory and loaded back asynchronously.

After vLLM OffloadingConnector with its LRUOffloadingManager.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from kvproof.runtime.connector import TransferReport
from kvproof.runtime.connectors.block_memory import BlockMemory
from kvproof.runtime.connectors.host_blocks import HostBlocks
from kvproof.runtime.connectors.promises import Promises
from kvproof.runtime.connectors.thread_loads import LOAD_TIMEOUT_S, ThreadLoads
from kvproof.runtime.connectors.write_permit import WritePermit
from kvproof.runtime.errors import CallerError
from kvproof.runtime.kv_pool import KVPool


class HostMemoryConnector:
    """A `Connector` that keeps up to `capacity_blocks` evicted blocks, the least used ones not.

    Its memory is ``[capacity_blocks, *block]`` of the pool's dtype, pinned if the pool is on CUDA.
    It loads on one thread. It never reports `sent`. A load that does not begin to copy in time is
    `lost`; one that copies is waited for, for nobody can vouch that it will not write.
    """

    def __init__(
        self,
        pool: KVPool,
        capacity_blocks: int,
        *,
        load_timeout_seconds: float = LOAD_TIMEOUT_S,
    ) -> None:
        """Allocate the memory.

        Raises:
            CallerError: If `capacity_blocks` is below 1 or `load_timeout_seconds` not above 0.
            RuntimeError: If the host has not that much memory.

        """
        if capacity_blocks < 1:
            raise CallerError(
                f"capacity_blocks: got {capacity_blocks}, expected at least 1; without room leave "
                "the connector out"
            )
        self._memory = BlockMemory(pool)
        self._kept = HostBlocks(capacity_blocks)
        self._bytes = self._memory.host_tensor(capacity_blocks)
        self._promises = Promises(pool.block_size)
        self._loads = ThreadLoads(1, "kvproof-host-memory", load_timeout_seconds)
        self._pinned: dict[str, tuple[bytes, ...]] = {}

    @property
    def num_blocks_kept(self) -> int:
        """How many blocks are kept."""
        return len(self._kept)

    def match(
        self,
        request_id: str,
        block_hashes: Sequence[bytes],
        num_tokens: int,
        num_computed_tokens: int,
    ) -> tuple[int | None, bool]:
        """Return how many tokens the chain of kept blocks covers; it changes nothing."""
        return self._promises.make(
            request_id, block_hashes, num_tokens, num_computed_tokens, self._kept.__contains__
        )

    def allocated(
        self, request_id: str, block_ids: Sequence[int], first_token: int, num_tokens: int
    ) -> None:
        """Start the load; blocks that are no longer kept will be failed ones.

        Raises CallerError for a load that was not offered, or a second one.
        """
        self._loads.check(request_id)
        load = self._promises.take(request_id, block_ids, first_token, num_tokens)
        if load is None:
            return
        places, mark = self._kept.pin(load.block_hashes), self._memory.mark()
        self._pinned[request_id] = load.block_hashes[: len(places)]

        def fill(permit: WritePermit) -> Sequence[int]:
            with permit.writing():
                return self._fill(load.block_ids, places, mark)

        self._loads.start(request_id, load.block_ids, fill)

    def written(self, block_hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Do nothing: a block is copied when the pool gives it up."""

    def evicted(self, block_hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Copy the blocks that are not kept yet.

        On CUDA the copies are on the current stream, behind the kernels that wrote the blocks and
        ahead of all that is launched from now on, so nobody waits for them here.
        """
        for block_hash, block in zip(block_hashes, block_ids, strict=True):
            place = self._kept.add(block_hash)
            if place is not None:
                self._bytes[place].copy_(self._memory.blocks[block], non_blocking=True)

    def preempted(self, request_id: str, block_ids: Sequence[int]) -> None:
        """Forget what was offered: the next attempt asks anew."""
        self._promises.drop(request_id)

    def finished(self, request_id: str, block_ids: Sequence[int]) -> bool:
        """Return False: nothing reads the blocks."""
        self._promises.drop(request_id)
        return False

    def aborted(self, request_id: str) -> None:
        """Forget what was offered to the request; a load that runs still ends in a report."""
        self._promises.drop(request_id)

    def poll(self) -> TransferReport:
        """Return the loads that have ended; what they held in host memory may be evicted again.

        One that is lost has copied nothing and never will.
        """
        report = self._loads.report()
        for request_id in report.received | report.lost:
            self._kept.unpin(self._pinned.pop(request_id))
        return report

    def has_pending_transfers(self) -> bool:
        """Return whether a load has not been reported."""
        return len(self._loads) > 0

    def close(self) -> None:
        """End the thread. Loads that have not run are failed ones; `poll` still reports them."""
        self._loads.close()

    def _fill(
        self, block_ids: Sequence[int], places: Sequence[int], mark: torch.cuda.Event | None
    ) -> Sequence[int]:
        """Copy on the worker thread, and return the blocks for which there is nothing."""
        with self._memory.after(mark):
            for block, place in zip(block_ids, places, strict=False):
                self._memory.blocks[block].copy_(self._bytes[place], non_blocking=True)
        return block_ids[len(places) :]
