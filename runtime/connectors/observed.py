"""A connector around another that is told how each load goes, and passes everything on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from attrs import define, frozen

from kvproof.runtime.connector import Connector, TransferReport


@frozen
class ObservedLoad:
    """A load of `num_tokens` tokens from `first_token` on, into a request's table of blocks."""

    request_id: str
    block_ids: tuple[int, ...]
    first_token: int
    num_tokens: int


@define
class _Loading:
    load: ObservedLoad
    num_valid: int


class ObservedConnector:
    """A `Connector` that passes every call on to `inner`; subclasses override the three `load_*`.

    Attributes:
        inner: the connector that does the work.
        block_size: tokens of a block.

    """

    def __init__(self, inner: Connector, block_size: int) -> None:
        """Wrap a connector for blocks of that size."""
        self.inner, self.block_size = inner, block_size
        self._is_asynchronous: dict[str, bool] = {}
        self._loading: dict[str, _Loading] = {}

    # --- For subclasses -------------------------------------------------------------------------

    def load_started(self, load: ObservedLoad) -> None:
        """Take note that a load has started; a synchronous one has ended by then, too."""

    def load_ended(self, load: ObservedLoad, num_valid: int) -> None:
        """Take note that a load has ended, its first `num_valid` tokens loaded."""

    def load_lost(self, load: ObservedLoad) -> None:
        """Take note that a load is lost, and nothing of it loaded."""

    # --- The protocol ---------------------------------------------------------------------------

    def match(
        self,
        request_id: str,
        block_hashes: Sequence[bytes],
        num_tokens: int,
        num_computed_tokens: int,
    ) -> tuple[int | None, bool]:
        """Answer as `inner` does."""
        answer = self.inner.match(request_id, block_hashes, num_tokens, num_computed_tokens)
        self._is_asynchronous[request_id] = answer[1]
        return answer

    def allocated(
        self, request_id: str, block_ids: Sequence[int], first_token: int, num_tokens: int
    ) -> None:
        """Pass it on, and remember what is to be loaded.

        Failures of a synchronous load are reported later, with the step that runs on it, so that
        it counts as loaded here.
        """
        self.inner.allocated(request_id, block_ids, first_token, num_tokens)
        is_asynchronous = self._is_asynchronous.pop(request_id, False)
        if not num_tokens:
            return
        load = ObservedLoad(request_id, tuple(block_ids), first_token, num_tokens)
        self.load_started(load)
        if is_asynchronous:
            self._loading[request_id] = _Loading(load, num_tokens)
        else:
            self.load_ended(load, num_tokens)

    def written(self, block_hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Pass it on."""
        self.inner.written(block_hashes, block_ids)

    def evicted(self, block_hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Pass it on."""
        self.inner.evicted(block_hashes, block_ids)

    def preempted(self, request_id: str, block_ids: Sequence[int]) -> None:
        """Pass it on."""
        self.inner.preempted(request_id, block_ids)

    def finished(self, request_id: str, block_ids: Sequence[int]) -> bool:
        """Pass it on and answer as `inner` does."""
        self._is_asynchronous.pop(request_id, None)
        return self.inner.finished(request_id, block_ids)

    def aborted(self, request_id: str) -> None:
        """Pass it on; a load that is going on still ends."""
        self._is_asynchronous.pop(request_id, None)
        self.inner.aborted(request_id)

    def poll(self) -> TransferReport:
        """Return what `inner` reports, once each load that has ended in it is noted."""
        report = self.inner.poll()
        self._note_failures(report.failed_blocks)
        for loading in self._taken(report.received):
            self.load_ended(loading.load, loading.num_valid)
        for loading in self._taken(report.lost):
            self.load_lost(loading.load)
        return report

    def has_pending_transfers(self) -> bool:
        """Answer as `inner` does."""
        return self.inner.has_pending_transfers()

    def close(self) -> None:
        """Close `inner`."""
        self.inner.close()

    def _taken(self, request_ids: Iterable[str]) -> list[_Loading]:
        """Return the loads of these requests, and remember them no longer."""
        known = [name for name in sorted(request_ids) if name in self._loading]
        return [self._loading.pop(name) for name in known]

    def _note_failures(self, failed: frozenset[int]) -> None:
        """Let the tokens of each load count up to the first failed block; it may come early."""
        for loading in self._loading.values() if failed else ():
            load, size = loading.load, self.block_size
            first, end = load.first_token // size, -(-(load.first_token + load.num_tokens) // size)
            for place in range(first, end):
                if load.block_ids[place] in failed:
                    valid = max(place * size - load.first_token, 0)
                    loading.num_valid = min(loading.num_valid, valid)
                    break
