"""Blocks as rows of bytes: taken out of a pool, checked, and put into another one.

A row is one block across all layers, in the order in which the pool stores it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from kvproof.runtime.kv_pool import KVPool


def take_rows(pool: KVPool, block_ids: Sequence[int]) -> Tensor:
    """Return a copy of some blocks on the CPU, uint8 `[blocks, block_bytes]`."""
    blocks = torch.tensor(block_ids, dtype=torch.int64, device=pool.device)
    rows = as_stored(pool, pool.storage).index_select(0, blocks)
    return rows.flatten(1).view(torch.uint8).cpu()


def checksums(rows: Tensor) -> tuple[int, ...]:
    """Return the CRC-32 of each row, which finds what is torn but not what is forged."""
    return tuple(zlib.crc32(row.numpy()) for row in rows)


def put_rows(
    pool: KVPool, rows: Tensor, block_ids: Sequence[int], first_slot: int, end_slot: int
) -> None:
    """Write rows, uint8 `[blocks, block_bytes]`, into the blocks of a pool.

    Only slots from `first_slot` up to `end_slot` are written, counted from the first of the first
    block: what lies before may be shared, and what lies behind means nothing.
    """
    shape = (len(block_ids), *as_stored(pool, pool.storage).shape[1:])
    blocks = as_stored(pool, rows.to(pool.device).view(pool.dtype).view(shape))
    for place, block in enumerate(block_ids):
        first = max(0, first_slot - place * pool.block_size)
        end = min(pool.block_size, end_slot - place * pool.block_size)
        pool.storage[block, :, :, first:end] = blocks[place, :, :, first:end]


def as_stored(pool: KVPool, blocks: Tensor) -> Tensor:
    """Swap heads and slots where the layout does; it is its own inverse."""
    return blocks if pool.layout == "NHD" else blocks.transpose(3, 4)
