"""The producer of KV: it computes prompts, keeps their blocks, and sends them when asked.

Its scheduler runs each prompt with `max_tokens=1`. Nothing is pushed: the consumer asks when it has
blocks to load into. Kept blocks come back in every case (vllm#46283, trt#5820, vllm#50425): they
are sent, or released by the consumer, or nobody has asked for them in time, or the peer is gone.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from enum import Enum, auto

from attrs import define, frozen
from torch.distributed.distributed_c10d import Store

from kvproof.runtime.connector import TransferReport
from kvproof.runtime.connectors.peer_link import Content, connect
from kvproof.runtime.connectors.peer_message import Kind, Message
from kvproof.runtime.connectors.peer_settings import PeerSettings
from kvproof.runtime.connectors.peer_transport import new_transport
from kvproof.runtime.connectors.recent_ids import RecentIds
from kvproof.runtime.kv_pool import KVPool
from kvproof.runtime.silent_connector import SilentConnector


@frozen
class _Prompt:
    """What has been said of a request so far."""

    num_tokens: int
    prefix: str


class _Stage(Enum):
    """Whether kept blocks wait for the peer, or are read here to be sent, or by the peer."""

    WAITING = auto()
    SENT = auto()
    READ = auto()


@define
class _Kept:
    """Blocks that are kept for the peer, and until when unless it has asked for them."""

    block_ids: tuple[int, ...]
    deadline: float
    stage: _Stage = _Stage.WAITING

    def is_overdue(self, now: float, is_over: bool) -> bool:
        """Return whether nobody will ask for the blocks, or nobody will say that it has read."""
        if self.stage is _Stage.WAITING:
            return is_over or self.deadline <= now
        return is_over and self.stage is _Stage.READ


def every_request(_: str) -> bool:
    """Say that the peer takes part in every request."""
    return True


class PeerPrefillConnector(SilentConnector):
    """Keeps the KV of finished prompts in the pool until the decode peer has it.

    It loads nothing, and sends no block before its request has ended; kept ones are not evicted.
    `is_remote` says whether the peer wants a request, by its id; the router knows. An engine that
    aborts a prompt calls `abandon` first, because `finished` does not say whether the KV is whole.

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
        self._pool, self._is_remote = pool, is_remote
        self._keep_seconds = settings.keep_timeout_seconds
        self._prompts: dict[str, _Prompt] = {}
        # The lock guards what the link's threads share with the engine's.
        self._lock = threading.Lock()
        self._kept: dict[str, _Kept] = {}
        self._sent: set[str] = set()
        self._unwanted = RecentIds()
        self._transport = new_transport(pool, settings)
        self._link = connect(pool, store, 0, settings, transport=self._transport, handle=self._hear)

    def match(
        self,
        request_id: str,
        block_hashes: Sequence[bytes],
        num_tokens: int,
        num_computed_tokens: int,
    ) -> tuple[int | None, bool]:
        """Return (0, False): a producer loads nothing. The length of the prompt is noted."""
        whole = num_tokens // self._pool.block_size
        prefix = block_hashes[whole - 1].hex() if 0 < whole <= len(block_hashes) else ""
        self._prompts[request_id] = _Prompt(num_tokens, prefix)
        return 0, False

    def finished(self, request_id: str, block_ids: Sequence[int]) -> bool:
        """Announce a computed prompt to the peer and return True, or False if it wants it not.

        A prompt that has not been computed to its end is announced as failed (vllm#50754).
        """
        prompt = self._prompts.pop(request_id, None)
        if not self._is_remote(request_id) or self._link.ended is not None:
            return False
        if prompt is None or len(block_ids) < self._blocks_of(prompt):
            self._fail(request_id, "the prompt has not been computed to its end")
            return False
        if not self._keep(request_id, block_ids[: self._blocks_of(prompt)]):
            return False
        self._link.post(
            Message(Kind.ANNOUNCE, request_id, num_tokens=prompt.num_tokens, prefix=prompt.prefix)
        )
        return True

    def aborted(self, request_id: str) -> None:
        """Tell the peer that a prompt will not be computed to its end (vllm#50754)."""
        self._prompts.pop(request_id, None)
        self.finished(request_id, ())

    def poll(self) -> TransferReport:
        """Return the requests whose blocks are no longer needed, each once; do not wait."""
        self._let_overdue_go()
        with self._lock:
            sent, self._sent = self._sent, set()
        return TransferReport(sent=sent)

    def has_pending_transfers(self) -> bool:
        """Return whether blocks are kept, or their release is still to be reported."""
        with self._lock:
            return bool(self._kept or self._sent)

    def close(self) -> None:
        """Say goodbye and end both threads; what is still kept is reported by the next poll."""
        self._link.close()
        self._transport.close()

    def _blocks_of(self, prompt: _Prompt) -> int:
        return -(-prompt.num_tokens // self._pool.block_size)

    def _keep(self, request_id: str, block_ids: Sequence[int]) -> bool:
        with self._lock:
            if self._unwanted.discard(request_id) or request_id in self._kept:
                return False
            self._kept[request_id] = _Kept(tuple(block_ids), time.monotonic() + self._keep_seconds)
            return True

    def _fail(self, request_id: str, reason: str) -> None:
        self._link.post(Message(Kind.FAILED, request_id, reason=reason))

    def _let_overdue_go(self) -> None:
        """Release what nobody asks for; what is being sent is released when that has ended."""
        now, is_over = time.monotonic(), self._link.ended is not None
        with self._lock:
            overdue = [name for name, kept in self._kept.items() if kept.is_overdue(now, is_over)]
            for name in overdue:
                self._let_go(name)
        for name in overdue:
            self._fail(name, "nobody has asked for it in time")

    def _let_go(self, request_id: str) -> None:
        """Report blocks as sent; the caller holds the lock."""
        if self._kept.pop(request_id, None):
            self._sent.add(request_id)

    def _hear(self, content: Content) -> None:
        """Answer the consumer; called in the thread that receives."""
        message, _ = content
        if message.kind is Kind.WANT:
            self._serve(message)
        elif message.kind is Kind.RELEASE:
            self._release(message.request_id)
        elif message.kind is Kind.DONE:
            self._end(message.request_id)

    def _release(self, request_id: str) -> None:
        with self._lock:
            kept = self._kept.get(request_id)
            if kept is None:
                self._unwanted.add(request_id)
            elif kept.stage is _Stage.WAITING:
                self._let_go(request_id)

    def _serve(self, message: Message) -> None:
        wanted = slice(message.first_block, message.first_block + message.num_blocks)
        with self._lock:
            kept = self._kept.get(message.request_id)
            if (
                kept is None
                or kept.stage is not _Stage.WAITING
                or wanted.stop > len(kept.block_ids)
            ):
                return self._fail(message.request_id, "its blocks are not kept here")
            kept.stage = _Stage.SENT
        self._link.post_later(
            lambda: self._packed(message.request_id, kept.block_ids[wanted]),
            lambda is_sent: self._has_been_sent(message.request_id, is_sent),
        )
        return None

    def _packed(self, request_id: str, block_ids: Sequence[int]) -> Content:
        """Return the blocks as a message; called in the thread that sends."""
        try:
            return self._transport.pack(request_id, block_ids)
        except RuntimeError as error:  # or the consumer would wait in vain (trt#12542)
            self._end(request_id)
            return Message(Kind.FAILED, request_id, reason=str(error)), None

    def _has_been_sent(self, request_id: str, is_sent: bool) -> None:
        if not is_sent or not self._transport.reads_later:
            return self._end(request_id)
        with self._lock:
            if kept := self._kept.get(request_id):
                kept.stage = _Stage.READ
        return None

    def _end(self, request_id: str) -> None:
        with self._lock:
            self._let_go(request_id)
