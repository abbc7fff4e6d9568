"""Blocks in a folder, one safetensors file each, written through and loaded asynchronously.

The folder outlives the process and may be shared. Nothing in it is trusted: a block of the pool is
written only after the file has proved to be what was promised, and every other file is a failed
block. Compare vLLM's ExampleConnector, which loads what it finds, and public reports of what that
leads to: vllm#50719, vllm#26813, ascend#16875.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from attrs import frozen

from kvproof.runtime.connector import TransferReport
from kvproof.runtime.connectors.block_folder import BlockFolder
from kvproof.runtime.connectors.block_memory import BlockMemory
from kvproof.runtime.connectors.block_writes import DROPPED, WRITTEN, BlockWrites
from kvproof.runtime.connectors.folder_load import LOADED, UNUSABLE, FolderLoad
from kvproof.runtime.connectors.promises import Promises
from kvproof.runtime.connectors.thread_loads import LOAD_TIMEOUT_S, ThreadLoads
from kvproof.runtime.connectors.transfer_tally import TransferTally
from kvproof.runtime.errors import CallerError
from kvproof.runtime.kv_pool import KVPool

REMOVED, LOST = "files_removed", "loads_lost"


@frozen
class FolderStatistics:
    """What has happened since the connector was made.

    Attributes:
        blocks_written: files that were written.
        writes_dropped: blocks that were to be written and were not: the disk was full or failed, or
            too many writes were pending.
        blocks_loaded: blocks of the pool that were filled.
        files_unusable: files that were missing, unreadable or not what they should be.
        files_removed: files that had to go because the folder was full.
        loads_lost: loads that took too long.

    """

    blocks_written: int
    writes_dropped: int
    blocks_loaded: int
    files_unusable: int
    files_removed: int
    loads_lost: int


class FolderConnector:
    """A `Connector` that keeps every block that is written, in a folder.

    It never reports `sent`. A load that takes too long, because the disk hangs, is `lost`, and its
    thread writes no more; while it hangs, nothing is asked of the disk. Without `max_bytes` nothing
    is removed but what is torn. Whoever owns the folder may remove any file at any time.
    """

    def __init__(
        self,
        pool: KVPool,
        folder: Path,
        *,
        model: str,
        num_load_threads: int = 2,
        writes_pending_max: int = 256,
        load_timeout_seconds: float = LOAD_TIMEOUT_S,
        max_bytes: int | None = None,
    ) -> None:
        """Make a subfolder for what this pool and this model can read.

        Args:
            pool: the memory.
            folder: where the subfolder is or will be.
            model: says which weights computed the KV; equal names share files, so two versions of
                a model must not have the same.
            num_load_threads: loads at a time.
            writes_pending_max: blocks waiting on the host to be written; what is more is dropped.
            load_timeout_seconds: how long a load may take, from `allocated` on.
            max_bytes: what the subfolder may hold; the files that were not used for longest go
                first, none that this process reads. Several processes that share it may exceed it
                by an eighth each. None is no limit.

        Raises:
            CallerError: If a number is below 1, `load_timeout_seconds` not above 0, `max_bytes`
                below one block, or the name empty.
            OSError: If the subfolder cannot be made.

        """
        _check(model, num_load_threads=num_load_threads, writes_pending_max=writes_pending_max)
        self._memory = BlockMemory(pool)
        self._like = torch.empty(self._memory.block_shape, dtype=pool.dtype, device="meta")
        if max_bytes is not None and max_bytes < pool.block_bytes:
            raise CallerError(
                f"max_bytes: got {max_bytes}, expected at least {pool.block_bytes}, one block"
            )
        self._loads = ThreadLoads(num_load_threads, "kvproof-folder-load", load_timeout_seconds)
        self._folder = BlockFolder(folder, pool, model, max_bytes)
        self._promises = Promises(pool.block_size)
        self._tally = TransferTally()
        self._started: dict[str, FolderLoad] = {}
        self._writes = BlockWrites(writes_pending_max, self._tally)

    @property
    def folder(self) -> Path:
        """The subfolder that holds the files, named by the fingerprint."""
        return self._folder.path

    def statistics(self) -> FolderStatistics:
        """Return what has happened so far."""
        count = self._tally
        return FolderStatistics(
            blocks_written=count[WRITTEN],
            writes_dropped=count[DROPPED],
            blocks_loaded=count[LOADED],
            files_unusable=count[UNUSABLE],
            files_removed=count[REMOVED],
            loads_lost=count[LOST],
        )

    def match(
        self,
        request_id: str,
        block_hashes: Sequence[bytes],
        num_tokens: int,
        num_computed_tokens: int,
    ) -> tuple[int | None, bool]:
        """Return how many tokens the unbroken chain of files covers; it opens none of them.

        It is none while a load hangs that was given up: looking for a file would hang as well.
        """
        offered = block_hashes if not self._loads.is_hanging() else ()
        return self._promises.make(
            request_id, offered, num_tokens, num_computed_tokens, self._folder.offers
        )

    def allocated(
        self, request_id: str, block_ids: Sequence[int], first_token: int, num_tokens: int
    ) -> None:
        """Start the load; from the first unusable file on, blocks will be failed ones.

        Raises CallerError for a load that was not offered, or a second one.
        """
        self._loads.check(request_id)
        load = self._promises.take(request_id, block_ids, first_token, num_tokens)
        if load is None:
            return
        mark, hashes, blocks = self._memory.mark(), load.block_hashes, load.block_ids
        work = FolderLoad(self._folder, self._memory, self._like, self._tally, hashes, blocks, mark)
        self._folder.keep(hashes)
        self._started[request_id] = work
        self._loads.start(request_id, blocks, work)

    def written(self, block_hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Copy the blocks that have no file yet to the host, and queue their files.

        On CUDA the host waits for the model if there is such a block. None is queued while a load
        hangs that was given up.
        """
        if self._loads.is_hanging():
            for _ in block_ids:
                self._writes.drop("the folder does not answer")
            return
        pairs = zip(block_hashes, block_ids, strict=True)
        fresh = [pair for pair in pairs if not self._folder.offers(pair[0])]
        room = self._writes.room()
        for _ in fresh[room:]:
            self._writes.drop("too many writes are pending, or the connector is closed")
        if fresh[:room]:
            self._write(fresh[:room])

    def evicted(self, block_hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Do nothing: what was worth a file was queued when it was written."""

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
        """Return the loads that have ended, and those that took too long."""
        report = self._loads.report()
        for request_id in report.received | report.lost:
            self._folder.let_go(self._started.pop(request_id).block_hashes)
        for _ in report.lost:
            self._tally.add(LOST)
        return report

    def has_pending_transfers(self) -> bool:
        """Return whether a load has not been reported; writes keep nobody awake."""
        return len(self._loads) > 0

    def flush(self) -> None:
        """Wait until every block that was written has its file or was dropped."""
        self._writes.flush()

    def close(self) -> None:
        """Write what is queued and end all threads.

        Loads that have not run are failed ones; `poll` still reports them.
        """
        self._loads.close()
        self._writes.close()

    def _write(self, pairs: Sequence[tuple[bytes, int]]) -> None:
        contents = self._memory.read([block for _, block in pairs])
        for (block_hash, _), content in zip(pairs, contents, strict=True):
            # One tensor each, or a single late write would keep the memory of all of them.
            self._writes.add(_Write(self._folder, self._tally, block_hash, content.clone()))


@frozen
class _Write:
    folder: BlockFolder
    tally: TransferTally
    block_hash: bytes
    content: torch.Tensor

    def __call__(self) -> bool:
        # Another process, or an earlier write in the queue, may have been quicker.
        if self.folder.offers(self.block_hash):
            return False
        for _ in range(self.folder.write(self.block_hash, self.content)):
            self.tally.add(REMOVED)
        return True


def _check(model: str, **numbers: int) -> None:
    if not model:
        raise CallerError("model: got an empty name, expected one that says which weights it is")
    for name, number in numbers.items():
        if number < 1:
            raise CallerError(f"{name}: got {number}, expected at least 1")
