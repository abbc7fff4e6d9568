"""What two engines must agree on before a byte of KV moves between them."""

from __future__ import annotations

from typing import Any

from kvproof.runtime.connectors.peer_group import PeerGroup
from kvproof.runtime.connectors.peer_message import Kind, Message
from kvproof.runtime.connectors.peer_settings import PeerSettings
from kvproof.runtime.errors import CallerError
from kvproof.runtime.kv_pool import KVPool

PROTOCOL_VERSION = 1
ROLES = ("prefill", "decode")


class PeerMismatch(CallerError):  # noqa: N818 - the name says what happened
    """The two ends hold KV of different shapes or of different models; nothing has moved."""


def facts_of(pool: KVPool, settings: PeerSettings) -> dict[str, Any]:
    """Return all that must be the same on both ends, by name; vLLM's NixlConnector hashes these."""
    return {
        "protocol version": PROTOCOL_VERSION,
        "model_name": settings.model_name,
        "transport": settings.transport,
        "block_size": pool.block_size,
        "num_layers": pool.num_layers,
        "num_kv_heads": pool.num_kv_heads,
        "head_dim": pool.head_dim,
        "dtype": str(pool.dtype),
        "layout": pool.layout,
    }


def agree(group: PeerGroup, facts: dict[str, Any], offer: str) -> str:
    """Tell the other end our facts and hear its own; both do, so both find a difference.

    Return what its transport offers to ours.

    Raises PeerMismatch if they differ, and PeerGone if the other end says nothing.
    """
    hello = Message(Kind.HELLO, facts={**facts, "role": ROLES[group.rank]}, offer=offer)
    # A send of gloo waits for the receive, so one end must listen first.
    if group.rank == 0:
        group.send(hello)
    answer, _ = group.receive()
    if group.rank == 1:
        group.send(hello)
    expected = {**facts, "role": ROLES[1 - group.rank]}
    _compare(answer, expected)
    return answer.offer


def _compare(answer: Message, expected: dict[str, Any]) -> None:
    seen = answer.facts
    differing = [name for name in {**expected, **seen} if seen.get(name) != expected.get(name)]
    if answer.kind is not Kind.HELLO or differing:
        raise PeerMismatch(
            "the peer's KV does not fit: "
            + "; ".join(
                f"{name} is {seen.get(name)!r} there, expected {expected.get(name)!r} as here"
                for name in differing
            )
            + ". Start both ends with the same model, block_size, dtype, layout and transport."
        )
