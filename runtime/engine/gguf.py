"""Read a GGUF file: typed metadata and named tensors.

In the file: magic, version, two counts, metadata pairs, tensor descriptions, padding, tensor bytes;
all little-endian. It is memory-mapped, so opening it costs the header only and a tensor's bytes are
paged in when somebody reads them.
"""

import math
import struct
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import numpy as np
from attrs import frozen

from kvproof.runtime.engine.dequantize import (
    QUANTIZATIONS,
    Bytes,
    Floats,
    Quantization,
    dequantize,
)

Scalar = bool | int | float | str
Value = Scalar | list[Scalar]
Kind = TypeVar("Kind", bool, int, float, str)

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
_NUMBERS = dict(enumerate(("<u1", "<i1", "<u2", "<i2", "<u4", "<i4", "<f4", "?"))) | {
    10: "<u8",
    11: "<i8",
    12: "<f8",
}
_STRING, _ARRAY = 8, 9
_DIMENSIONS_MAX = 4


class GGUFError(ValueError):
    """A file is not a GGUF file that this engine can read; the message says where and why."""


@frozen
class TensorInfo:
    """Where a tensor lies: ``shape`` is row-major, ``offset`` counts from the start of the file."""

    name: str
    shape: tuple[int, ...]
    quantization: Quantization
    offset: int

    @property
    def num_bytes(self) -> int:
        """Bytes that the tensor takes in the file."""
        return self.quantization.num_bytes(math.prod(self.shape))


class GGUFFile:
    """An open GGUF file: ``metadata`` by key, ``tensors`` by name, values on demand.

    Raises FileNotFoundError if there is no file, and GGUFError for a wrong magic, an unknown
    version, an unsupported type, and a file that ends before what it announces.
    """

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path)
        self._bytes = _map(self.path)
        reader = _Reader(self._bytes, self.path)
        num_tensors, num_pairs = _read_counts(reader)
        self.metadata: Mapping[str, Value] = dict(_read_pairs(reader, num_pairs))
        tensors = list(_read_tensors(reader, num_tensors, self.get("general.alignment", int, 32)))
        self.tensors: Mapping[str, TensorInfo] = {tensor.name: tensor for tensor in tensors}
        _check_complete(self.path, tensors, len(self._bytes))

    def get(self, key: str, kind: type[Kind], default: Kind | None = None) -> Kind:
        """Return the metadata value of ``key`` as ``kind``: bool, int, float or str.

        Raises GGUFError if it is missing and has no default, or is of another kind.
        """
        value = self.metadata.get(key, default)
        if isinstance(value, kind):
            return value
        raise GGUFError(f"{self.path}: metadata {key!r}: {_seen(value)}, expected {kind.__name__}")

    def get_list(self, key: str, kind: type[Kind]) -> list[Kind]:
        """Return the metadata list of ``key``, whose items are all of ``kind``.

        Raises GGUFError if it is missing, no list, or has an item of another kind.
        """
        value = self.metadata.get(key)
        if isinstance(value, list):
            items = [item for item in value if isinstance(item, kind)]
            if len(items) == len(value):
                return items
        raise GGUFError(
            f"{self.path}: metadata {key!r}: {_seen(value)}, expected a list of {kind.__name__}"
        )

    def stored(self, name: str) -> Bytes:
        """Return the bytes of one tensor as they are stored, u8 ``[num_bytes]``, not copied.

        Raises GGUFError for a tensor that the file does not have.
        """
        if name not in self.tensors:
            raise GGUFError(
                f"{self.path}: no tensor {name!r}; it has {sorted(self.tensors)[:8]}..."
            )
        info = self.tensors[name]
        return self._bytes[info.offset : info.offset + info.num_bytes]

    def values(self, name: str) -> Floats:
        """Return the values of one tensor, float32 of its ``shape``.

        Raises GGUFError for a tensor that the file does not have.
        """
        stored = self.stored(name)
        info = self.tensors[name]
        return dequantize(stored, info.quantization, info.shape)


