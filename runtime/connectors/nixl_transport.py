"""Rows through NIXL: the consumer reads them out of the producer's pool, without its help.

This is optional: `pip install kvproof[nixl]` on both ends, and `PeerSettings(transport="nixl")`.
Tried with nixl 1.5 and its UCX backend between two processes on one machine without a GPU: blocks
arrive as they are; if the producer has died the read fails after about a second, with
NIXL_ERR_REMOTE_DISCONNECT. Reads out of CUDA memory and between machines have not been tried.

What is said still goes through the link, and so do checksums: a read that comes too late, from
blocks that have been given back, is found by them. For these the producer copies each block to the
host once. The consumer reads into host memory of its own, as every transport here does.
"""

from __future__ import annotations

import base64
import json
import threading
import time
import uuid
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from kvproof.runtime.connectors.block_bytes import as_stored, checksums, take_rows
from kvproof.runtime.connectors.peer_message import Kind, Message
from kvproof.runtime.connectors.peer_transport import Deliver
from kvproof.runtime.errors import CallerError
from kvproof.runtime.kv_pool import KVPool

_POLL_SECONDS = 0.0005


class NixlTransport:
    """One end: the pool is registered for reading, and one thread reads what was answered.

    Raises CallerError if the package `nixl` is not there.
    """

    reads_later = True

    def __init__(self, pool: KVPool, timeout_seconds: float) -> None:
        """Register the pool's memory."""
        self._pool, self._timeout_seconds = pool, timeout_seconds
        self._agent = _new_agent()
        self._registered = self._agent.register_memory(as_stored(pool, pool.storage))
        self.offer = json.dumps(
            {
                "agent": base64.b64encode(self._agent.get_agent_metadata()).decode(),
                "address": pool.data_ptr,
                "memory": "VRAM" if pool.device.type == "cuda" else "DRAM",
                "device": pool.device.index or 0,
            }
        )
        self._peer: dict[str, Any] = {}
        self._peer_name: Any = None
        self._is_closing = threading.Event()
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="peer-nixl")
        self._stuck: list[tuple[Any, Tensor]] = []

    def meet(self, offer: str) -> None:
        """Take note of where the other end's pool is."""
        self._peer = json.loads(offer)
        self._peer_name = self._agent.add_remote_agent(base64.b64decode(self._peer["agent"]))

    def pack(self, request_id: str, block_ids: Sequence[int]) -> tuple[Message, Tensor | None]:
        """Return which blocks to read, and their checksums."""
        rows = take_rows(self._pool, block_ids)
        return (
            Message(Kind.DATA, request_id, checksums=checksums(rows), block_ids=tuple(block_ids)),
            None,
        )

    def unpack(self, message: Message, rows: Tensor | None, deliver: Deliver) -> None:
        """Read the blocks in a thread of its own, and hand them over."""
        self._reader.submit(lambda: deliver(self._read(message.block_ids)))

    def close(self) -> None:
        """Give up what is being read, and take the pool's registration back."""
        if self._is_closing.is_set():
            return
        self._is_closing.set()
        self._reader.shutdown(cancel_futures=True)
        self._agent.deregister_memory(self._registered)

    def _read(self, block_ids: Sequence[int]) -> Tensor | None:
        rows = torch.empty(len(block_ids), self._pool.block_bytes, dtype=torch.uint8)
        registered = self._agent.register_memory(rows)
        try:
            return rows if self._has_read(rows, block_ids) else None
        # NIXL's errors have no common class of their own.
        except Exception:
            return None
        finally:
            self._agent.deregister_memory(registered)

    def _has_read(self, rows: Tensor, block_ids: Sequence[int]) -> bool:
        width, agent = rows.shape[1], self._agent
        here = [(rows.data_ptr() + place * width, width, 0) for place in range(len(rows))]
        base, device = self._peer["address"], self._peer["device"]
        there = [(base + block * width, width, device) for block in block_ids]
        transfer = agent.initialize_xfer(
            "READ",
            agent.get_xfer_descs(here, "DRAM"),
            agent.get_xfer_descs(there, self._peer["memory"]),
            self._peer_name,
        )
        try:
            return self._is_done(transfer)
        finally:
            self._release(transfer, rows)

    def _is_done(self, transfer: Any) -> bool:
        deadline = time.monotonic() + self._timeout_seconds
        state = self._agent.transfer(transfer)
        while state == "PROC" and time.monotonic() < deadline and not self._is_closing.is_set():
            time.sleep(_POLL_SECONDS)
            state = self._agent.check_xfer_state(transfer)
        return bool(state == "DONE")

    def _release(self, transfer: Any, rows: Tensor) -> None:
        """Abort what is not done; memory that may still be written to must not be given back."""
        try:
            self._agent.release_xfer_handle(transfer)
        except Exception:
            self._stuck.append((transfer, rows))


def _new_agent() -> Any:
    try:
        from nixl._api import nixl_agent, nixl_agent_config
    except ImportError as error:
        raise CallerError(
            f"transport is 'nixl', but it cannot be imported ({error}); install kvproof[nixl], or"
            " leave transport at 'gloo'."
        ) from error
    return nixl_agent(f"kvproof-{uuid.uuid4().hex}", nixl_agent_config(backends=["UCX"]))
