"""Paged attention in plain torch: gather a request's blocks by its table, then attend.

A step is split once, for all layers. Requests with one new token form one padded batch, in which
the query heads that share a KV head become query rows, so keys and values are never repeated. Every
other request, a prompt or a chunk of one, is attended on its own, without padding.

Blocks are gathered by ``index_select``: advanced indexing is several times slower on the CPU.
"""

from collections.abc import Sequence
from itertools import pairwise

import torch
from attrs import frozen
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from kvproof.runtime.kv_pool import NULL_BLOCK, KVPool
from kvproof.runtime.step_tensors import StepTensors


@frozen(eq=False)
class DecodeGroup:
    """All requests with one new token: ``D`` requests, each padded to ``W`` blocks.

    ``rows`` i64 [D] are their rows in the step; ``blocks`` i64 [D * W] their tables end to end, cut
    to the blocks in use and padded with the null block; ``last`` i64 [D] where in these each one's
    last block is; ``unused`` bool [D, block_size] the places in it past the last token; ``visible``
    bool [D, W * block_size] all places up to the last token.
    """

    rows: Tensor
    blocks: Tensor
    last: Tensor
    unused: Tensor
    visible: Tensor


@frozen(eq=False)
class PrefillRequest:
    """One request with ``n`` new tokens and ``L`` in all.

    ``rows`` are those of the new tokens, ``blocks`` i64 the blocks that hold all of them, and
    ``visible`` bool [n, L] is what each new token may see: the places up to its own.
    """

    rows: slice
    blocks: Tensor
    visible: Tensor


@frozen(eq=False)
class AttentionPlan:
    """How one step attends, the same in every layer."""

    decode: DecodeGroup | None
    prefills: Sequence[PrefillRequest]

    @classmethod
    def of(cls, batch: StepTensors, block_size: int) -> "AttentionPlan":
        """Return the plan of a step; reads its lengths, so it waits for the device once."""
        starts, lengths = batch.query_start_loc.tolist(), batch.seq_lens.tolist()
        counts = [end - start for start, end in pairwise(starts)]
        single = [index for index, count in enumerate(counts) if count == 1]
        longest = max((lengths[index] for index in single), default=0)
        return cls(
            decode=_decode_group(batch, single, longest, block_size) if single else None,
            prefills=tuple(
                _prefill_request(batch, index, slice(start, start + count), length, block_size)
                for index, (start, count, length) in enumerate(
                    zip(starts[:-1], counts, lengths, strict=True)
                )
                if count > 1
            ),
        )


def attend(query: Tensor, pool: KVPool, layer: int, plan: AttentionPlan) -> Tensor:
    """Return the attention output of one layer, ``[T, H, head_dim]``, of queries of that shape.

    The step's keys and values must be in the pool already. Rows of no request come out as zeros.
    """
    output = torch.zeros_like(query)
    keys, values = pool.k(layer), pool.v(layer)
    if plan.decode is not None:
        attended = _attend_decode(query[plan.decode.rows], keys, values, plan.decode)
        output.index_copy_(0, plan.decode.rows, attended)
    for request in plan.prefills:
        output[request.rows] = _attend_prefill(query[request.rows], keys, values, request)
    return output


def _decode_group(
    batch: StepTensors, requests: list[int], longest: int, block_size: int
) -> DecodeGroup:
    chosen = torch.tensor(requests, device=batch.seq_lens.device)
    lengths = batch.seq_lens[chosen].long()
    column = torch.arange(-(-longest // block_size), device=chosen.device)
    place = torch.arange(len(column) * block_size, device=chosen.device)
    visible = place < lengths[:, None]
    last_column = (lengths - 1) // block_size
    last = last_column + len(column) * torch.arange(len(chosen), device=chosen.device)
    table = batch.block_table[chosen, : len(column)].long()
    return DecodeGroup(
        rows=batch.query_start_loc[chosen].long(),
        blocks=table.masked_fill(column > last_column[:, None], NULL_BLOCK).flatten(),
        last=last,
        unused=~visible.view(-1, block_size)[last],
        visible=visible,
    )


def _prefill_request(
    batch: StepTensors, index: int, rows: slice, length: int, block_size: int
) -> PrefillRequest:
    place = torch.arange(length, device=batch.positions.device)
    return PrefillRequest(
        rows=rows,
        blocks=batch.block_table[index, : -(-length // block_size)].long(),
        visible=place <= batch.positions[rows, None],
    )


def _attend_decode(query: Tensor, keys: Tensor, values: Tensor, group: DecodeGroup) -> Tensor:
    requests, (kv_heads, head_dim) = len(group.rows), keys.shape[2:]
    attended = scaled_dot_product_attention(
        query.view(requests, kv_heads, -1, head_dim),
        _gather_group(keys, group),
        _gather_group(values, group),
        attn_mask=group.visible[:, None, None, :],
    )
    return attended.reshape(requests, -1, head_dim)


def _gather_group(entries: Tensor, group: DecodeGroup) -> Tensor:
    """Return all entries, ``[D, kv_heads, W * block_size, head_dim]``, with zeros where unused."""
    gathered = entries.index_select(0, group.blocks)
    # Places past the last token are weighted zero, but zero times NaN is NaN. They lie in the last
    # block and in null blocks, which are zero, so one block a request needs clearing.
    last = gathered.index_select(0, group.last)
    last.masked_fill_(group.unused[:, :, None, None], 0)
    gathered.index_copy_(0, group.last, last)
    return gathered.view(*group.visible.shape, *entries.shape[2:]).transpose(1, 2)


def _attend_prefill(query: Tensor, keys: Tensor, values: Tensor, request: PrefillRequest) -> Tensor:
    length, heads = request.visible.shape[1], query.shape[1]
    attended = scaled_dot_product_attention(
        query.transpose(0, 1)[None],
        _gather_heads(keys, request.blocks, length, heads),
        _gather_heads(values, request.blocks, length, heads),
        attn_mask=request.visible,
    )
    return attended[0].transpose(0, 1)


def _gather_heads(entries: Tensor, blocks: Tensor, length: int, heads: int) -> Tensor:
    """Return the first ``length`` entries of ``blocks``, ``[1, heads, length, head_dim]``."""
    gathered = entries.index_select(0, blocks).flatten(0, 1)[:length].transpose(0, 1)
    return gathered.repeat_interleave(heads // len(gathered), dim=0)[None]
