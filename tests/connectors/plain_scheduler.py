"""The simplest scheduler that keeps to the protocol of connectors, in place of the real one.

Every request that has its blocks runs in every step; nobody is preempted and nothing is cached.
"""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
from attrs import define, field

from kvproof.runtime.config import SchedulerConfig
from kvproof.runtime.connector import Connector, TransferReport
from kvproof.runtime.kv_pool import KVPool
from kvproof.runtime.request import Request
from kvproof.runtime.step_tensors import Chunk, StepTensors


@define(eq=False)
class Entry:
    """A request and how far it has got."""

    request: Request
    tokens: list[int]
    block_ids: list[int] = field(factory=list)
    num_computed: int = 0
    num_loading: int = 0
    is_admitted: bool = False


class PlainScheduler:
    """Admit, load, run, release."""

    def __init__(self, config: SchedulerConfig, connector: Connector) -> None:
        """Begin with every block free."""
        self.connector, self.block_size = connector, config.block_size
        self.free = list(range(1, config.num_blocks))
        self.entries: dict[str, Entry] = {}
        self.kept: dict[str, list[int]] = {}
        self.in_step: list[Entry] = []

    def add_request(self, request: Request) -> None:
        """Queue a request."""
        self.entries[request.request_id] = Entry(request, list(request.prompt_token_ids))

    def has_unfinished_requests(self) -> bool:
        """Return whether somebody waits, loads or runs."""
        return bool(self.entries)

    def schedule(self) -> Any:
        """Admit who can be admitted, and return a step of all that can run."""
        for entry in self.entries.values():
            if not entry.is_admitted:
                self.admit(entry)
        self.in_step = [
            entry
            for entry in self.entries.values()
            if entry.is_admitted and not entry.num_loading and self.grow(entry)
        ]
        chunks = [
            Chunk(entry.tokens[entry.num_computed :], entry.block_ids, start=entry.num_computed)
            for entry in self.in_step
        ]

        def to_tensors(device: torch.device) -> StepTensors:
            return StepTensors.from_chunks(chunks, self.block_size, device)

        return SimpleNamespace(num_requests=len(chunks), to_tensors=to_tensors)

    def admit(self, entry: Entry) -> None:
        """Ask the connector, and give the request its blocks."""
        name, known = entry.request.request_id, len(entry.tokens)
        number, is_asynchronous = self.connector.match(name, (), known, 0)
        if number is None or not self.grow(entry):
            return
        entry.is_admitted, entry.num_loading = True, number if is_asynchronous else 0
        self.connector.allocated(name, entry.block_ids, 0, number)

    def grow(self, entry: Entry) -> bool:
        """Give a request the blocks that its tokens need, or none."""
        more = -(-len(entry.tokens) // self.block_size) - len(entry.block_ids)
        if more > len(self.free):
            return False
        entry.block_ids += [self.free.pop() for _ in range(more)]
        return True

    def update(self, step: Any, sampled: Sequence[Any], transfers: TransferReport) -> list[Any]:
        """Account for the samples of a step, and for the ends of transfers."""
        self.end_transfers(transfers)
        outputs = []
        for entry, token in zip(self.in_step, sampled, strict=True):
            entry.num_computed = len(entry.tokens)
            entry.tokens.append(int(token))
            outputs.append(
                SimpleNamespace(request_id=entry.request.request_id, new_token_ids=[int(token)])
            )
            if len(entry.tokens) == len(entry.request.prompt_token_ids) + entry.request.max_tokens:
                self.finish(entry)
        return outputs

    def end_transfers(self, transfers: TransferReport) -> None:
        """Let the loaded run, all but their last token loaded, and take sent blocks back."""
        assert not transfers.failed_blocks
        for name in (*transfers.received, *transfers.lost):
            entry = self.entries[name]
            loaded = entry.num_loading if name in transfers.received else 0
            entry.num_computed = min(loaded, len(entry.tokens) - 1)
            entry.num_loading = 0
        for name in transfers.sent:
            self.free += self.kept.pop(name)

    def finish(self, entry: Entry) -> None:
        """Release a request's blocks, now or when they have been sent."""
        name = entry.request.request_id
        del self.entries[name]
        if self.connector.finished(name, entry.block_ids):
            self.kept[name] = entry.block_ids
        else:
            self.free += entry.block_ids


def make(config: SchedulerConfig, connector: Connector, _: KVPool) -> PlainScheduler:
    """Return a plain scheduler."""
    return PlainScheduler(config, connector)


def fail(_: SchedulerConfig, __: Connector, ___: KVPool) -> PlainScheduler:
    """Fail, as a process does that has been set up wrongly."""
    raise SystemExit(2)
