"""How long a pair of engines wait for each other, and where they meet."""

from __future__ import annotations

from typing import Literal

from attrs import Attribute, field, frozen


def _positive(_: object, attribute: Attribute[float], value: float) -> None:
    if not value > 0:
        raise ValueError(
            f"{attribute.name}: got {value}, expected seconds above 0; every wait needs an end"
        )


def _known(_: object, attribute: Attribute[str], value: str) -> None:
    if value not in {"gloo", "nixl"}:
        raise ValueError(f"{attribute.name}: got {value!r}, expected 'gloo' or 'nixl'")


@frozen
class PeerSettings:
    """What both ends of a link are told; each wait has an end (vllm#30659, vllm#46283).

    Attributes:
        model_name: names the weights; both ends must say the same.
        host: the address under which the other end reaches this one.
        transport: how the bytes of blocks cross, "gloo" or "nixl"; what is said of them goes
            through gloo in any case.
        connect_timeout_seconds: how long to wait for the other end at the start.
        peer_timeout_seconds: silence after which the peer counts as gone. It says something four
            times as often, so a pause of the whole process for longer than this ends the link.
        announce_timeout_seconds: how long a decode request waits to hear of its prefill before it
            is computed here.
        transfer_timeout_seconds: how long a load may take before it counts as lost.
        keep_timeout_seconds: how long blocks are kept for a peer that does not ask for them; the
            default is that of vLLM's NIXL connector (VLLM_NIXL_ABORT_REQUEST_TIMEOUT).

    Raises ValueError for a time that is not above 0, or an unknown transport.

    """

    model_name: str
    host: str = "127.0.0.1"
    transport: Literal["gloo", "nixl"] = field(default="gloo", validator=_known)
    connect_timeout_seconds: float = field(default=300.0, validator=_positive)
    peer_timeout_seconds: float = field(default=30.0, validator=_positive)
    announce_timeout_seconds: float = field(default=60.0, validator=_positive)
    transfer_timeout_seconds: float = field(default=60.0, validator=_positive)
    keep_timeout_seconds: float = field(default=480.0, validator=_positive)

    @property
    def heartbeat_seconds(self) -> float:
        """How often an end that has nothing to say says so."""
        return self.peer_timeout_seconds / 4
