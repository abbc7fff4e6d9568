"""A link to the other engine: one thread that sends, one that receives, and a verdict at the end.

The link ends once, for one reason: goodbye was said, or the peer is gone. Everything posted is
answered exactly once, delivered or not, also if it is posted after the end.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from attrs import frozen
from torch import Tensor
from torch.distributed.distributed_c10d import Store

from kvproof.runtime.connectors.peer_group import PeerGroup
from kvproof.runtime.connectors.peer_handshake import agree, facts_of
from kvproof.runtime.connectors.peer_message import Kind, Message
from kvproof.runtime.connectors.peer_settings import PeerSettings
from kvproof.runtime.connectors.peer_transport import PeerTransport
from kvproof.runtime.kv_pool import KVPool

Content = tuple[Message, Tensor | None]


def _ignore(_: bool) -> None:
    """Nobody asked."""


@frozen(eq=False)
class _Parcel:
    build: Callable[[], Content]
    answered: Callable[[bool], None] = _ignore


class PeerLink:
    """Messages to and from a peer with whom the handshake is done.

    `handle` is called in the receiving thread, once for each message but heartbeats.
    """

    def __init__(
        self, group: PeerGroup, heartbeat_seconds: float, handle: Callable[[Content], None]
    ) -> None:
        """Start both threads."""
        self._group: PeerGroup | None = group
        self._heartbeat_seconds, self._handle = heartbeat_seconds, handle
        self._parcels: queue.SimpleQueue[_Parcel] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._sender_ended = False
        self._ended: str | None = None
        # Daemons, so that an engine that fails before close() can still leave.
        self._threads = [
            threading.Thread(target=work, args=(group,), name=name, daemon=True)
            for name, work in (("peer-send", self._send_all), ("peer-receive", self._receive_all))
        ]
        for thread in self._threads:
            thread.start()

    @property
    def ended(self) -> str | None:
        """Why the link has ended, or None while it has not."""
        return self._ended

    def post(self, message: Message) -> None:
        """Send a message soon."""
        self.post_later(lambda: (message, None))

    def post_later(
        self, build: Callable[[], Content], answered: Callable[[bool], None] = _ignore
    ) -> None:
        """Send what `build` returns; the sending thread calls it, and then `answered`.

        `answered` hears once whether all of it has been sent, or False at once if the link is over.
        """
        with self._lock:
            is_over = self._sender_ended
            if not is_over:
                self._parcels.put(_Parcel(build, answered))
        if is_over:
            answered(False)

    def close(self) -> None:
        """Say goodbye and end both threads; at most the peer's timeout later. May be repeated."""
        self._end("this end has closed the link")
        for thread in self._threads:
            thread.join()
        self._group = None  # closes the connections

    def _end(self, reason: str) -> None:
        with self._lock:
            self._ended = self._ended or reason
        self._parcels.put(_Parcel(_goodbye))  # wakes the sender

    def _send_all(self, group: PeerGroup) -> None:
        try:
            while self._ended is None:
                self._deliver(group, self._next())
            group.send(*_goodbye())
        except Exception as error:  # whatever it is, nobody sends any more
            self._end(str(error))
        finally:
            self._refuse_the_rest()

    def _next(self) -> _Parcel:
        try:
            return self._parcels.get(timeout=self._heartbeat_seconds)
        except queue.Empty:
            return _Parcel(_heartbeat)

    def _deliver(self, group: PeerGroup, parcel: _Parcel) -> None:
        delivered = False
        try:
            if self._ended is None:
                group.send(*parcel.build())
                delivered = True
        finally:
            parcel.answered(delivered)

    def _refuse_the_rest(self) -> None:
        with self._lock:
            self._sender_ended = True
        while not self._parcels.empty():
            self._parcels.get().answered(False)

    def _receive_all(self, group: PeerGroup) -> None:
        reason = "the peer has said goodbye"
        try:
            while (content := group.receive())[0].kind is not Kind.GOODBYE:
                if content[0].kind is not Kind.HEARTBEAT:
                    self._handle(content)
        except Exception as error:  # whatever it is, nobody receives any more
            reason = str(error)
        self._end(reason)


def _heartbeat() -> Content:
    return Message(Kind.HEARTBEAT), None


def _goodbye() -> Content:
    return Message(Kind.GOODBYE), None


def connect(
    pool: KVPool,
    store: Store,
    rank: int,
    settings: PeerSettings,
    *,
    transport: PeerTransport,
    handle: Callable[[Content], None],
) -> PeerLink:
    """Meet the other end at a store, agree with it, and return the link.

    Raises PeerGone if it does not come or falls silent, and PeerMismatch if its KV does not fit.
    """
    group = PeerGroup(store, rank, settings)
    transport.meet(agree(group, facts_of(pool, settings), transport.offer))
    return PeerLink(group, settings.heartbeat_seconds, handle)
