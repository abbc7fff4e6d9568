"""What a scheduler knows of transfers: who is being loaded, and which blocks wait to be sent.

Every change of state is a core row; an end that no row accepts belongs to nothing, and changes
nothing (property S5). Rule: vLLM Scheduler, KVConnectorBase_V1.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from attrs import define, field, frozen

from kvproof.core import State, Status, rows
from kvproof.runtime.connector import Connector, TransferReport
from kvproof.runtime.errors import BrokenInvariant, CallerError
from kvproof.runtime.prefix_cache import PrefixCache
from kvproof.runtime.request_table import RequestTable

_LOG = logging.getLogger(__name__)


@define
class Obligation:
    """What the blocks of an ended request wait for, behind a fence."""

    fence: int
    waits_for: set[str] = field(factory=set)


@frozen
class Answer:
    """What the connector last said of a request: how far it could be loaded, in tokens."""

    end: int
    is_async: bool


class Transfers:
    """The scheduler's side of a connector; without one, `None` stands in its place.

    Attributes:
        connector: where KV comes from and goes to.
        unconfirmed: rows whose synchronous load the named frame is the first to run on; until it
            has come back without a failure, nothing of them is published.
        num_unknown_signals: ends that belonged to nothing.
        answers: by row, the last answer of the connector until it is made use of; None if it could
            not answer yet.

    """

    def __init__(
        self, state: State, connector: Connector, table: RequestTable, prefix: PrefixCache
    ) -> None:
        """Start with nothing in flight."""
        self.connector = connector
        self.unconfirmed: dict[int, int] = {}
        self.num_unknown_signals = 0
        self.answers: dict[int, Answer | None] = {}
        self._table, self._prefix = table, prefix
        self._state = state
        self._obligations: dict[str, Obligation] = {}
        self._failed: dict[int, int] = {}
        self._written: list[tuple[int, list[bytes], list[int]]] = []

    # --- Asking ---------------------------------------------------------------------------------

    def match(self, row: int, computed: int) -> tuple[int | None, bool]:
        """Ask how much of a request can be loaded.

        Raises:
            CallerError: If the answer is none that a connector may give.

        """
        known = self._state.request.cells.known[row]
        name, hashes = self._name(row), self._prefix.digests(row)
        external, is_async = self.connector.match(name, hashes, known, computed)
        most = known - computed - (0 if is_async else 1)
        if external is not None and not 0 <= external <= max(most, 0):
            message = (
                f"the connector offers {external} tokens of request {name!r}, expected 0 to {most}"
                f" beyond the {computed} of {known} that are computed."
            )
            raise CallerError(message)
        end = computed + (external or 0)
        self.answers[row] = None if external is None else Answer(end, is_async)
        return external, is_async and external != 0

    def allocated(self, row: int, first: int, count: int) -> None:
        """Tell the connector which blocks a request has, and what to load into them."""
        self.answers.pop(row, None)
        self.connector.allocated(self._name(row), self._table.block_ids(row), first, count)

    def start(self, row: int, first: int, count: int) -> None:
        """Start an asynchronous load."""
        if not rows.start_load(self._state, row):
            raise BrokenInvariant(f"row {row} has no room for the load that it waits for.")
        self.allocated(row, first, count)

    def note_synchronous(self, row: int) -> None:
        """Take note that a row runs on what a synchronous load has brought."""
        self.unconfirmed[row] = self._state.step.issued

    def is_busy(self, request_id: str) -> bool:
        """Return whether an ended request of that id still has blocks that a transfer touches."""
        return request_id in self._obligations

    @property
    def obligations(self) -> Mapping[str, Obligation]:
        """What the blocks of each ended request wait for."""
        return self._obligations

    @property
    def failed(self) -> Mapping[int, int]:
        """Rows whose load has failed and not ended yet, and how many of its tokens are right."""
        return self._failed

    @property
    def num_obligations(self) -> int:
        """Ended requests whose blocks wait for a transfer."""
        return len(self._obligations)

    def num_loading(self) -> int:
        """Return the number of requests in WAITING_FOR_REMOTE_KVS."""
        status = self._state.request.status
        return int(np.count_nonzero(status == Status.WAITING_FOR_REMOTE_KVS))

    # --- Ends of requests -----------------------------------------------------------------------

    def preempted(self, row: int) -> None:
        """Tell the connector that a request gives its blocks back."""
        self.unconfirmed.pop(row, None)
        self.connector.preempted(self._name(row), self._table.block_ids(row))

    def ends(self, row: int, *, complete: bool) -> Callable[[int], None]:
        """Ask what a request that is about to end leaves behind; call the answer with its fence."""
        cells = self._state.request.cells
        name, loading = self._name(row), bool(cells.loading[row])
        self.unconfirmed.pop(row, None)
        self.answers.pop(row, None)
        self._failed.pop(row, None)
        kept = False
        if complete:
            kept = self.connector.finished(name, self._table.block_ids(row)) and cells.held[row] > 0
        else:
            self.connector.aborted(name)
        waits = {"load"} if loading else set()

        def oblige(fence: int) -> None:
            if kept:
                if not rows.pin(self._state, fence):
                    raise BrokenInvariant(f"fence {fence} has blocks but may not be kept.")
                waits.add("send")
            if waits:
                self._obligations[name] = Obligation(fence, waits)

        return oblige

    # --- Signals --------------------------------------------------------------------------------

    def note_failures(self, report: TransferReport) -> list[int]:
        """Take note of what was not brought; return running rows that hold a failed block."""
        for name in report.lost:
            if (row := self._loading_row(name)) >= 0:
                self._failed[row] = 0
        blocks = set(report.failed_blocks)
        if not blocks:
            return []
        status = self._state.request.status
        loading = (status == Status.WAITING_FOR_REMOTE_KVS).nonzero()[0].tolist()
        for row in [row for row in loading if self._state.request.cells.loading[row]]:
            valid = self._valid(row, blocks)
            if valid is not None:  # An earlier report may have been of a block before these.
                self._failed[row] = min(valid, self._failed.get(row, valid))
        return [row for row in self.unconfirmed if blocks.intersection(self._table.block_ids(row))]

    def _valid(self, row: int, failed: set[int]) -> int | None:
        """Return how many of the tokens to be loaded lie before the first failed block."""
        cells, size = self._state.request.cells, self._state.block_size
        first, end = cells.computed[row], cells.computed[row] + cells.remote[row]
        blocks = self._table.block_ids(row)
        for place in range(first // size, -(-end // size)):
            if blocks[place] in failed:
                return max(place * size - first, 0)
        return None

    def failed_rows(self) -> list[int]:
        """Return the rows whose load has failed and not ended yet."""
        return list(self._failed)

    def end(self, report: TransferReport) -> list[int]:
        """Let transfers end; return the rows that wait to be promoted."""
        ended = [row for name in sorted(report.received) if (row := self._received(name)) >= 0]
        ended += [row for name in sorted(report.lost) if (row := self._lost(name)) >= 0]
        for name in sorted(report.sent):
            self._release(name, "send")
        return ended

    def _loading_row(self, name: str) -> int:
        """Return the row of a request that is being loaded, or -1."""
        row: int = self._table.row_of.get(name, -1)
        return row if row >= 0 and self._state.request.cells.loading[row] else -1

    def _received(self, name: str) -> int:
        if (row := self._loading_row(name)) >= 0:
            self._land(row)
            return row
        self._release(name, "load")
        return -1

    def _land(self, row: int) -> None:
        cells = self._state.request.cells
        valid = self._failed.pop(row, None)
        if valid is None or valid >= cells.remote[row]:
            done = rows.land(self._state, row)
        else:
            done = rows.fail_load(self._state, row, valid)
        if not done:
            raise BrokenInvariant(f"row {row} is being loaded but its load may not end.")

    def _lost(self, name: str) -> int:
        if (row := self._loading_row(name)) >= 0:
            self._failed.pop(row, None)
            if not rows.lose_load(self._state, row):
                raise BrokenInvariant(f"row {row} is being loaded but its load may not be lost.")
            return row
        obligation = self._obligations.get(name)
        for kind in sorted(obligation.waits_for) if obligation else ["load"]:
            self._release(name, kind)
        return -1

    def _release(self, name: str, kind: str) -> None:
        """Let a transfer of an ended request be over; a signal that belongs to nothing is counted.

        Such a signal is late, double or foreign (vllm#32255); it must never end the engine.
        """
        obligation = self._obligations.get(name)
        if obligation is None or kind not in obligation.waits_for:
            self.num_unknown_signals += 1
            _LOG.warning("the end of a %s of request %r belongs to nothing; ignored.", kind, name)
            return
        if not rows.unpin(self._state, obligation.fence):
            raise BrokenInvariant(f"fence {obligation.fence} waits for a transfer but has none.")
        obligation.waits_for.remove(kind)
        if not obligation.waits_for:
            del self._obligations[name]

    # --- What has been written ------------------------------------------------------------------

    def published(self, digests: list[bytes], blocks: list[int]) -> None:
        """Take note of blocks that the last frame writes, or while one comes back, has written.

        What has been written is reported at once: the next step may take the blocks.
        """
        step = self._state.step
        comes_back = step.processed < step.returned
        frame = step.returned if comes_back else step.issued
        self._written.append((frame, digests, blocks))

    def evicted(self, digests: list[bytes], blocks: list[int]) -> None:
        """Tell the connector of blocks that are about to be overwritten."""
        self.connector.evicted(digests, blocks)

    def frame_came_back(self) -> None:
        """Tell the connector what frames that have come back have written."""
        returned = self._state.step.returned
        due = [entry for entry in self._written if entry[0] <= returned]
        self._written = [entry for entry in self._written if entry[0] > returned]
        for _, digests, blocks in due:
            self.connector.written(digests, blocks)
        for row in [row for row, frame in self.unconfirmed.items() if frame <= returned]:
            del self.unconfirmed[row]

    def snapshot(self) -> tuple[Any, ...]:
        """Return what transfers are in flight, for `restore`; no counts."""
        return (
            self.unconfirmed.copy(),
            [(name, o.fence, o.waits_for.copy()) for name, o in self._obligations.items()],
            self._failed.copy(),
            self._written.copy(),
        )

    def restore(self, kept: tuple[Any, ...]) -> None:
        """Have in flight what was in flight when `snapshot` was called."""
        unconfirmed, obligations, failed, written = kept
        self.unconfirmed, self._failed = unconfirmed.copy(), failed.copy()
        self._obligations = {name: Obligation(f, waits.copy()) for name, f, waits in obligations}
        self._written = written.copy()

    def _name(self, row: int) -> str:
        name: str = self._table.requests[row].request_id
        return name
