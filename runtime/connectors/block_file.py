"""One block as the bytes of a safetensors file, and back; back only if all of it is as it was.

The file holds one tensor, `block`, and as metadata everything that must be the same where it is
read: the fields of the pool and the model, the hash of the prefix that the block ends, and a
checksum of the tensor's bytes. A file is believed only if every field is as expected.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

import safetensors.torch
import torch
from torch import Tensor

from kvproof.runtime.kv_pool import KVPool

TENSOR = "block"
FORMAT = "kvproof block, version 1"
HEADER_BYTES_MAX = 1 << 16


class UnusableFileError(Exception):
    """The bytes are not the file that was expected; the message says what is wrong."""


def description(pool: KVPool, model: str) -> dict[str, str]:
    """Return all that two processes must have in common to read each other's blocks."""
    return {
        "format": FORMAT,
        "model": model,
        "dtype": str(pool.dtype),
        "layout": pool.layout,
        "block_size": str(pool.block_size),
        "num_layers": str(pool.num_layers),
        "num_kv_heads": str(pool.num_kv_heads),
        "head_dim": str(pool.head_dim),
    }


def fingerprint(fields: Mapping[str, str]) -> str:
    """Return 32 hexadecimal digits that stand for the fields."""
    canonical = json.dumps(fields, sort_keys=True, ensure_ascii=True)
    return hashlib.blake2b(canonical.encode(), digest_size=16).hexdigest()


def encoded(block: Tensor, fields: Mapping[str, str]) -> bytes:
    """Return the file of a block, a contiguous tensor on the host."""
    payload = block.view(torch.uint8).numpy().data
    metadata = {**fields, "checksum": _checksum(payload)}
    return safetensors.torch.save({TENSOR: block}, metadata)


def decoded(data: bytes, like: Tensor, fields: Mapping[str, str]) -> Tensor:
    """Return the block of a file, of the dtype and shape of `like`, on the host.

    Raises:
        UnusableFileError: If anything is not as expected.

    """
    header, payload = _parts(data)
    _check_fields(header, {**fields, "checksum": _checksum(payload)})
    block = _tensor(data)
    if (block.dtype, block.shape) != (like.dtype, like.shape):
        raise UnusableFileError(
            f"it holds {block.dtype} {tuple(block.shape)}, expected {like.dtype} "
            f"{tuple(like.shape)}"
        )
    return block


def _checksum(payload: memoryview) -> str:
    return "blake2b:" + hashlib.blake2b(payload, digest_size=32).hexdigest()


def _parts(data: bytes) -> tuple[object, memoryview]:
    """Return the parsed header of a file and the bytes behind it."""
    start = 8 + int.from_bytes(data[:8], "little")
    if not 8 < start <= len(data):
        raise UnusableFileError(f"it ends after {len(data)} bytes, within its header")
    try:
        header = json.loads(data[8:start])
    except (ValueError, RecursionError) as error:
        raise UnusableFileError(f"its header cannot be read: {error}") from error
    return header, memoryview(data)[start:]


def _check_fields(header: object, expected: Mapping[str, str]) -> None:
    found = header.get("__metadata__") if isinstance(header, dict) else None
    if not isinstance(found, dict):
        raise UnusableFileError("it has no metadata")
    for name in (*expected, *found):
        if found.get(name) != expected.get(name):
            raise UnusableFileError(
                f"its {name} is {found.get(name)!r}, expected {expected.get(name)!r}"
            )


def _tensor(data: bytes) -> Tensor:
    # The header's own numbers have no checksum. What the library raises for a bad one has changed
    # between versions, and whatever it is, it says that the file is of no use.
    try:
        tensors = safetensors.torch.load(data)
    except Exception as error:
        raise UnusableFileError(f"safetensors cannot read it: {error}") from error
    if tensors.keys() != {TENSOR}:
        raise UnusableFileError(f"it holds {sorted(tensors)}, expected {[TENSOR]}")
    return tensors[TENSOR]
