"""From the stored bytes of a tensor to float32.

A quantised tensor is a run of blocks of 32 values. Each block holds a scale, for Q4_1 a minimum
too, and one small integer a value: ``value = scale * integer + minimum``.
"""

from collections.abc import Callable

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]

_Q4_1_BLOCK = np.dtype([("scale", "<f2"), ("minimum", "<f2"), ("pairs", "u1", 16)])
_Q8_0_BLOCK = np.dtype([("scale", "<f2"), ("integers", "i1", 32)])


@frozen
class Quantization:
    """One way to store floats: ``block_bytes`` bytes hold ``block_values`` values."""

    name: str
    block_values: int
    block_bytes: int
    decode: Callable[[Bytes], Floats]

    def num_bytes(self, num_values: int) -> int:
        """Return the bytes that ``num_values`` values take.

        Raises ValueError if they do not fill whole blocks.
        """
        if num_values % self.block_values:
            raise ValueError(
                f"{self.name}: got {num_values} values, expected a multiple of {self.block_values}"
            )
        return num_values // self.block_values * self.block_bytes


def dequantize(stored: Bytes, quantization: Quantization, shape: tuple[int, ...]) -> Floats:
    """Return the values of a tensor, float32 of ``shape``, from its bytes, u8 ``[N]``.

    Raises ValueError if the bytes are not those of that many values.
    """
    expected = quantization.num_bytes(int(np.prod(shape, dtype=np.int64)))
    if len(stored) != expected:
        raise ValueError(
            f"{quantization.name}: got {len(stored)} bytes, expected {expected} for shape {shape}"
        )
    return quantization.decode(stored).reshape(shape)


def _decode_f32(stored: Bytes) -> Floats:
    return stored.view("<f4").astype(np.float32)


def _decode_f16(stored: Bytes) -> Floats:
    return stored.view("<f2").astype(np.float32)


def _decode_q4_1(stored: Bytes) -> Floats:
    blocks = stored.view(_Q4_1_BLOCK)
    # Byte j holds value j in its low half and value j + 16 in its high half.
    values = np.empty((len(blocks), 2, 16), dtype=np.float32)
    values[:, 0] = blocks["pairs"] & 0x0F
    values[:, 1] = blocks["pairs"] >> 4
    values *= blocks["scale"].astype(np.float32)[:, None, None]
    values += blocks["minimum"].astype(np.float32)[:, None, None]
    return values


def _decode_q8_0(stored: Bytes) -> Floats:
    blocks = stored.view(_Q8_0_BLOCK)
    values = blocks["integers"].astype(np.float32)
    values *= blocks["scale"].astype(np.float32)[:, None]
    return values


F32 = Quantization("F32", 1, 4, _decode_f32)
F16 = Quantization("F16", 1, 2, _decode_f16)
Q4_1 = Quantization("Q4_1", 32, _Q4_1_BLOCK.itemsize, _decode_q4_1)
Q8_0 = Quantization("Q8_0", 32, _Q8_0_BLOCK.itemsize, _decode_q8_0)

# By the number that a GGUF file gives each type.
QUANTIZATIONS = {0: F32, 1: F16, 3: Q4_1, 8: Q8_0}
