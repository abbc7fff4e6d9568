"""Weights: random ones depend on the seed only, those of a file are stacked as the engine needs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from kvproof.runtime.engine.config import LlamaConfig
from kvproof.runtime.engine.gguf import GGUFError, GGUFFile
from kvproof.runtime.engine.weights import Weights, gguf_weights, random_weights

WriteGGUF = Callable[..., Path]


def load(path: Path) -> Weights:
    """Load the weights of a file in float32 on the CPU."""
    file = GGUFFile(path)
    config = LlamaConfig.from_gguf(file)
    return gguf_weights(file, config, torch.device("cpu"), torch.float32)


def test_random_weights_depend_on_the_seed_only(device: torch.device) -> None:
    """The same seed gives the same weights on every device, another seed gives others."""
    config = LlamaConfig.tiny()
    first, second, other = (
        random_weights(config, seed, where, torch.float32)
        for seed, where in ((1, torch.device("cpu")), (1, device), (2, device))
    )

    assert torch.equal(first.layers[1].down, second.layers[1].down.cpu())
    assert not torch.equal(first.layers[1].down, other.layers[1].down.cpu())
    assert float(first.embedding.std()) == pytest.approx(0.25, rel=0.05)


def test_file_weights_are_stacked_in_order(
    write_gguf: WriteGGUF, llama_metadata: dict[str, Any], llama_tensors: dict[str, Any]
) -> None:
    """Query, key and value rows follow each other, and so do gate and up."""
    path = write_gguf(llama_metadata, llama_tensors)
    layer, file = load(path).layers[0], GGUFFile(path)

    rows = [file.values(f"blk.0.attn_{name}.weight") for name in "qkv"]
    assert np.array_equal(layer.qkv.numpy(), np.concatenate(rows))
    rows = [file.values(f"blk.0.ffn_{name}.weight") for name in ("gate", "up")]
    assert np.array_equal(layer.gate_up.numpy(), np.concatenate(rows))


def test_output_falls_back_to_the_embedding(
    write_gguf: WriteGGUF, llama_metadata: dict[str, Any], llama_tensors: dict[str, Any]
) -> None:
    """A file without an output matrix ties it to the embedding, one with it does not."""
    tied = load(write_gguf(llama_metadata, llama_tensors))
    assert tied.output is tied.embedding

    values = llama_tensors["token_embd.weight"][0] + 1
    untied = load(write_gguf(llama_metadata, llama_tensors | {"output.weight": (values, 0)}))
    assert np.array_equal(untied.output.numpy(), values)


def test_a_missing_tensor_is_named(
    write_gguf: WriteGGUF, llama_metadata: dict[str, Any], llama_tensors: dict[str, Any]
) -> None:
    """A file that lacks a tensor is refused with the tensor's name."""
    del llama_tensors["blk.0.ffn_up.weight"]
    with pytest.raises(GGUFError, match=r"no tensor 'blk\.0\.ffn_up\.weight'"):
        load(write_gguf(llama_metadata, llama_tensors))


@pytest.mark.parametrize("name", ["blk.0.attn_q.bias", "rope_freqs.weight"])
def test_a_variant_is_refused(
    write_gguf: WriteGGUF,
    llama_metadata: dict[str, Any],
    llama_tensors: dict[str, Any],
    name: str,
) -> None:
    """A tensor that this engine would leave out is an error, because the text would change."""
    tensors = llama_tensors | {name: (np.ones(32), 0)}
    with pytest.raises(GGUFError, match="are not part of a plain Llama"):
        load(write_gguf(llama_metadata, tensors))


def test_a_wrong_shape_is_named(
    write_gguf: WriteGGUF, llama_metadata: dict[str, Any], llama_tensors: dict[str, Any]
) -> None:
    """A tensor that does not have the shape the metadata implies is refused with both shapes."""
    tensors = llama_tensors | {"blk.0.attn_k.weight": (np.ones((32, 32)), 0)}
    with pytest.raises(GGUFError, match=r"got shape \(32, 32\), expected \(16, 32\)"):
        load(write_gguf(llama_metadata, tensors))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"general.architecture": "gemma"}, "got architecture 'gemma', expected 'llama'"),
        ({"llama.attention.head_count_kv": 3}, "num_heads: got 4, expected a multiple of num_kv"),
        ({"llama.rope.dimension_count": 7}, "head_dim: got 7, expected an even number"),
        ({"llama.block_count": 0}, "num_layers: got 0, expected more than 0"),
    ],
)
def test_a_config_that_makes_no_sense_is_refused(
    write_gguf: WriteGGUF, llama_metadata: dict[str, Any], wrong: dict[str, Any], message: str
) -> None:
    """Another architecture, and sizes that do not go together, are refused by name."""
    with pytest.raises(ValueError, match=message):
        LlamaConfig.from_gguf(GGUFFile(write_gguf(llama_metadata | wrong)))
