"""How the rows of blocks cross from the producer to the consumer; what is said of them does not.

Of a pool in CUDA memory the rows are copied to the host and sent through gloo like those of any
other. NCCL is not offered: a receive from a peer that has died does not return before the
communicator is aborted, it takes two GPUs to try that at all, and nothing is offered here that has
not been tried. NIXL has been, see `nixl_transport`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from torch import Tensor

from kvproof.runtime.connectors.block_bytes import checksums, take_rows
from kvproof.runtime.connectors.peer_message import Kind, Message
from kvproof.runtime.connectors.peer_settings import PeerSettings
from kvproof.runtime.kv_pool import KVPool

Deliver = Callable[[Tensor | None], None]


class PeerTransport(Protocol):
    """One end of a way for rows, uint8 `[blocks, block_bytes]`.

    `offer` is told to the other end in the handshake. With `reads_later` the consumer reads the
    producer's blocks after it has been answered, and says when it has done so.
    """

    offer: str
    reads_later: bool

    def meet(self, offer: str) -> None:
        """Take note of what the other end has offered."""
        ...

    def pack(self, request_id: str, block_ids: Sequence[int]) -> tuple[Message, Tensor | None]:
        """Return the producer's answer, in the thread that sends; raises RuntimeError."""
        ...

    def unpack(self, message: Message, rows: Tensor | None, deliver: Deliver) -> None:
        """Hand over the rows of an answer once they are here, or None if they will not come.

        It is called in the thread that receives, and does not wait.
        """
        ...

    def close(self) -> None:
        """End every transfer; the pool's memory is not touched afterwards."""
        ...


class GlooTransport:
    """Rows are copied to the host and follow the message through the link itself."""

    offer = ""
    reads_later = False

    def __init__(self, pool: KVPool) -> None:
        """Send from this pool."""
        self._pool = pool

    def meet(self, offer: str) -> None:
        """Do nothing: the link is all that is needed."""

    def pack(self, request_id: str, block_ids: Sequence[int]) -> tuple[Message, Tensor | None]:
        """Return a copy of the blocks, and its checksums."""
        rows = take_rows(self._pool, block_ids)
        return Message(Kind.DATA, request_id, checksums=checksums(rows)), rows

    def unpack(self, message: Message, rows: Tensor | None, deliver: Deliver) -> None:
        """Hand the rows over, which have come with the message."""
        deliver(rows)

    def close(self) -> None:
        """Do nothing: transfers end with the link."""


def new_transport(pool: KVPool, settings: PeerSettings) -> PeerTransport:
    """Return an end of the way that the settings name; raises CallerError for want of a package."""
    if settings.transport == "nixl":
        from kvproof.runtime.connectors.nixl_transport import NixlTransport

        return NixlTransport(pool, settings.transfer_timeout_seconds)
    return GlooTransport(pool)
