"""A pool's blocks in the order of their bytes, and copies that keep their place in it.

On CUDA a copy must neither overtake the kernels that still use a block nor be overtaken by those
that use it next. Reads go to the current stream, which every kernel of the model is on. Writes go
to a stream of their own, which first waits for a mark that was set on the current one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from kvproof.runtime.kv_pool import KVPool


class BlockMemory:
    """The memory of a pool, one contiguous run a block whatever the layout.

    Attributes:
        blocks: the storage itself, ``[num_blocks, num_layers, 2, block_size, kv_heads, head_dim]``
            of the pool's dtype; for "HND" the fourth and fifth dimension change places.

    """

    def __init__(self, pool: KVPool) -> None:
        """Look at the memory of `pool`; nothing is copied."""
        self.blocks = pool.storage if pool.layout == "NHD" else pool.storage.transpose(3, 4)
        self._stream = _new_stream(pool.device)

    @property
    def block_shape(self) -> tuple[int, ...]:
        """The shape of one block."""
        return tuple(self.blocks.shape[1:])

    def host_tensor(self, num_blocks: int) -> Tensor:
        """Return uninitialised host memory for that many blocks, pinned if the pool is on CUDA."""
        shape = (num_blocks, *self.block_shape)
        return torch.empty(shape, dtype=self.blocks.dtype, pin_memory=self._stream is not None)

    def read(self, block_ids: Sequence[int]) -> Tensor:
        """Return a copy of these blocks on the host, ``[len(block_ids), *block_shape]``.

        On CUDA the host waits for the model.
        """
        index = torch.tensor(block_ids, dtype=torch.int64, device=self.blocks.device)
        return self.blocks.index_select(0, index).cpu()

    def mark(self) -> torch.cuda.Event | None:
        """Return a mark behind all that the current stream has been given, or None on a CPU."""
        if self._stream is None:
            return None
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self.blocks.device))
        return event

    @contextmanager
    def after(self, mark: torch.cuda.Event | None) -> Iterator[None]:
        """Order the copies of the context behind a mark; at its end they are complete."""
        if self._stream is None or mark is None:
            yield
            return
        try:
            with torch.cuda.stream(self._stream):
                self._stream.wait_event(mark)
                yield
        finally:
            # Also after an error: whoever hears that a load has ended may give the blocks away.
            self._stream.synchronize()


def _new_stream(device: torch.device) -> torch.cuda.Stream | None:
    if device.type != "cuda":
        return None
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
