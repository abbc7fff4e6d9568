"""Two processes of a gloo group that send each other messages, and notice when one is gone.

What gloo does, as seen with torch 2.13 over TCP:

- the death of a process closes its connections, and whoever waits for it hears of it at once;
- a process that stands still, or a machine that is cut off, is noticed by a timeout only;
- a timeout in one operation closes *all* connections of the group. So a timed wait cannot be used
  to look whether there is something to receive, and after a timeout the peer cannot be reached any
  more. Therefore a receive is never abandoned: the other end sends heartbeats, and a silence longer
  than the timeout means that it is gone for good;
- a pending receive cannot be cancelled, so both ends say goodbye before they leave.

The group is made directly and not by `init_process_group`, whose global group an engine needs for
its own ranks.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, ProcessGroupGloo, Store, Work

from kvproof.runtime.connectors.peer_message import (
    HEADER_BYTES,
    Message,
    body_and_rows,
    decode,
    encode,
)
from kvproof.runtime.connectors.peer_settings import PeerSettings

_STORE_PREFIX = "kvproof-peer"
_TAG = 1
_Gloo: Any = ProcessGroupGloo  # its stub lacks half of what it has


class PeerGone(ConnectionError):  # noqa: N818 - the name says what happened
    """The other end has died, stands still, or has never come."""


class PeerGroup:
    """A gloo group of two; `rank` is 0 for the producer of KV and 1 for its consumer.

    Raises PeerGone if the other end does not come within the connect timeout.
    """

    def __init__(self, store: Store, rank: int, settings: PeerSettings) -> None:
        """Wait for the other end at the store, and connect to it."""
        self.rank, self._other = rank, 1 - rank
        self._timeout = timedelta(seconds=settings.peer_timeout_seconds)
        options = _Gloo._Options()
        options._devices = [_Gloo.create_device(hostname=settings.host)]
        options._timeout = timedelta(seconds=settings.connect_timeout_seconds)
        meeting_place = PrefixStore(_STORE_PREFIX, store)
        try:
            self._group = _Gloo(meeting_place, rank, 2, options)
        except RuntimeError as error:
            raise PeerGone(
                f"the peer did not come within {settings.connect_timeout_seconds} s ({error});"
                " start both ends with the same store, and check that each reaches the other's host"
            ) from error

    def send(self, message: Message, rows: Tensor | None = None) -> None:
        """Send a message, and its rows, uint8 `[blocks, bytes]` on the CPU, one at a time.

        Raises PeerGone if the other end does not take it in time.
        """
        for part in (*encode(message, rows), *(() if rows is None else rows)):
            self._wait(self._group.send([part], self._other, _TAG))

    def receive(self) -> tuple[Message, Tensor | None]:
        """Return the next message and its rows, uint8 `[blocks, bytes]` in memory of their own.

        Raises PeerGone if none comes in time, and ValueError for something else than a message.
        """
        body_bytes, (count, width) = body_and_rows(self._receive(HEADER_BYTES))
        message = decode(self._receive(body_bytes))
        if not count:
            return message, None
        rows = torch.empty(count, width, dtype=torch.uint8)
        for row in rows:
            self._wait(self._group.recv([row], self._other, _TAG))
        return message, rows

    def _receive(self, num_bytes: int) -> Tensor:
        part = torch.empty(num_bytes, dtype=torch.uint8)
        self._wait(self._group.recv([part], self._other, _TAG))
        return part

    def _wait(self, work: Work) -> None:
        try:
            work.wait(self._timeout)
        except RuntimeError as error:
            raise PeerGone(f"the peer is gone: {error}") from error
