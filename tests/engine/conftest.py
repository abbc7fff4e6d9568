"""What the engine's tests share: a writer of small GGUF files, and a whole model in one."""

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

F32, F16, Q4_1, Q8_0 = 0, 1, 3, 8


def string_bytes(text: str) -> bytes:
    """Return a length-prefixed string."""
    return struct.pack("<Q", len(text.encode())) + text.encode()


def value_bytes(value: Any) -> bytes:
    """Return a metadata value, its type number first."""
    match value:
        case bool():
            return struct.pack("<I?", 7, value)
        case int():
            return struct.pack("<Iq", 11, value)
        case float():
            return struct.pack("<Id", 12, value)
        case str():
            return struct.pack("<I", 8) + string_bytes(value)
        case list():
            items = [value_bytes(item) for item in value]
            item_type = items[0][:4] if items else struct.pack("<I", 8)
            return (
                struct.pack("<I", 9)
                + item_type
                + struct.pack("<Q", len(items))
                + b"".join(item[4:] for item in items)
            )
    raise TypeError(value)


def stored_bytes(values: Any, type_number: int) -> bytes:
    """Return the values in one of the storage types, blocks of 32 rounded to the nearest."""
    if type_number in {F32, F16}:
        return bytes(np.asarray(values, "<f4" if type_number == F32 else "<f2").tobytes())
    blocks = np.asarray(values, np.float32).reshape(-1, 32)
    if type_number == Q8_0:
        scale = (np.abs(blocks).max(axis=1, keepdims=True) / 127).astype("<f2")
        codes = np.rint(blocks / np.where(scale == 0, 1, scale).astype(np.float32))
        pieces = zip(scale, codes.clip(-127, 127).astype(np.int8), strict=True)
        return b"".join(s.tobytes() + c.tobytes() for s, c in pieces)
    least = blocks.min(axis=1, keepdims=True).astype("<f2")
    scale = ((blocks.max(axis=1, keepdims=True) - least) / 15).astype("<f2")
    codes = np.rint((blocks - least) / np.where(scale == 0, 1, scale).astype(np.float32))
    codes = codes.clip(0, 15).astype(np.uint8)
    pairs = codes[:, :16] | codes[:, 16:] << 4
    return b"".join(
        s.tobytes() + m.tobytes() + p.tobytes() for s, m, p in zip(scale, least, pairs, strict=True)
    )


def padded(content: bytes, alignment: int) -> bytes:
    """Return the content, filled with zeros to the alignment."""
    return content + bytes(-len(content) % alignment)


def gguf_bytes(
    metadata: Mapping[str, Any], tensors: Mapping[str, tuple[Any, int]], version: int = 3
) -> bytes:
    """Return a GGUF file; each tensor is an array and the number of its storage type."""
    alignment = metadata.get("general.alignment", 32) or 1
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(metadata))
    for key, value in metadata.items():
        header += string_bytes(key) + value_bytes(value)
    body = b""
    for name, (values, type_number) in tensors.items():
        shape = np.shape(values)[::-1]
        header += string_bytes(name) + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
        header += struct.pack("<IQ", type_number, len(body))
        body = padded(body + stored_bytes(values, type_number), alignment)
    return padded(header, alignment) + body


WriteGGUF = Callable[..., Path]


@pytest.fixture
def write_gguf(tmp_path: Path) -> WriteGGUF:
    """Return a function that writes a GGUF file from metadata and tensors, and gives its path."""

    def write(
        metadata: Mapping[str, Any],
        tensors: Mapping[str, tuple[Any, int]] | None = None,
        version: int = 3,
    ) -> Path:
        path = tmp_path / "small.gguf"
        path.write_bytes(gguf_bytes(metadata, tensors or {}, version))
        return path

    return write


@pytest.fixture
def tokenizer_metadata() -> dict[str, Any]:
    """Return the metadata of a byte-level tokenizer: two control tokens, letters, three merges."""
    control = ["<|im_start|>", "<|im_end|>"]
    # Byte-level BPE writes a space as U+0120 and a line feed as U+010A.
    letters = [*"abcdefghijklmnopqrstuvwxyz", *"ABCDEFGHIJKLMNOPQRSTUVWXYZ", *"0123456789"]
    letters += ["\u0120", "\u010a", ".", ",", "?"]
    merged = ["th", "the", "\u0120the"]
    tokens = control + letters + merged
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "smollm",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(control) + [1] * (len(tokens) - len(control)),
        "tokenizer.ggml.merges": ["t h", "th e", "\u0120 the"],
        "tokenizer.ggml.eos_token_id": 1,
    }


@pytest.fixture
def llama_metadata(tokenizer_metadata: dict[str, Any]) -> dict[str, Any]:
    """Return the metadata of a one-layer Llama of width 32 with that tokenizer."""
    return tokenizer_metadata | {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.context_length": 128,
        "llama.embedding_length": 32,
        "llama.feed_forward_length": 64,
        "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.freq_base": 10_000.0,
        "llama.rope.dimension_count": 8,
    }


@pytest.fixture
def llama_tensors(tokenizer_metadata: dict[str, Any]) -> dict[str, tuple[Any, int]]:
    """Return tensors for that model, one in each storage type."""
    generator = np.random.default_rng(0)

    def matrix(outputs: int, inputs: int, type_number: int) -> tuple[Any, int]:
        return generator.normal(0, 0.5, (outputs, inputs)).astype(np.float32), type_number

    norm = np.linspace(0.5, 1.5, 32, dtype=np.float32)
    return {
        "token_embd.weight": matrix(len(tokenizer_metadata["tokenizer.ggml.tokens"]), 32, Q8_0),
        "blk.0.attn_norm.weight": (norm, F32),
        "blk.0.attn_q.weight": matrix(32, 32, Q4_1),
        "blk.0.attn_k.weight": matrix(16, 32, Q4_1),
        "blk.0.attn_v.weight": matrix(16, 32, F16),
        "blk.0.attn_output.weight": matrix(32, 32, F32),
        "blk.0.ffn_norm.weight": (norm, F32),
        "blk.0.ffn_gate.weight": matrix(64, 32, Q8_0),
        "blk.0.ffn_up.weight": matrix(64, 32, Q4_1),
        "blk.0.ffn_down.weight": matrix(32, 64, F16),
        "output_norm.weight": (norm, F32),
    }
