"""The step's tensors: what the plain builder makes, and what the shape check refuses."""

import attrs
import pytest
import torch
from torch import Tensor

from kvproof.runtime.step_tensors import Chunk, StepTensors

BLOCK = 4
TENSORS = [field.name for field in attrs.fields(StepTensors) if field.type in {Tensor, "Tensor"}]


def two_requests(device: torch.device) -> StepTensors:
    """Return a step with a chunk of five tokens from position 3, and a decode at position 8."""
    chunks = [
        Chunk([10, 11, 12, 13, 14], [6, 2], start=3, samples=False),
        Chunk([20], [1, 5, 3, 4], start=8),
    ]
    return StepTensors.from_chunks(chunks, BLOCK, device)


def test_every_field_of_a_small_step(device: torch.device) -> None:
    """The padded and the compressed form say the same, and both leave out blocks not in use."""
    step = two_requests(device)

    assert step.input_ids.tolist() == [10, 11, 12, 13, 14, 20]
    assert step.positions.tolist() == [3, 4, 5, 6, 7, 8]
    assert step.slot_mapping.tolist() == [27, 8, 9, 10, 11, 12]
    assert step.query_start_loc.tolist() == step.cu_seqlens_q.tolist() == [0, 5, 6]
    assert step.seq_lens.tolist() == [8, 9]
    assert step.block_table.tolist() == [[6, 2, 0, 0], [1, 5, 3, 4]]
    assert step.kv_indptr.tolist() == [0, 2, 5]
    assert step.kv_indices.tolist() == [6, 2, 1, 5, 3]
    assert step.kv_last_page_len.tolist() == [4, 1]
    assert step.logits_indices.tolist() == [5]
    assert (step.max_query_len, step.max_seq_len) == (5, 9)
    assert (step.num_tokens, step.num_requests) == (6, 2)
    step.check()


@pytest.mark.parametrize(
    ("chunk", "message"),
    [
        (Chunk([], [1]), "got 0 tokens from position 0, expected at least one"),
        (Chunk([1], [1], start=-1), "from position -1"),
        (Chunk([1], [0]), r"got block_ids \(0,\), expected 1 or more"),
        (Chunk([1], [1], start=4), "got 1 blocks of 4, expected enough for 5 tokens"),
        (Chunk([1], []), "got 0 blocks of 4, expected enough for 1 tokens"),
    ],
)
def test_a_bad_chunk_is_refused(chunk: Chunk, message: str) -> None:
    """A chunk without tokens, on the null block, or beyond its blocks is refused."""
    with pytest.raises(ValueError, match=message):
        StepTensors.from_chunks([chunk], BLOCK)


def test_an_empty_step_is_refused() -> None:
    """A step that computes nothing is never built."""
    with pytest.raises(ValueError, match="chunks: got none"):
        StepTensors.from_chunks([], BLOCK)


@pytest.mark.parametrize("name", TENSORS)
def test_check_names_the_tensor(device: torch.device, name: str) -> None:
    """A tensor of the wrong type is named with both types."""
    step = two_requests(device)
    wrong = attrs.evolve(step, **{name: getattr(step, name).float()})

    with pytest.raises(TypeError, match=rf"{name}: got torch\.float32 of [12] dim.*, expected"):
        wrong.check()


@pytest.mark.parametrize(
    "name",
    [
        "positions",
        "slot_mapping",
        "query_start_loc",
        "block_table",
    ],
)
def test_check_names_the_length(device: torch.device, name: str) -> None:
    """A tensor with one entry too few is named with both lengths."""
    step = two_requests(device)
    wrong = attrs.evolve(step, **{name: getattr(step, name)[:-1]})

    with pytest.raises(ValueError, match=f"{name}: got length .*, expected .* for 6 tokens of 2"):
        wrong.check()


def test_check_names_the_device(device: torch.device) -> None:
    """A tensor on another device than the rest is named."""
    step = two_requests(device)
    wrong = attrs.evolve(step, seq_lens=step.seq_lens.to("meta"))

    with pytest.raises(ValueError, match="seq_lens: is on meta, input_ids on"):
        wrong.check()
