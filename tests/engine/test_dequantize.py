"""Stored bytes to floats: exact where the type is exact, within half a step where it rounds."""

import struct
from typing import Any

import numpy as np
import pytest

from kvproof.runtime.engine.dequantize import F16, F32, Q4_1, Q8_0, Quantization, dequantize


def as_bytes(content: bytes) -> Any:
    """Return bytes as a u8 array."""
    return np.frombuffer(content, dtype=np.uint8)


@pytest.mark.parametrize(("quantization", "code"), [(F32, "<f4"), (F16, "<f2")])
def test_plain_floats_are_exact(quantization: Quantization, code: str) -> None:
    """Floats that the type can hold come back bit for bit, in the asked shape."""
    values = np.array([[0.0, -1.5, 65504.0], [2.0**-14, -0.0, 0.333]], dtype=code)

    restored = dequantize(as_bytes(values.tobytes()), quantization, (2, 3))

    assert restored.dtype == np.float32
    assert np.array_equal(restored, values.astype(np.float32))


def test_q4_1_order_of_halves() -> None:
    """Byte j of a block holds value j in its low half and value j + 16 in its high half."""
    block = struct.pack("<ee", 0.5, -2.0) + bytes(j | (15 - j) << 4 for j in range(16))

    restored = dequantize(as_bytes(block), Q4_1, (32,))

    expected = [0.5 * j - 2.0 for j in range(16)] + [0.5 * (15 - j) - 2.0 for j in range(16)]
    assert restored.tolist() == expected


def test_q8_0_is_scale_times_integer() -> None:
    """A block is one half-precision scale and 32 signed bytes."""
    block = struct.pack("<e32b", 0.25, *range(-16, 16))

    assert dequantize(as_bytes(block), Q8_0, (4, 8)).ravel().tolist() == [
        0.25 * j for j in range(-16, 16)
    ]


@pytest.mark.parametrize("quantization", [Q4_1, Q8_0])
def test_partial_blocks_and_wrong_sizes_are_refused(quantization: Quantization) -> None:
    """A shape that is not whole blocks, or bytes that are not that shape's, are refused."""
    block = as_bytes(bytes(quantization.block_bytes))

    with pytest.raises(ValueError, match="got 33 values, expected a multiple of 32"):
        dequantize(block, quantization, (33,))
    with pytest.raises(ValueError, match=f"bytes, expected {2 * quantization.block_bytes} for"):
        dequantize(block, quantization, (64,))
