"""Loading a model: a random one, one from a file, and what cannot be loaded."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from kvproof.runtime.engine import GGUFError, LlamaConfig, generate, load_model

WriteGGUF = Callable[..., Path]


def test_a_file_gives_a_whole_model(
    device: torch.device,
    write_gguf: WriteGGUF,
    llama_metadata: dict[str, Any],
    llama_tensors: dict[str, Any],
) -> None:
    """Config, weights and tokenizer of one file make a model that turns text into text."""
    model = load_model(write_gguf(llama_metadata, llama_tensors), device=device)

    tokens = generate(model, model.tokenizer.encode("the sea"), 5, ignore_eos=True)

    assert len(tokens) == 5
    assert model.eos_token_id == 1
    assert isinstance(model.tokenizer.decode(tokens), str)
    assert model.config == LlamaConfig(
        vocabulary_size=len(llama_metadata["tokenizer.ggml.tokens"]),
        hidden_size=32,
        num_layers=1,
        num_heads=4,
        num_kv_heads=2,
        head_dim=8,
        intermediate_size=64,
        context_length=128,
    )


def test_without_a_file_the_model_is_random_by_seed() -> None:
    """The same seed gives the same text, another seed gives another one."""
    texts = [generate(load_model(seed=seed), [1, 2], 12, ignore_eos=True) for seed in (0, 0, 1)]

    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def test_new_pool_suits_the_model(device: torch.device) -> None:
    """A new pool has the model's sizes, dtype and device, or the device that is asked for."""
    model = load_model(device=device, dtype=torch.float64)

    pool = model.new_pool(5, 8, debug=True)

    assert (pool.num_layers, pool.num_blocks, pool.block_size) == (2, 5, 8)
    assert (pool.num_kv_heads, pool.head_dim, pool.debug) == (2, 16, True)
    assert (pool.dtype, pool.device) == (torch.float64, model.device)
    assert model.new_pool(5, device="cpu").device == torch.device("cpu")


def test_a_config_with_a_file_is_refused(tmp_path: Path) -> None:
    """The file states its own sizes, so others beside it would have no effect."""
    with pytest.raises(ValueError, match="config: got one and a path"):
        load_model(tmp_path / "model.gguf", config=LlamaConfig.tiny())


def test_what_is_no_model_is_refused(tmp_path: Path) -> None:
    """A missing file and one that is no GGUF file are told apart."""
    with pytest.raises(FileNotFoundError):
        load_model(tmp_path / "none.gguf")
    other = tmp_path / "model.whl"
    other.write_bytes(b"PK\3\4 a zip file")
    with pytest.raises(GGUFError, match="this is not a GGUF file"):
        load_model(other)
