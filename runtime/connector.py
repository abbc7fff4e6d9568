"""Where KV comes from and goes to besides the pool: the protocol between a scheduler and it.

Only ids and numbers cross. A connector sees the pool's memory, never the scheduler's books; the
scheduler sees what the connector says, and checks it. Semantics: vLLM KVConnectorBase_V1.

In order, for one request:

    match        how many tokens could be loaded; None: ask again in a later step
    allocated    its blocks are there; the load starts. If it is synchronous it is done on return
    poll         an asynchronous load has ended: `received`, with `failed_blocks` before or with it
    preempted    its blocks are about to be given back
    finished     it is complete; True keeps its blocks until `poll` reports it as `sent`
    aborted      it has ended before that; its blocks are not kept

and for blocks whose content is published under a hash:

    written      a processed step has written them
    evicted      they are about to be taken for something else
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

from attrs import field, frozen


# Named, for a type checker reads the type of the arguments off them; bare frozenset has none.
def _names(request_ids: Iterable[str]) -> frozenset[str]:
    return frozenset(request_ids)


def _blocks(block_ids: Iterable[int]) -> frozenset[int]:
    return frozenset(block_ids)


@frozen
class TransferReport:
    """What has happened to transfers since the last report.

    Attributes:
        received: requests whose asynchronous load has ended, wholly or in part.
        sent: finished requests whose kept blocks have been sent, or never will be.
        failed_blocks: blocks that a load should have filled and did not; everything behind the
            first of them counts as not loaded. Those of an asynchronous load may be reported before
            its end, and not all at once.
        lost: requests whose load will never end by itself, because it took too long or the peer is
            gone. The connector vouches that it touches their blocks no more; nothing was loaded.

    """

    received: frozenset[str] = field(default=frozenset(), converter=_names)
    sent: frozenset[str] = field(default=frozenset(), converter=_names)
    failed_blocks: frozenset[int] = field(default=frozenset(), converter=_blocks)
    lost: frozenset[str] = field(default=frozenset(), converter=_names)

    def __bool__(self) -> bool:
        """Return whether anything has happened."""
        return bool(self.received or self.sent or self.failed_blocks or self.lost)


NOTHING_HAPPENED = TransferReport()


def joined(first: TransferReport, second: TransferReport) -> TransferReport:
    """Return what has happened in two reports, one after the other."""
    return TransferReport(
        received=first.received | second.received,
        sent=first.sent | second.sent,
        failed_blocks=first.failed_blocks | second.failed_blocks,
        lost=first.lost | second.lost,
    )


class Connector(Protocol):
    """What a scheduler asks of a place that KV comes from; the module has the order of calls."""

    def match(
        self,
        request_id: str,
        block_hashes: Sequence[bytes],
        num_tokens: int,
        num_computed_tokens: int,
    ) -> tuple[int | None, bool]:
        """Return how many tokens could be loaded, and whether that happens asynchronously.

        Args:
            request_id: the request; it may be asked about any number of times.
            block_hashes: the chained hashes of its full blocks, whole prefix first.
            num_tokens: its known tokens.
            num_computed_tokens: its tokens that need no loading: the answer counts from there.

        Returns:
            A number from 0 to `num_tokens - num_computed_tokens` (one less for a synchronous load,
            which must leave a token to compute), or None for "ask again in a later step".

        """
        ...

    def allocated(
        self, request_id: str, block_ids: Sequence[int], first_token: int, num_tokens: int
    ) -> None:
        """Take note of a request's whole block table, and load into it what was promised.

        The load fills the slots of tokens `first_token` up to `first_token + num_tokens`; none if
        `num_tokens` is 0. A synchronous load is complete, or failed, when the call returns. Nobody
        else touches the blocks until an asynchronous one has ended.
        """
        ...

    def written(self, block_hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Take note that these blocks hold these prefixes' KV now; read them before returning."""
        ...

    def evicted(self, block_hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Take note that these blocks will be overwritten; read them before returning."""
        ...

    def preempted(self, request_id: str, block_ids: Sequence[int]) -> None:
        """Take note that a request gives its blocks back, before anybody can overwrite them."""
        ...

    def finished(self, request_id: str, block_ids: Sequence[int]) -> bool:
        """Return whether the blocks of a complete request must be kept until it is `sent`."""
        ...

    def aborted(self, request_id: str) -> None:
        """Take note that a request has ended before it was complete: aborted, or failed.

        A load that is going on still ends in a report, and its blocks wait for it.
        """
        ...

    def poll(self) -> TransferReport:
        """Return what has happened since the last call; do not wait."""
        ...

    def has_pending_transfers(self) -> bool:
        """Return whether something is still to be reported, so that the loop must stay awake."""
        ...

    def close(self) -> None:
        """End every thread and transfer; call it once, after the last step."""
        ...
