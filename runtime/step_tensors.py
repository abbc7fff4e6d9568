"""What one step asks of the model, as tensors: the interface between a scheduler and an engine.

Names and types are those that paged attention kernels take: padded tables (``block_table``,
``seq_lens``) and the compressed form of the same thing (``kv_indptr``, ``kv_indices``,
``kv_last_page_len``), side by side.

A scheduler fills these incrementally. ``StepTensors.from_chunks`` builds the same thing the plain
way, from one small record a request: to drive an engine by hand, and to check a faster builder.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, partial
from itertools import accumulate
from typing import Self

import torch
from attrs import define, field, frozen
from torch import Tensor

_DTYPES = {
    "input_ids": torch.int64,
    "positions": torch.int64,
    "slot_mapping": torch.int64,
    "query_start_loc": torch.int32,
    "seq_lens": torch.int32,
    "block_table": torch.int32,
    "logits_indices": torch.int64,
}


def _as_tuple(numbers: Iterable[int]) -> tuple[int, ...]:
    return tuple(numbers)


@frozen
class Chunk:
    """The tokens of one request that one step computes.

    ``start`` is the position of the first one, and so the number of tokens whose keys and values
    are in the pool already. ``block_ids`` is the request's whole table, in order. ``samples`` says
    whether the logits of the last token are wanted.
    """

    token_ids: tuple[int, ...] = field(converter=_as_tuple)
    block_ids: tuple[int, ...] = field(converter=_as_tuple)
    start: int = 0
    samples: bool = True

    @property
    def end(self) -> int:
        """Tokens in the pool once the step has run."""
        return self.start + len(self.token_ids)

    def check(self, block_size: int) -> None:
        """Raise ValueError unless the chunk can be run with blocks of ``block_size`` tokens."""
        if not self.token_ids or self.start < 0:
            raise ValueError(
                f"chunk: got {len(self.token_ids)} tokens from position {self.start}, expected at "
                "least one token, from position 0 or later"
            )
        if min(self.block_ids, default=1) < 1:
            raise ValueError(f"chunk: got block_ids {self.block_ids}, expected 1 or more in each")
        if len(self.block_ids) * block_size < self.end:
            raise ValueError(
                f"chunk: got {len(self.block_ids)} blocks of {block_size}, expected enough for "
                f"{self.end} tokens"
            )


@define(eq=False)  # made in each step, and a frozen one takes three times as long to make
class StepTensors:
    """One step of ``B`` requests and ``T`` tokens, all tensors on one device.

    A row of ``T`` that belongs to no request (buffers of fixed size end in some) has slot -1, token
    0 and position 0.

    - ``input_ids``: i64 [T], the tokens to compute, request after request.
    - ``positions``: i64 [T], the place of each in its request, from 0.
    - ``slot_mapping``: i64 [T], where the key and value of each go; -1 is padding.
    - ``query_start_loc``: i32 [B + 1], request i has the rows from entry i to before entry i + 1.
    - ``seq_lens``: i32 [B], tokens of each request in the pool after this step.
    - ``block_table``: i32 [B, W], blocks of each request in order, padded with the null block 0.
    - ``logits_indices``: i64 [S], row of the last token of every request that samples; before it,
      the row ahead of each draft token that the request tries.
    - ``block_size``: tokens that one block holds.
    - ``max_query_len``: the most rows that one request has.
    - ``max_seq_len``: the largest of ``seq_lens``.
    """

    input_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    query_start_loc: Tensor
    seq_lens: Tensor
    block_table: Tensor
    logits_indices: Tensor
    block_size: int
    max_query_len: int
    max_seq_len: int

    @cached_property
    def _pages(self) -> Tensor:
        """Blocks of each request that hold its tokens, i32 [B]."""
        return (self.seq_lens + (self.block_size - 1)).div(self.block_size, rounding_mode="floor")

    @cached_property
    def kv_indptr(self) -> Tensor:
        """i32 [B + 1], as ``query_start_loc``, for ``kv_indices``; built when first asked for."""
        starts = torch.zeros(self.num_requests + 1, dtype=torch.int32, device=self._pages.device)
        torch.cumsum(self._pages, 0, dtype=torch.int32, out=starts[1:])
        return starts

    @cached_property
    def kv_indices(self) -> Tensor:
        """i32, the blocks that hold those tokens, request after request, unpadded."""
        width = torch.arange(self.block_table.shape[1], device=self._pages.device)
        return self.block_table[width < self._pages[:, None]]

    @cached_property
    def kv_last_page_len(self) -> Tensor:
        """i32 [B], tokens in the last block of each request, 1 to block_size."""
        return (self.seq_lens - 1).remainder(self.block_size) + 1

    @property
    def cu_seqlens_q(self) -> Tensor:
        """``query_start_loc`` by the name that variable-length attention kernels use."""
        return self.query_start_loc

    @property
    def num_tokens(self) -> int:
        """``T``, padding included."""
        return len(self.input_ids)

    @property
    def num_requests(self) -> int:
        """``B``."""
        return len(self.seq_lens)

    def check(self) -> None:
        """Raise TypeError or ValueError if a dtype, a length or a device disagrees with the rest.

        Only shapes are looked at, never values, so it does not wait for a device.
        """
        for name, dtype in _DTYPES.items():
            _check_tensor(name, getattr(self, name), dtype, self.input_ids.device)
        tokens, requests = self.num_tokens, self.num_requests
        lengths = {
            "positions": tokens,
            "slot_mapping": tokens,
            "query_start_loc": requests + 1,
            "block_table": requests,
        }
        for name, expected in lengths.items():
            _check_length(name, len(getattr(self, name)), expected, tokens, requests)

    @classmethod
    def from_chunks(
        cls, chunks: Sequence[Chunk], block_size: int, device: torch.device | str = "cpu"
    ) -> Self:
        """Return the step that computes ``chunks`` together, one request each.

        Raises ValueError for no chunk, or one that its own ``check`` refuses.
        """
        _check_chunks(chunks, block_size)
        int32, int64 = _maker(torch.int32, device), _maker(torch.int64, device)
        counts = [len(chunk.token_ids) for chunk in chunks]
        starts = list(accumulate(counts, initial=0))
        sampled = [end - 1 for end, chunk in zip(starts[1:], chunks, strict=True) if chunk.samples]
        return cls(
            input_ids=int64([t for c in chunks for t in c.token_ids]),
            positions=int64([p for c in chunks for p in range(c.start, c.end)]),
            slot_mapping=int64([s for c in chunks for s in _slots(c, block_size)]),
            query_start_loc=int32(starts),
            seq_lens=int32([chunk.end for chunk in chunks]),
            block_table=int32(_padded([chunk.block_ids for chunk in chunks])),
            logits_indices=int64(sampled),
            block_size=block_size,
            max_query_len=max(counts),
            max_seq_len=max(chunk.end for chunk in chunks),
        )


def _maker(dtype: torch.dtype, device: torch.device | str) -> Callable[[object], Tensor]:
    return partial(torch.tensor, dtype=dtype, device=device)


def _slots(chunk: Chunk, block_size: int) -> list[int]:
    return [
        chunk.block_ids[position // block_size] * block_size + position % block_size
        for position in range(chunk.start, chunk.end)
    ]


def _padded(tables: Sequence[tuple[int, ...]]) -> list[list[int]]:
    width = max(map(len, tables))
    return [[*table, *[0] * (width - len(table))] for table in tables]


def _check_chunks(chunks: Sequence[Chunk], block_size: int) -> None:
    if not chunks:
        raise ValueError(
            "chunks: got none, expected at least one; a step with nothing to compute has no tensors"
        )
    for chunk in chunks:
        chunk.check(block_size)


def _check_tensor(name: str, tensor: Tensor, dtype: torch.dtype, device: torch.device) -> None:
    dimensions = 2 if name == "block_table" else 1
    if tensor.dtype != dtype or tensor.dim() != dimensions:
        raise TypeError(
            f"{name}: got {tensor.dtype} of {tensor.dim()} dimensions, expected {dtype} of "
            f"{dimensions}"
        )
    if tensor.device != device:
        raise ValueError(f"{name}: is on {tensor.device}, input_ids on {device}; move it")


def _check_length(name: str, length: int, expected: int, tokens: int, requests: int) -> None:
    if length != expected:
        raise ValueError(
            f"{name}: got length {length}, expected {expected} for {tokens} tokens of {requests} "
            "requests"
        )
