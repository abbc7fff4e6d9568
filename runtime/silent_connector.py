"""A connector that has nothing and wants nothing: what others build on that do one thing only."""

from __future__ import annotations

from collections.abc import Sequence

from kvproof.runtime.connector import NOTHING_HAPPENED, TransferReport


class SilentConnector:
    """Loads nothing, keeps nothing and never reports."""

    def match(
        self,
        request_id: str,
        block_hashes: Sequence[bytes],
        num_tokens: int,
        num_computed_tokens: int,
    ) -> tuple[int | None, bool]:
        """Return that nothing can be loaded."""
        return 0, False

    def allocated(
        self, request_id: str, block_ids: Sequence[int], first_token: int, num_tokens: int
    ) -> None:
        """Do nothing."""

    def written(self, block_hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Do nothing."""

    def evicted(self, block_hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Do nothing."""

    def preempted(self, request_id: str, block_ids: Sequence[int]) -> None:
        """Do nothing."""

    def finished(self, request_id: str, block_ids: Sequence[int]) -> bool:
        """Return False: the blocks need not be kept."""
        return False

    def aborted(self, request_id: str) -> None:
        """Do nothing."""

    def poll(self) -> TransferReport:
        """Return that nothing has happened."""
        return NOTHING_HAPPENED

    def has_pending_transfers(self) -> bool:
        """Return False."""
        return False

    def close(self) -> None:
        """Do nothing."""
