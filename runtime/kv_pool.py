"""The KV memory: one allocation, cut into blocks, with per-layer views.

Storage is block-major, ``[num_blocks, num_layers, 2, block_size, kv_heads, head_dim]``. A block is
one contiguous run of bytes across all layers, so it moves, transfers and poisons in one piece. A
kernel sees one layer as ``[num_blocks, 2, block_size, kv_heads, head_dim]`` whatever the layout;
"HND" changes strides, never shapes.

A *slot* is one token's place, ``block * block_size + offset``. Block 0 is the *null block*: padding
points at it, it always holds zeros, and nobody owns it.

With ``debug=True`` blocks that nobody has written hold NaN, and slots carry their writer's stamp.
"""

from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from kvproof.runtime.kv_geometry import KVGeometry, fraction_of_free
from kvproof.runtime.slot_stamps import SlotStamps, StaleRead

__all__ = ["NULL_BLOCK", "PADDING_SLOT", "KVPool", "Layout", "StaleRead"]

Layout = Literal["NHD", "HND"]

NULL_BLOCK = 0
PADDING_SLOT = -1


class KVPool:
    """Key and value memory for ``num_blocks`` blocks, the null block included, of every layer.

    ``storage`` is the allocation itself; ``num_blocks_poisoned`` counts how often ``poison`` has
    filled a block. Raises ValueError for a bad size, layout or dtype, and MemoryError for a pool
    larger than the memory available now; then nothing has been allocated.
    """

    def __init__(
        self,
        num_layers: int,
        num_blocks: int,
        num_kv_heads: int,
        head_dim: int,
        block_size: int = 16,
        *,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cpu",
        layout: Layout = "NHD",
        debug: bool = False,
    ) -> None:
        geometry = KVGeometry(num_layers, num_kv_heads, head_dim, block_size, dtype)
        _check_choices(num_blocks, layout)
        geometry.check_fits(num_blocks, torch.device(device))
        self.geometry, self.layout = geometry, layout
        self.num_layers, self.num_blocks, self.num_kv_heads = num_layers, num_blocks, num_kv_heads
        self.head_dim, self.block_size, self.dtype = head_dim, block_size, dtype
        self.storage = _allocate(geometry, num_blocks, layout, device)
        self.device = self.storage.device
        self.num_blocks_poisoned = 0
        self._stamps = SlotStamps(num_blocks, block_size, self.device) if debug else None
        if debug:
            self.storage[NULL_BLOCK + 1 :] = float("nan")

    @staticmethod
    def num_blocks_for(
        budget_bytes: int,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
    ) -> int:
        """Return the largest ``num_blocks`` whose pool fits into ``budget_bytes``.

        Raises ValueError for a bad size, or if the null block and one more do not fit.
        """
        geometry = KVGeometry(num_layers, num_kv_heads, head_dim, block_size, dtype)
        return geometry.num_blocks_for(budget_bytes)

    @classmethod
    def from_memory_fraction(
        cls,
        memory_fraction: float,
        *,
        num_layers: int,
        num_kv_heads: int,
        head_dim: int,
        block_size: int = 16,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str = "cuda",
        layout: Layout = "NHD",
        debug: bool = False,
    ) -> "KVPool":
        """Return a pool that takes ``memory_fraction`` (above 0, at most 1) of free CUDA memory.

        Raises ValueError on a CPU device, and for everything that ``KVPool`` refuses.
        """
        geometry = KVGeometry(num_layers, num_kv_heads, head_dim, block_size, dtype)
        budget_bytes = fraction_of_free(memory_fraction, torch.device(device))
        num_blocks = geometry.num_blocks_for(budget_bytes)
        return cls(
            num_layers,
            num_blocks,
            num_kv_heads,
            head_dim,
            block_size,
            dtype=dtype,
            device=device,
            layout=layout,
            debug=debug,
        )

    @property
    def debug(self) -> bool:
        """Whether slots are stamped and unwritten blocks hold NaN."""
        return self._stamps is not None

    @property
    def block_bytes(self) -> int:
        """Bytes of one block: keys and values of ``block_size`` tokens in all layers."""
        return self.geometry.block_bytes

    @property
    def num_slots(self) -> int:
        """Number of slots, those of the null block included."""
        return self.num_blocks * self.block_size

    @property
    def num_usable_blocks(self) -> int:
        """Number of blocks that requests can hold: all but the null block."""
        return self.num_blocks - 1

    @property
    def data_ptr(self) -> int:
        """Address of the first byte; block ``b`` begins at ``data_ptr + b * block_bytes``."""
        return self.storage.data_ptr()

    def usage(self, free_blocks: int) -> float:
        """Return the share of usable blocks in use, 0.0 to 1.0, given how many are free.

        Raises ValueError for a count that this pool cannot have.
        """
        if not 0 <= free_blocks <= self.num_usable_blocks:
            raise ValueError(
                f"free_blocks: got {free_blocks}, expected 0 to {self.num_usable_blocks}; the null "
                "block is never free"
            )
        return 1.0 - free_blocks / self.num_usable_blocks

    def layer(self, index: int) -> Tensor:
        """Return a view of one layer, ``[num_blocks, 2, block_size, kv_heads, head_dim]``.

        Raises IndexError for a layer that the pool does not have.
        """
        if not 0 <= index < self.num_layers:
            raise IndexError(f"layer: got {index}, expected 0 to {self.num_layers - 1}")
        return self.storage[:, index]

    def k(self, index: int) -> Tensor:
        """Return a view of one layer's keys, ``[num_blocks, block_size, kv_heads, head_dim]``."""
        return self.layer(index)[:, 0]

    def v(self, index: int) -> Tensor:
        """Return a view of one layer's values, ``[num_blocks, block_size, kv_heads, head_dim]``."""
        return self.layer(index)[:, 1]

    def write(self, layer: int, key: Tensor, value: Tensor, slot_mapping: Tensor) -> None:
        """Scatter ``key`` and ``value``, ``[T, kv_heads, head_dim]``, to slots, i64 ``[T]``.

        Slot -1 is padding, its row is skipped. Raises IndexError, TypeError or ValueError before
        anything is written. Slot values are checked on the CPU and in debug mode only: elsewhere
        the check would make the host wait for the device.
        """
        keys, values = self.k(layer), self.v(layer)
        self._check_slots(slot_mapping)
        self._check_entries("key", key, len(slot_mapping))
        self._check_entries("value", value, len(slot_mapping))
        # Padding rows put zeros into the null block, which holds zeros already. Dropping them
        # instead would need their number, and so a wait for the device.
        padding = slot_mapping < 0
        slots = slot_mapping.masked_fill(padding, 0)
        place = (slots // self.block_size, slots % self.block_size)
        keys.index_put_(place, key.masked_fill(padding[:, None, None], 0))
        values.index_put_(place, value.masked_fill(padding[:, None, None], 0))

    def poison(self, block_ids: Tensor | Sequence[int]) -> None:
        """Fill freed blocks with NaN and forget who wrote them, so that a late read is loud.

        Raises ValueError for the null block or an unknown one, RuntimeError without ``debug``.
        """
        stamps = self._debug_stamps("poison")
        blocks = torch.as_tensor(block_ids, dtype=torch.int64, device=self.device)
        self._check_blocks(blocks)
        self.storage.index_fill_(0, blocks, float("nan"))
        stamps.forget(blocks)
        self.num_blocks_poisoned += len(blocks)

    def stamp(self, slot_mapping: Tensor, owners: Tensor, positions: Tensor) -> None:
        """Record the owner and position that each slot is written for, i64 ``[T]`` each.

        Slot -1 is skipped. Raises ValueError for a bad slot or one given to two tokens, and
        RuntimeError without ``debug``.
        """
        stamps = self._debug_stamps("stamp")
        self._check_slots(slot_mapping)
        stamps.record(slot_mapping, owners, positions)

    def verify_owner(self, block_table: Tensor, seq_lens: Tensor, owners: Tensor) -> None:
        """Raise StaleRead if a request would read a slot not stamped with its owner and position.

        Call it between ``stamp`` and the model. ``block_table`` is ``[B, W]``, ``seq_lens``
        ``[B]``; ``owners`` is i64 ``[B]``, or ``[B, L]`` with an owner for each position where
        requests share blocks. Raises ValueError for a table too narrow for its tokens or one that
        names an unknown block, and RuntimeError without ``debug``.
        """
        stamps = self._debug_stamps("verify_owner")
        if ((block_table < NULL_BLOCK) | (block_table >= self.num_blocks)).any():
            raise ValueError(f"block_table: expected blocks 0 to {self.num_blocks - 1} only")
        stamps.verify(block_table, seq_lens, owners)

    def _debug_stamps(self, method: str) -> SlotStamps:
        if self._stamps is None:
            raise RuntimeError(f"{method} needs owner stamps: make the pool with debug=True")
        return self._stamps

    def _check_entries(self, name: str, entries: Tensor, count: int) -> None:
        expected = (count, self.num_kv_heads, self.head_dim)
        if tuple(entries.shape) != expected:
            raise ValueError(
                f"{name}: got shape {tuple(entries.shape)}, expected {expected}, that is (slots, "
                "kv_heads, head_dim)"
            )
        if entries.dtype != self.dtype:
            raise TypeError(f"{name}: got {entries.dtype}, expected {self.dtype}; convert it")

    def _check_slots(self, slots: Tensor) -> None:
        if slots.dtype != torch.int64 or slots.dim() != 1:
            raise TypeError(
                f"slot_mapping: got {slots.dtype} of {slots.dim()} dimensions, expected "
                "torch.int64 of 1"
            )
        if self.device.type == "cpu" or self.debug:
            in_null_block = (slots >= 0) & (slots < self.block_size)
            bad = in_null_block | (slots < PADDING_SLOT) | (slots >= self.num_slots)
            _refuse("slot_mapping", slots[bad], self.block_size, self.num_slots, " (-1 is padding)")

    def _check_blocks(self, blocks: Tensor) -> None:
        bad = (blocks <= NULL_BLOCK) | (blocks >= self.num_blocks)
        _refuse("block_ids", blocks[bad], NULL_BLOCK + 1, self.num_blocks)


def _check_choices(num_blocks: int, layout: str) -> None:
    if num_blocks < 2:
        raise ValueError(
            f"num_blocks: got {num_blocks}, expected at least 2; block 0 is the null block, so ask "
            "for one more than you mean to use"
        )
    if layout not in {"NHD", "HND"}:
        raise ValueError(f"layout: got {layout!r}, expected 'NHD' or 'HND'")


def _allocate(
    geometry: KVGeometry, num_blocks: int, layout: Layout, device: torch.device | str
) -> Tensor:
    inner = (geometry.block_size, geometry.num_kv_heads)
    inner = inner if layout == "NHD" else inner[::-1]
    shape = (num_blocks, geometry.num_layers, 2, *inner, geometry.head_dim)
    storage = torch.zeros(shape, dtype=geometry.dtype, device=device)
    return storage if layout == "NHD" else storage.transpose(3, 4)


def _refuse(name: str, bad: Tensor, first: int, end: int, also: str = "") -> None:
    if len(bad):
        raise ValueError(
            f"{name}: got {int(bad[0])}, expected {first} to {end - 1}{also}; block 0 is the null "
            "block and is never written"
        )
