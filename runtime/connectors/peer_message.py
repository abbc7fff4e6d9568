"""What two engines say to each other: small records, as JSON, and never as pickles.

On the wire a message is a header of fixed size, a body, and for `DATA` some rows of raw bytes, one
for each block. The header says how long the rest is.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from enum import StrEnum
from typing import Any

import torch
from attrs import asdict, field, frozen
from torch import Tensor

_HEADER = struct.Struct("<8sIIQ")
_MAGIC = b"kvproof1"
HEADER_BYTES = _HEADER.size
BODY_BYTES_MAX = 1 << 26


class Kind(StrEnum):
    """What a message is about; the producer of KV says some, the consumer others."""

    HELLO = "hello"
    HEARTBEAT = "heartbeat"
    GOODBYE = "goodbye"
    ANNOUNCE = "announce"  # producer: the KV of a prompt is there
    FAILED = "failed"  # producer: it is not there, and will not be
    DATA = "data"  # producer: here it is
    WANT = "want"  # consumer: send some of it
    DONE = "done"  # consumer: it has been read
    RELEASE = "release"  # consumer: it is not needed, or no longer


def _as_tuple(numbers: Iterable[int]) -> tuple[int, ...]:
    return tuple(numbers)


@frozen
class Message:
    """One message; which fields matter depends on its kind.

    Attributes:
        kind: what it is about.
        request_id: whom it is about.
        num_tokens: ANNOUNCE: the prompt's tokens, all of which have KV.
        prefix: ANNOUNCE: the chained hash of its last full block in hexadecimal, or nothing.
        first_block: WANT: the first block of the request's table that is wanted.
        num_blocks: WANT: how many are, from there on.
        checksums: DATA: the CRC-32 of each row.
        block_ids: DATA, if it has no rows: the producer's blocks that are to be read.
        reason: FAILED: why.
        facts: HELLO: what must agree, by name.
        offer: HELLO: what the transport at the other end has to know.

    """

    kind: Kind = field(converter=Kind)
    request_id: str = ""
    num_tokens: int = 0
    prefix: str = ""
    first_block: int = 0
    num_blocks: int = 0
    checksums: tuple[int, ...] = field(default=(), converter=_as_tuple)
    block_ids: tuple[int, ...] = field(default=(), converter=_as_tuple)
    reason: str = ""
    facts: dict[str, Any] = field(factory=dict)
    offer: str = ""


def encode(message: Message, rows: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return header and body of a message as uint8 tensors; `rows` is uint8 `[blocks, bytes]`."""
    body = json.dumps(asdict(message)).encode()
    count, width = (0, 0) if rows is None else rows.shape
    header = _HEADER.pack(_MAGIC, len(body), count, width)
    return _tensor(header), _tensor(body)


def body_and_rows(header: Tensor) -> tuple[int, tuple[int, int]]:
    """Return how long the body is, and the shape of the rows behind it.

    Raises ValueError for what is no header of ours.
    """
    magic, body_bytes, count, width = _HEADER.unpack(header.numpy().tobytes())
    if magic != _MAGIC or not 0 < body_bytes <= BODY_BYTES_MAX:
        raise ValueError(
            f"header: got {magic!r} and a body of {body_bytes} bytes, expected {_MAGIC!r} and at"
            f" most {BODY_BYTES_MAX}; run the same version of kvproof on both ends"
        )
    return body_bytes, (count, width)


def decode(body: Tensor) -> Message:
    """Return the message in a body; raises ValueError for what is none."""
    try:
        return Message(**json.loads(body.numpy().tobytes()))
    except TypeError as error:
        raise ValueError(
            f"message: {error}; run the same version of kvproof on both ends"
        ) from error


def _tensor(data: bytes) -> Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
