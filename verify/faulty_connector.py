"""A connector that has the faults of real ones, around any other.

Every load still ends exactly once more or less late: as `received`, with failed blocks or without,
or as `lost`. Whatever else is reported is noise that changes nothing for a sound scheduler.

A repeated end is withheld while a newer transfer of the same request is under way. Signals name
requests and not attempts, so nobody could tell a stale one from the end that is due; that a
connector never sends one then is part of what it vouches for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence

import torch
from attrs import frozen

from kvproof.runtime.connector import Connector, TransferReport
from kvproof.runtime.kv_pool import KVPool
from kvproof.verify.connector_faults import Choose, ConnectorFaults
from kvproof.verify.held_ends import End, HeldEnds, Kind

KINDS: tuple[Kind, ...] = ("received", "sent", "lost")


@frozen
class _Loading:
    block_ids: tuple[int, ...]
    failed: frozenset[int] = frozenset()


class FaultyConnector:
    """A `Connector` around `inner`, with faults that `choose` decides on.

    If `inner` loads on threads, the moment at which it ends a load is not the seed's to decide, so
    a run repeats only as far as that does not matter.

    Attributes:
        inner: the connector that does the work.
        counts: how often each kind of fault has occurred, by its name in `ConnectorFaults`.

    """

    def __init__(
        self,
        inner: Connector,
        choose: Choose,
        pool: KVPool,
        faults: ConnectorFaults,
        tear: Callable[[Choose], bool] | None = None,
    ) -> None:
        """Wrap a connector.

        Args:
            inner: the connector to wrap.
            choose: returns a number from 0 to n - 1; see `Choose`.
            pool: the memory that `inner` loads into; its dtype must have a NaN.
            faults: which faults, how often.
            tear: damages something that `inner` has stored and returns whether it could; see
                `TornFiles`. Without it nothing is torn.

        """
        self.inner, self.counts = inner, Counter[str]()
        self._choose, self._pool, self._faults, self._tear = choose, pool, faults, tear
        self._polls = 0
        self._held = HeldEnds()
        self._asked_again: Counter[str] = Counter()
        self._is_asynchronous: dict[str, bool] = {}
        self._loading: dict[str, _Loading] = {}
        self._failed_now: set[int] = set()

    def match(
        self,
        request_id: str,
        block_hashes: Sequence[bytes],
        num_tokens: int,
        num_computed_tokens: int,
    ) -> tuple[int | None, bool]:
        """Answer as `inner` does, or that it be asked again."""
        if self._asked_again[request_id] < self._faults.asked_again_max and self._do("asked_again"):
            self._asked_again[request_id] += 1
            return None, False
        del self._asked_again[request_id]
        answer = self.inner.match(request_id, block_hashes, num_tokens, num_computed_tokens)
        self._is_asynchronous[request_id] = answer[1]
        return answer

    def allocated(
        self, request_id: str, block_ids: Sequence[int], first_token: int, num_tokens: int
    ) -> None:
        """Pass the load on; before it something may be torn, and a synchronous one may fail."""
        self._tear_something()
        self.inner.allocated(request_id, block_ids, first_token, num_tokens)
        blocks = self._blocks(block_ids, first_token, num_tokens)
        if self._is_asynchronous.pop(request_id, False):
            self._loading[request_id] = _Loading(blocks)
            self._held.forget_repeated(request_id, {"received", "lost"})
        elif blocks and self._do("failed"):
            self._failed_now |= self._fail(blocks)

    def written(self, block_hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Pass it on."""
        self.inner.written(block_hashes, block_ids)

    def evicted(self, block_hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Pass it on."""
        self.inner.evicted(block_hashes, block_ids)

    def preempted(self, request_id: str, block_ids: Sequence[int]) -> None:
        """Pass it on."""
        self._is_asynchronous.pop(request_id, None)
        self.inner.preempted(request_id, block_ids)

    def finished(self, request_id: str, block_ids: Sequence[int]) -> bool:
        """Pass it on and answer as `inner` does."""
        self._is_asynchronous.pop(request_id, None)
        self._asked_again.pop(request_id, None)
        keeps = self.inner.finished(request_id, block_ids)
        if keeps:
            self._held.forget_repeated(request_id, {"sent"})
        return keeps

    def aborted(self, request_id: str) -> None:
        """Pass it on."""
        self._is_asynchronous.pop(request_id, None)
        self._asked_again.pop(request_id, None)
        self.inner.aborted(request_id)

    def poll(self) -> TransferReport:
        """Return what is due of all that `inner` has reported so far, and some noise."""
        self._polls += 1
        self._take(self.inner.poll())
        ends = self._held.take_due(self._polls)
        self.counts["reordered"] += self._held.overtaken(ends, self._polls)
        self.counts["duplicated"] += sum(end.is_repeated for end in ends)
        named = {kind: {end.request_id for end in ends if end.kind == kind} for kind in KINDS}
        failed = self._failed_now.union(*(end.failed_blocks for end in ends))
        self._failed_now = set()
        self._repeat_some(ends)
        if self._do("unknown"):
            named[KINDS[self._choose(len(KINDS))]].add(f"nobody-{self._polls}")
        return TransferReport(
            received=named["received"],
            sent=named["sent"],
            failed_blocks=failed,
            lost=named["lost"],
        )

    def has_pending_transfers(self) -> bool:
        """Return whether `inner` has something to report, or an end or a failure is held back."""
        owed = self._held.any_owed() or bool(self._failed_now)
        return owed or self.inner.has_pending_transfers()

    def close(self) -> None:
        """Close `inner`."""
        self.inner.close()

    def _do(self, fault: str) -> bool:
        """Choose whether a fault occurs, and count it; some are counted when they show."""
        happens = self._faults.happens(fault, self._choose)
        if happens and fault not in {"reordered", "duplicated"}:
            self.counts[fault] += 1
        return happens

    def _tear_something(self) -> None:
        if self._tear is not None and self._faults.happens("torn", self._choose):
            self.counts["torn"] += self._tear(self._choose)

    def _blocks(
        self, block_ids: Sequence[int], first_token: int, num_tokens: int
    ) -> tuple[int, ...]:
        size = self._pool.block_size
        end = -(-(first_token + num_tokens) // size)
        return tuple(block_ids[first_token // size : end]) if num_tokens else ()

    def _take(self, report: TransferReport) -> None:
        """Hold what `inner` has reported; names in order, so that choices do not hang on hashes."""
        self._attach(report.failed_blocks)
        for request_id in sorted(report.received):
            self._hold_received(request_id)
        for request_id in sorted(report.lost):
            self._loading.pop(request_id, None)
            self._hold(End(request_id, "lost", self._polls))
        for request_id in sorted(report.sent):
            self._hold(End(request_id, "sent", self._polls))

    def _attach(self, failed: Iterable[int]) -> None:
        """Note failed blocks with the load that they belong to; pass others on as they are."""
        for block in failed:
            owner = next((n for n, load in self._loading.items() if block in load.block_ids), None)
            if owner is None:
                self._failed_now.add(block)
            else:
                load = self._loading[owner]
                self._loading[owner] = _Loading(load.block_ids, load.failed | {block})

    def _hold_received(self, request_id: str) -> None:
        load = self._loading.pop(request_id, None)
        if load is not None and self._do("lost"):
            self._poison(load.block_ids)
            self._held.add(End(request_id, "lost", self._polls + self._faults.lost_polls))
            return
        load = load or _Loading(())
        failed = load.failed
        if load.block_ids and self._do("failed"):
            failed |= self._fail(load.block_ids)
        end = End(request_id, "received", self._polls, failed)
        if failed and self._do("failed_early"):
            self._failed_now |= failed
            end.failed_blocks, end.due = frozenset(), self._polls + 1
        self._hold(end)

    def _hold(self, end: End) -> None:
        if self._do("delayed"):
            end.due = max(end.due, self._later())
        elif self._do("reordered"):
            end.waits_until = self._polls + self._faults.delay_polls_max
        self._held.add(end)

    def _fail(self, blocks: Sequence[int]) -> frozenset[int]:
        """Undo a load from some block on; name all that are undone, or only the first."""
        undone = blocks[self._choose(len(blocks)) :]
        self._poison(undone)
        return frozenset(undone[:1] if self._choose(2) else undone)

    def _poison(self, blocks: Sequence[int]) -> None:
        if self._pool.debug and blocks:
            self._pool.poison(blocks)
        elif blocks:
            index = torch.tensor(blocks, dtype=torch.int64, device=self._pool.device)
            self._pool.storage.index_fill_(0, index, float("nan"))

    def _repeat_some(self, ends: Sequence[End]) -> None:
        for end in ends:
            if not end.is_repeated and self._do("duplicated"):
                again = End(end.request_id, end.kind, self._later(), is_repeated=True)
                self._held.add(again)

    def _later(self) -> int:
        return self._polls + 1 + self._choose(self._faults.delay_polls_max)
