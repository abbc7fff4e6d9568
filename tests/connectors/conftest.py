"""What the tests of connectors share: a small pool with known blocks, and polling with a bound."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence

import pytest
import torch
from torch import Tensor

from kvproof.runtime.connector import Connector, TransferReport
from kvproof.runtime.kv_pool import KVPool, Layout

BLOCK_SIZE = 4
POLLS_MAX = 5_000


class Rig:
    """A pool of 12 blocks, each of 4 tokens; block n is known as hash n."""

    def __init__(
        self,
        device: torch.device,
        dtype: torch.dtype = torch.float32,
        layout: Layout = "NHD",
        block_size: int = BLOCK_SIZE,
    ) -> None:
        """Make the pool and fill no block."""
        self.pool = KVPool(2, 12, 2, 4, block_size, dtype=dtype, device=device, layout=layout)

    def fill(self, *blocks: int) -> list[Tensor]:
        """Fill blocks with numbers that depend on the block only, and return copies."""
        for block in blocks:
            generator = torch.Generator().manual_seed(block)
            numbers = torch.rand(self.pool.storage[block].shape, generator=generator) + 1
            self.pool.storage[block] = numbers.to(self.pool.storage)
        return self.copies(*blocks)

    def clear(self) -> None:
        """Fill every block but the null block with NaN."""
        self.pool.storage[1:] = float("nan")

    def copies(self, *blocks: int) -> list[Tensor]:
        """Return copies of what blocks hold."""
        return [self.pool.storage[block].clone() for block in blocks]

    def holds(self, blocks: Sequence[int], contents: Sequence[Tensor]) -> bool:
        """Return whether blocks hold these contents, bit for bit."""
        pairs = zip(blocks, contents, strict=True)
        return all(torch.equal(self.pool.storage[block], content) for block, content in pairs)

    def is_clear(self, *blocks: int) -> bool:
        """Return whether blocks still hold only what `clear` has left."""
        return bool(self.pool.storage[list(blocks)].isnan().all())

    @staticmethod
    def hashes(*numbers: int) -> list[bytes]:
        """Return a hash for each number."""
        return [bytes([number]) * 32 for number in numbers]

    @staticmethod
    def ends(connector: Connector, count: int = 1) -> TransferReport:
        """Poll until that many loads have ended, and a few times more; return all that was said."""
        ended: list[str] = []
        failed: set[int] = set()
        lost: set[str] = set()
        for _ in range(POLLS_MAX):
            report = connector.poll()
            ended += [*report.received, *report.lost]
            failed |= report.failed_blocks
            lost |= report.lost
            if len(ended) >= count:
                break
            time.sleep(0.001)
        assert len(ended) == len(set(ended)) == count
        assert not connector.has_pending_transfers()
        assert not any(connector.poll() for _ in range(3))
        return TransferReport(received=set(ended) - lost, failed_blocks=failed, lost=lost)


@pytest.fixture
def new_rig(device: torch.device) -> Callable[..., Rig]:
    """Return the function that makes a pool on the device of the test."""

    def make(
        dtype: torch.dtype = torch.float32, layout: Layout = "NHD", block_size: int = BLOCK_SIZE
    ) -> Rig:
        return Rig(device, dtype, layout, block_size)

    return make


@pytest.fixture
def rig(device: torch.device) -> Rig:
    """Return a pool of the usual kind."""
    return Rig(device)


@pytest.fixture
def no_new_threads() -> Iterator[None]:
    """Fail if a thread that the test started is still there at its end."""
    before = set(threading.enumerate())
    yield
    started = [thread for thread in threading.enumerate() if thread not in before]
    for thread in started:  # One that was held up on purpose ends as soon as it is let go.
        thread.join(5)
    assert [thread.name for thread in started if thread.is_alive()] == []
