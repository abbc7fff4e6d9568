"""A connector that answers as the recorder's did; no byte moves, and others say what has ended.

The recorder's answers: a workload entry says how much can be loaded, how often the answer is not
known yet, and whether the blocks of the finished request are kept; a load works once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from attrs import define, field, frozen

from kvproof.runtime.connector import NOTHING_HAPPENED, TransferReport


@frozen(kw_only=True)
class RemoteKV:
    """What a workload entry says about KV that is elsewhere.

    Attributes:
        tokens: leading tokens that can be loaded.
        asynchronous: whether the request is parked meanwhile.
        unknown: how many look-ups have no answer yet.
        delay: steps from the one that starts the load to the one with which it ends.
        failed_places: places in the block table that the load does not fill.
        send_delay: steps that its blocks are kept when it finishes; None if they are not.

    """

    tokens: int = 0
    asynchronous: bool = True
    unknown: int = 0
    delay: int = 1
    failed_places: tuple[int, ...] = ()
    send_delay: int | None = None


@define
class RecordedConnector:
    """The recorder's connector; `report` is what the next `poll` returns."""

    entries: Mapping[str, RemoteKV]
    report: TransferReport = NOTHING_HAPPENED
    _asked: Counter[str] = field(factory=Counter)
    _loaded: set[str] = field(factory=set)

    def match(
        self,
        request_id: str,
        block_hashes: Sequence[bytes],
        num_tokens: int,
        num_computed_tokens: int,
    ) -> tuple[int | None, bool]:
        """Answer from the workload."""
        entry = self.entries[request_id]
        self._asked[request_id] += 1
        if self._asked[request_id] <= entry.unknown:
            return None, False
        most = num_tokens if entry.asynchronous else num_tokens - 1
        new = min(entry.tokens, most) - num_computed_tokens
        if new <= 0 or request_id in self._loaded:
            return 0, False
        return new, entry.asynchronous

    def allocated(
        self, request_id: str, block_ids: Sequence[int], first_token: int, num_tokens: int
    ) -> None:
        """Take note that a load has been served."""
        if num_tokens:
            self._loaded.add(request_id)

    def written(self, block_hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Do nothing."""

    def evicted(self, block_hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Do nothing."""

    def preempted(self, request_id: str, block_ids: Sequence[int]) -> None:
        """Do nothing."""

    def finished(self, request_id: str, block_ids: Sequence[int]) -> bool:
        """Answer from the workload."""
        return self.entries[request_id].send_delay is not None

    def aborted(self, request_id: str) -> None:
        """Do nothing."""

    def memory(self) -> tuple[object, ...]:
        """Return what its next answers depend on, besides what it is asked."""
        asked = {
            name: min(count, self.entries[name].unknown) for name, count in self._asked.items()
        }
        return frozenset(asked.items()), frozenset(self._loaded)

    def poll(self) -> TransferReport:
        """Return what the recording says has ended."""
        report, self.report = self.report, NOTHING_HAPPENED
        return report

    def has_pending_transfers(self) -> bool:
        """Return False: the recording says when somebody looks."""
        return False

    def close(self) -> None:
        """Do nothing."""
