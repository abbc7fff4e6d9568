"""Paged attention against a plain loop over heads and tokens that knows no blocks."""

import attrs
import pytest
import torch
from torch import Tensor

from kvproof.runtime.engine.attention import AttentionPlan, attend
from kvproof.runtime.kv_pool import KVPool, Layout
from kvproof.runtime.step_tensors import Chunk, StepTensors

BLOCK, HEADS, KV_HEADS, HEAD_DIM, LAYER = 4, 4, 2, 8, 1
# Start and number of new tokens of each request: decodes of several lengths, block edges among
# them, a whole prompt, a chunk in the middle, and a decode at position 0.
REQUESTS = [(6, 1), (0, 9), (12, 1), (5, 4), (0, 1), (7, 1), (3, 1)]


def attend_plainly(query: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """Return the output for the last tokens of one request, from all of its keys and values."""
    output = torch.empty_like(query)
    start, group = len(keys) - len(query), query.shape[1] // keys.shape[1]
    for row in range(len(query)):
        for head in range(query.shape[1]):
            seen = slice(0, start + row + 1)
            scores = keys[seen, head // group] @ query[row, head] / keys.shape[-1] ** 0.5
            output[row, head] = scores.softmax(dim=0) @ values[seen, head // group]
    return output


def tables(requests: list[tuple[int, int]], spare: int = 0) -> list[list[int]]:
    """Return a table for each request, in scattered order, with ``spare`` blocks beyond its end."""
    counts = [-(-(start + new) // BLOCK) + spare for start, new in requests]
    blocks = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(0)) + 1
    return [part.tolist() for part in torch.split(blocks, counts)]


def run_step(
    device: torch.device,
    requests: list[tuple[int, int]],
    layout: Layout = "NHD",
    spare: int = 0,
) -> tuple[Tensor, Tensor]:
    """Return paged and plain output of one step over a pool whose unwritten slots are NaN."""
    generator = torch.Generator().manual_seed(1)
    block_tables = tables(requests, spare)
    pool = KVPool(
        2,
        64,
        KV_HEADS,
        HEAD_DIM,
        BLOCK,
        dtype=torch.float64,
        device=device,
        layout=layout,
        debug=True,
    )
    queries, expected, chunks = [], [], []
    for (start, new), table in zip(requests, block_tables, strict=True):
        shape = (2, start + new, KV_HEADS, HEAD_DIM)
        keys, values = torch.randn(shape, generator=generator, dtype=torch.float64).to(device)
        query = torch.randn(new, HEADS, HEAD_DIM, generator=generator, dtype=torch.float64).to(
            device
        )
        whole = StepTensors.from_chunks([Chunk([0] * (start + new), table)], BLOCK, device)
        pool.write(LAYER, keys, values, whole.slot_mapping)
        queries.append(query)
        expected.append(attend_plainly(query, keys, values))
        chunks.append(Chunk([0] * new, table, start=start))
    plan = AttentionPlan.of(StepTensors.from_chunks(chunks, BLOCK, device), BLOCK)
    return attend(torch.cat(queries), pool, LAYER, plan), torch.cat(expected)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("spare", [0, 2])
def test_mixed_step(device: torch.device, layout: Layout, spare: int) -> None:
    """Decodes, prompts and chunks of one step each see their own tokens up to their own position.

    Unwritten slots are NaN, so slots past the end and blocks held in advance are not seen either.
    """
    paged, plain = run_step(device, REQUESTS, layout, spare)

    assert torch.allclose(paged, plain, atol=1e-12)


@pytest.mark.parametrize("request_index", range(len(REQUESTS)))
def test_each_request_alone(device: torch.device, request_index: int) -> None:
    """Each kind of request is right without the others too."""
    paged, plain = run_step(device, [REQUESTS[request_index]])

    assert torch.allclose(paged, plain, atol=1e-12)


def test_rows_of_no_request_are_zero(device: torch.device) -> None:
    """Rows past the last request, as in buffers of fixed size, give zeros and disturb nobody."""
    pool = KVPool(1, 4, KV_HEADS, HEAD_DIM, BLOCK, device=device)
    step = StepTensors.from_chunks([Chunk([0], [1]), Chunk([0, 0], [2])], BLOCK, device)
    pool.layer(0).normal_()
    query = torch.randn(5, HEADS, HEAD_DIM, device=device)
    padded = attrs.evolve(step, input_ids=torch.zeros(5, dtype=torch.int64, device=device))

    output = attend(query, pool, 0, AttentionPlan.of(padded, BLOCK))

    assert not output[3:].any()
    assert torch.equal(output[:3], attend(query[:3], pool, 0, AttentionPlan.of(step, BLOCK)))
