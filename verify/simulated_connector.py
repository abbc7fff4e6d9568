"""The recorder's connector with a clock: loads end when they are due, whoever decides the steps."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import define, field, frozen

from kvproof.runtime.connector import TransferReport
from kvproof.verify.recorded_connector import RecordedConnector


@frozen
class Load:
    """What a load fills: the slots of tokens `first` to `end` of a request, but some blocks."""

    request_id: str
    blocks: tuple[int, ...]
    first: int
    end: int
    failed_places: frozenset[int]

    @property
    def failed_blocks(self) -> set[int]:
        """The blocks that it does not fill."""
        return {self.blocks[place] for place in self.failed_places}


@define
class SimulatedConnector(RecordedConnector):
    """Loads and sends that take as many steps as the workload says.

    `step` is the step that is being scheduled; `fill` is told of a load when its bytes are there.
    """

    block_size: int = field(kw_only=True)
    fill: Callable[[Load], None] = field(kw_only=True)
    step: int = 0
    _loads: list[tuple[int, Load]] = field(factory=list)
    _sends: list[tuple[int, str]] = field(factory=list)
    _failed_now: list[tuple[int, set[int]]] = field(factory=list)

    def allocated(
        self, request_id: str, block_ids: Sequence[int], first_token: int, num_tokens: int
    ) -> None:
        """Start a load, or do a synchronous one."""
        super().allocated(request_id, block_ids, first_token, num_tokens)
        if not num_tokens:
            return
        entry, end = self.entries[request_id], first_token + num_tokens
        places = range(first_token // self.block_size, -(-end // self.block_size))
        failed = frozenset(entry.failed_places).intersection(places)
        load = Load(request_id, tuple(block_ids), first_token, end, failed)
        if entry.asynchronous:
            self._loads.append((self.step + entry.delay, load))
        else:
            self.fill(load)
            self._failed_now.append((self.step, load.failed_blocks))

    def finished(self, request_id: str, block_ids: Sequence[int]) -> bool:
        """Keep the blocks for as long as the workload says."""
        delay = self.entries[request_id].send_delay
        if delay is not None:
            self._sends.append((self.step + delay, request_id))
        return delay is not None

    def poll_of(self, step: int) -> TransferReport:
        """Return what is due when the outputs of a step come back."""
        due = [load for at, load in self._loads if at <= step]
        failed = set[int]().union(*(load.failed_blocks for load in due))
        failed.update(*(blocks for at, blocks in self._failed_now if at <= step))
        sent = [name for at, name in self._sends if at <= step]
        for load in due:
            self.fill(load)
        self._loads = [item for item in self._loads if item[0] > step]
        self._failed_now = [item for item in self._failed_now if item[0] > step]
        self._sends = [item for item in self._sends if item[0] > step]
        return TransferReport(
            received=[load.request_id for load in due], sent=sent, failed_blocks=failed
        )

    def has_pending_transfers(self) -> bool:
        """Return whether something is still to be reported."""
        return bool(self._loads or self._sends or self._failed_now)
