"""One end of a link in a process of its own: `peer_process.py STORE SCENARIO [TRANSPORT]`.

What it says goes to standard output, a line each; the tests read it and may kill the process.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable

import torch
from torch.distributed.distributed_c10d import Store

from kvproof.runtime.connector import TransferReport
from kvproof.runtime.connectors.peer_decode import PeerDecodeConnector
from kvproof.runtime.connectors.peer_group import PeerGroup
from kvproof.runtime.connectors.peer_handshake import PeerMismatch
from kvproof.runtime.connectors.peer_message import Kind, Message, encode
from kvproof.runtime.connectors.peer_prefill import PeerPrefillConnector
from kvproof.runtime.connectors.peer_settings import PeerSettings
from kvproof.runtime.kv_pool import KVPool

WAIT_SECONDS = 30.0
STANDSTILL_SECONDS = 3.0
NUM_BLOCKS, BLOCK_SIZE = 9, 4
PEER_TIMEOUT_SECONDS = 2.0
SETTINGS = PeerSettings(
    "tiny",
    transport="nixl" if sys.argv[3:] == ["nixl"] else "gloo",
    peer_timeout_seconds=PEER_TIMEOUT_SECONDS,
    connect_timeout_seconds=WAIT_SECONDS,
)


def new_pool(block_size: int = BLOCK_SIZE) -> KVPool:
    """Return a pool whose block `b` holds the number `b` everywhere."""
    pool = KVPool(2, NUM_BLOCKS, 2, 4, block_size)
    pool.storage += torch.arange(NUM_BLOCKS, dtype=pool.dtype).view(-1, 1, 1, 1, 1, 1)
    return pool


def say(*words: object) -> None:
    """Write a line that the test reads."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def wait_for(poll: Callable[[], TransferReport]) -> TransferReport:
    """Return the next report that says something."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not (report := poll()) and time.monotonic() < deadline:
        time.sleep(0.01)
    return report


def prefill(store: Store) -> None:
    """Announce the prompt `a`, and leave when its blocks have been sent."""
    connector = PeerPrefillConnector(new_pool(), store, SETTINGS)
    connector.match("a", (), 10, 0)
    say("kept", connector.finished("a", [3, 1, 2]))
    say("sent", *wait_for(connector.poll).sent)
    connector.close()
    say("threads", threading.active_count())


def slow_prefill(store: Store) -> None:
    """Send a block, say so, and stand still before the others."""
    send = PeerGroup.send

    def send_in_part(self: PeerGroup, message: Message, rows: torch.Tensor | None = None) -> None:
        if rows is None:
            return send(self, message)
        for number, part in enumerate((*encode(message, rows), *rows)):
            self._wait(self._group.send([part], self._other, 1))
            if number == 2:  # the first block
                say("in mid-transfer")
                time.sleep(STANDSTILL_SECONDS)
        return None

    PeerGroup.send = send_in_part  # type: ignore[method-assign]
    prefill(store)


def dying_prefill(store: Store) -> None:
    """Answer that the blocks are there, and die at once."""
    send = PeerGroup.send

    def send_and_die(self: PeerGroup, message: Message, rows: torch.Tensor | None = None) -> None:
        send(self, message, rows)
        if message.kind is Kind.DATA:
            os.kill(os.getpid(), signal.SIGKILL)

    PeerGroup.send = send_and_die  # type: ignore[method-assign]
    prefill(store)


def decode(store: Store) -> None:
    """Load the prompt `a`, say how that ended, and leave."""
    connector = PeerDecodeConnector(new_pool(), store, SETTINGS)
    load(connector)
    connector.close()
    say("threads", threading.active_count())


def decode_unclosed(store: Store) -> None:
    """Load the prompt `a` and leave without closing, as an engine that has failed does."""
    load(PeerDecodeConnector(new_pool(), store, SETTINGS))


def load(connector: PeerDecodeConnector) -> None:
    """Load the prompt `a` into blocks 4, 5 and 6."""
    while (found := connector.match("a", (), 10, 0)[0]) is None:
        time.sleep(0.01)
    connector.allocated("a", [4, 5, 6], 0, found)
    report = wait_for(connector.poll)
    say("received", *report.received)
    say("lost", *report.lost)
    say("again", *connector.match("a", (), 10, 0))
    storage = connector._pool.storage
    say("blocks", *(int(storage[block, 0, 0, 0, 0, 0]) for block in (4, 5, 6)))


def idle_decode(store: Store) -> None:
    """Hear of the prompt `a`, say so, and never load it."""
    connector = PeerDecodeConnector(new_pool(), store, SETTINGS)
    while connector.match("a", (), 10, 0)[0] is None:
        time.sleep(0.01)
    say("heard")
    time.sleep(WAIT_SECONDS)


def decode_of_larger_blocks(store: Store) -> None:
    """Come with blocks of another size."""
    try:
        PeerDecodeConnector(new_pool(2 * BLOCK_SIZE), store, SETTINGS)
    except PeerMismatch as error:
        say("refused", error)


def prefill_refused(store: Store) -> None:
    """Meet a peer with blocks of another size."""
    try:
        PeerPrefillConnector(new_pool(), store, SETTINGS)
    except PeerMismatch as error:
        say("refused", error)


SCENARIOS = {
    scenario.__name__: scenario
    for scenario in (
        prefill,
        slow_prefill,
        dying_prefill,
        decode,
        decode_unclosed,
        idle_decode,
        decode_of_larger_blocks,
        prefill_refused,
    )
}

if __name__ == "__main__":
    from torch._C._distributed_c10d import FileStore

    torch.set_num_threads(1)
    SCENARIOS[sys.argv[2]](FileStore(sys.argv[1], 2))