class _Reader:
    """A position in the file that only moves forward and never past the end."""

    def __init__(self, content: Bytes, path: Path) -> None:
        self._content, self._path, self.position = content.data, path, 0

    def fail(self, problem: str) -> GGUFError:
        return GGUFError(f"{self._path}: at byte {self.position}: {problem}")

    def take(self, count: int) -> memoryview:
        end = self.position + count
        if end > len(self._content):
            raise self.fail(
                f"needs {count} bytes more, the file ends after {len(self._content)}; it is "
                "truncated, fetch it again"
            )
        taken = self._content[self.position : end]
        self.position = end
        return taken

    def u32(self) -> int:
        return int(struct.unpack("<I", self.take(4))[0])

    def u64(self) -> int:
        return int(struct.unpack("<Q", self.take(8))[0])

    def string(self) -> str:
        try:
            return str(self.take(self.u64()), "utf-8")
        except UnicodeDecodeError as error:
            raise self.fail(f"a string is not UTF-8 ({error.reason})") from error

    def scalars(self, type_number: int, count: int) -> list[Scalar]:
        if type_number == _STRING:
            return [self.string() for _ in range(count)]
        if type_number not in _NUMBERS:
            raise self.fail(f"metadata type {type_number} is not supported")
        dtype = np.dtype(_NUMBERS[type_number])
        numbers: list[Scalar] = np.frombuffer(self.take(count * dtype.itemsize), dtype).tolist()
        return numbers

    def value(self, type_number: int) -> Value:
        if type_number == _ARRAY:
            item_type = self.u32()
            return self.scalars(item_type, self.u64())
        return self.scalars(type_number, 1)[0]


def _map(path: Path) -> Bytes:
    if path.stat().st_size < len(_MAGIC):
        raise GGUFError(f"{path}: got {path.stat().st_size} bytes, expected a GGUF file")
    return np.asarray(np.memmap(path, mode="r"))


def _read_counts(reader: _Reader) -> tuple[int, int]:
    magic = bytes(reader.take(len(_MAGIC)))
    if magic != _MAGIC:
        raise reader.fail(f"got magic {magic!r}, expected {_MAGIC!r}; this is not a GGUF file")
    version = reader.u32()
    if version not in _VERSIONS:
        raise reader.fail(
            f"got version {version}, expected one of {_VERSIONS}, little-endian; convert the file"
        )
    return reader.u64(), reader.u64()


def _read_pairs(reader: _Reader, count: int) -> Iterator[tuple[str, Value]]:
    for _ in range(count):
        key = reader.string()
        yield key, reader.value(reader.u32())


def _read_tensors(reader: _Reader, count: int, alignment: int) -> Iterable[TensorInfo]:
    if alignment < 1:
        raise reader.fail(f"general.alignment: got {alignment}, expected at least 1")
    described = [_read_tensor(reader) for _ in range(count)]
    start = -(-reader.position // alignment) * alignment
    for name, shape, quantization, offset in described:
        yield TensorInfo(name, shape, quantization, start + offset)


def _read_tensor(reader: _Reader) -> tuple[str, tuple[int, ...], Quantization, int]:
    name, dimensions = reader.string(), reader.u32()
    if dimensions > _DIMENSIONS_MAX:
        raise reader.fail(f"tensor {name!r}: got {dimensions} dimensions, expected at most 4")
    # The file lists the fastest dimension first.
    shape = tuple(reader.u64() for _ in range(dimensions))[::-1]
    type_number = reader.u32()
    if type_number not in QUANTIZATIONS:
        supported = [quantization.name for quantization in QUANTIZATIONS.values()]
        raise reader.fail(
            f"tensor {name!r}: type number {type_number} is not supported, expected {supported}"
        )
    quantization = QUANTIZATIONS[type_number]
    if math.prod(shape) % quantization.block_values:
        raise reader.fail(f"tensor {name!r}: shape {shape} is not whole {quantization.name} blocks")
    return name, shape, quantization, reader.u64()


def _check_complete(path: Path, tensors: list[TensorInfo], size: int) -> None:
    for tensor in tensors:
        if tensor.offset + tensor.num_bytes > size:
            raise GGUFError(
                f"{path}: tensor {tensor.name!r} ends at byte {tensor.offset + tensor.num_bytes}, "
                f"the file ends after {size}; it is truncated, fetch it again"
            )


def _seen(value: Value | None) -> str:
    return "missing" if value is None else f"got {type(value).__name__}"
