"""The consumer of KV: it waits for a prompt to be announced, loads its blocks, and decodes.

Data is received into memory of its own, and copied into the pool in `poll` only, by the engine's
own thread, when it is complete and still wanted. So from the moment that a load is reported as
lost, or its request has finished, nothing of it can reach the pool (vllm#32255).

A load is one-shot: the producer gives its blocks back as soon as they are sent. A request that is
preempted afterwards is computed here (vllm#53250). Each load that was promised ends once: as
`received`, or as `lost`, also if there was nothing to load (vllm#56640).
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Sequence

from attrs import define, field, frozen
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from kvproof.runtime.connector import TransferReport
from kvproof.runtime.connectors.block_bytes import checksums, put_rows
from kvproof.runtime.connectors.peer_link import Content, connect
from kvproof.runtime.connectors.peer_message import Kind, Message
from kvproof.runtime.connectors.peer_prefill import every_request
from kvproof.runtime.connectors.peer_settings import PeerSettings
from kvproof.runtime.connectors.peer_transport import new_transport
from kvproof.runtime.connectors.recent_ids import RecentIds
from kvproof.runtime.kv_pool import KVPool


@frozen(eq=False)
class _Arrival:
    """A message; for data, its rows and how many from the first one are whole."""

    message: Message
    rows: Tensor | None
    num_whole: int


@frozen
class _Load:
    """Where a load goes: blocks from the first that is touched, and slots counted from there."""

    block_ids: tuple[int, ...]
    first_slot: int
    end_slot: int
    deadline: float


@define
class _Ends:
    """The ends of loads that the next report will have."""

    received: set[str] = field(factory=set)
    lost: set[str] = field(factory=set)
    failed_blocks: set[int] = field(factory=set)

    def __bool__(self) -> bool:
        return bool(self.received or self.lost)


class PeerDecodeConnector:
    """Loads the KV of prompts that the prefill peer has computed; blocks are loaded once.

    `is_remote` says whether the peer computes a request, by its id; the router knows. Once the peer
    is gone every request is computed here; to load again, make a new connector with a new store.

    Raises PeerGone if the peer does not come, and PeerMismatch if its KV does not fit.
    """

    def __init__(
        self,
        pool: KVPool,
        store: Store,
        settings: PeerSettings,
        *,
        is_remote: Callable[[str], bool] = every_request,
    ) -> None:
        """Wait for the peer at the store, and agree with it."""
        self._pool, self._settings, self._is_remote = pool, settings, is_remote
        self._arrivals: queue.SimpleQueue[_Arrival] = queue.SimpleQueue()
        self._announced: dict[str, Message] = {}
        self._asked: dict[str, float] = {}
        self._local = RecentIds()
        self._promised: set[str] = set()
        self._loads: dict[str, _Load] = {}
        self._ends = _Ends()
        self._transport = new_transport(pool, settings)
        self._link = connect(pool, store, 1, settings, transport=self._transport, handle=self._hear)

    def match(
        self,
        request_id: str,
        block_hashes: Sequence[bytes],
        num_tokens: int,
        num_computed_tokens: int,
    ) -> tuple[int | None, bool]:
        """Return (None, True) until the prompt is announced, then what is there beyond `computed`.

        That may be the whole prompt. It is (0, False) for a request that is computed here: the
        prefill has failed, the peer is gone, the announcement has not come in time, what was
        announced is another prompt, or the one load that there is has been used.
        """
        self._promised.discard(request_id)
        if not self._is_remote(request_id) or self._is_local(request_id):
            return 0, False
        announced = self._announced.get(request_id)
        if announced is None:
            return None, True
        if _is_another_prompt(announced, block_hashes, self._pool.block_size):
            self._compute_here(request_id)
            return 0, False
        available = min(announced.num_tokens, num_tokens) - num_computed_tokens
        if available <= 0:
            return 0, False
        self._promised.add(request_id)
        return available, True

    def allocated(
        self, request_id: str, block_ids: Sequence[int], first_token: int, num_tokens: int
    ) -> None:
        """Ask for the blocks of the tokens that were promised; the load ends in a later `poll`.

        If there is nothing to load after all, the load has ended by that (vllm#56640); if the peer
        has taken its promise back meanwhile, the load is lost.
        """
        is_promised = request_id in self._promised
        self._promised.discard(request_id)
        if is_promised and num_tokens > 0 and request_id not in self._local:
            self._start(request_id, block_ids, first_token, num_tokens)
        elif self._is_remote(request_id):
            self._compute_here(request_id)
            if is_promised:
                (self._ends.lost if num_tokens else self._ends.received).add(request_id)

    def written(self, block_hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Do nothing: nothing is stored."""

    def evicted(self, block_hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Do nothing: nothing is stored."""

    def preempted(self, request_id: str, block_ids: Sequence[int]) -> None:
        """Compute the request here from now on, and touch its blocks no more."""
        if self._is_remote(request_id):
            self._stop(request_id)
            self._compute_here(request_id)

    def finished(self, request_id: str, block_ids: Sequence[int]) -> bool:
        """Forget a request, and release its KV at the peer; its blocks need not be kept.

        A load that has not ended is lost, and is still reported as such once.
        """
        if self._is_remote(request_id):
            self._stop(request_id)
            self._compute_here(request_id)
            self._local.discard(request_id)
            self._promised.discard(request_id)
        return False

    def aborted(self, request_id: str) -> None:
        """Forget a request as if it had finished."""
        self.finished(request_id, ())

    def poll(self) -> TransferReport:
        """Copy into the pool what has arrived, and return which loads have ended, each once."""
        self._take_in()
        self._give_up_overdue()
        ends, self._ends = self._ends, _Ends()
        return TransferReport(
            received=ends.received, failed_blocks=ends.failed_blocks, lost=ends.lost
        )

    def has_pending_transfers(self) -> bool:
        """Return whether a load has not ended, or its end is still to be reported."""
        return bool(self._loads or self._ends)

    def close(self) -> None:
        """Say goodbye and end both threads; loads that have not ended are lost."""
        self._link.close()
        self._transport.close()

    def _is_local(self, request_id: str) -> bool:
        """Return whether a request must be computed here; the wait for the peer has an end."""
        if request_id in self._local:
            return True
        self._take_in()
        wait_seconds, now = self._settings.announce_timeout_seconds, time.monotonic()
        deadline = self._asked.setdefault(request_id, now + wait_seconds)
        is_overdue = request_id not in self._announced and now >= deadline
        if is_overdue or self._link.ended is not None:
            self._compute_here(request_id)
        return request_id in self._local

    def _compute_here(self, request_id: str) -> None:
        """Load nothing more of a request, and tell the peer so unless it knows.

        It is told of requests that nobody has asked about, too: it may keep their blocks.
        """
        self._announced.pop(request_id, None)
        self._asked.pop(request_id, None)
        if request_id not in self._local:
            self._link.post(Message(Kind.RELEASE, request_id))
        self._local.add(request_id)

    def _start(
        self, request_id: str, block_ids: Sequence[int], first_token: int, num_tokens: int
    ) -> None:
        size, end_token = self._pool.block_size, first_token + num_tokens
        first_block, end_block = first_token // size, -(-end_token // size)
        self._loads[request_id] = _Load(
            tuple(block_ids[first_block:end_block]),
            first_token - first_block * size,
            end_token - first_block * size,
            time.monotonic() + self._settings.transfer_timeout_seconds,
        )
        del self._announced[request_id], self._asked[request_id]
        self._local.add(request_id)  # there is no second load
        self._link.post(
            Message(
                Kind.WANT,
                request_id,
                first_block=first_block,
                num_blocks=end_block - first_block,
            )
        )

    def _stop(self, request_id: str) -> None:
        if self._loads.pop(request_id, None):
            self._ends.lost.add(request_id)

    def _give_up_overdue(self) -> None:
        now, is_over = time.monotonic(), self._link.ended is not None
        for name, load in list(self._loads.items()):
            if is_over or load.deadline <= now:
                self._stop(name)

    def _hear(self, content: Content) -> None:
        """Check what comes and pass it on; called in the thread that receives."""
        message, rows = content
        if message.kind is Kind.DATA:
            self._transport.unpack(message, rows, lambda rows: self._arrive(message, rows))
        else:
            self._arrive(message, None)

    def _arrive(self, message: Message, rows: Tensor | None) -> None:
        num_whole = 0 if rows is None else _num_whole(message.checksums, checksums(rows))
        self._arrivals.put(_Arrival(message, rows, num_whole))
        # Said last, so that what comes later under the same name also arrives later.
        if message.kind is Kind.DATA and self._transport.reads_later:
            self._link.post(Message(Kind.DONE, message.request_id))

    def _take_in(self) -> None:
        while not self._arrivals.empty():
            arrival = self._arrivals.get()
            message = arrival.message
            if message.kind is Kind.ANNOUNCE:
                self._note(message)
            elif message.kind is Kind.FAILED:
                self._fail(message.request_id)
            elif arrival.rows is None:
                self._stop(message.request_id)
            else:
                self._land(message.request_id, arrival.rows, arrival.num_whole)

    def _note(self, message: Message) -> None:
        if message.request_id in self._local:
            self._link.post(Message(Kind.RELEASE, message.request_id))
        else:
            self._announced[message.request_id] = message

    def _fail(self, request_id: str) -> None:
        """Take note that the peer will never have it; a load that has begun is lost."""
        self._stop(request_id)
        self._announced.pop(request_id, None)
        self._asked.pop(request_id, None)
        self._local.add(request_id)

    def _land(self, request_id: str, rows: Tensor, num_whole: int) -> None:
        """Copy what is whole into the pool, if it is still wanted; the rest has failed."""
        load = self._loads.pop(request_id, None)
        if load is None:
            return
        fits = rows.shape == (len(load.block_ids), self._pool.block_bytes)
        whole = load.block_ids[: num_whole if fits else 0]
        put_rows(self._pool, rows[: len(whole)], whole, load.first_slot, load.end_slot)
        self._ends.received.add(request_id)
        self._ends.failed_blocks.update(load.block_ids[len(whole) :])


def _is_another_prompt(announced: Message, block_hashes: Sequence[bytes], block_size: int) -> bool:
    """Return whether the hashes of both ends say so; without hashes nobody can."""
    whole = announced.num_tokens // block_size
    if not announced.prefix or not 0 < whole <= len(block_hashes):
        return False
    return block_hashes[whole - 1].hex() != announced.prefix


def _num_whole(expected: Sequence[int], seen: Sequence[int]) -> int:
    """Return how many rows from the first one on are as they were sent."""
    if len(expected) != len(seen):
        return 0
    pairs = enumerate(zip(expected, seen, strict=True))
    return next((place for place, (sent, got) in pairs if sent != got), len(seen))
