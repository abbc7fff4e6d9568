"""KV events: what was published and what was evicted, in vLLM's fields, for routers that listen.

Replaying a stream gives the index. Rule: vLLM kv_events.BlockStored, BlockRemoved,
AllBlocksCleared; unlike vllm#55092, a removal is reported only with the last copy of a prefix.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define, field

from kvproof.runtime.block_keys import Keys
from kvproof.runtime.prefixes import Prefix

Event = dict[str, Any]
MEDIUM = "GPU"


@define
class EventLog:
    """Events since they were last taken; nothing is kept until somebody wants them."""

    wanted: bool = False
    _events: list[Event] = field(factory=list)

    def stored(
        self, prefixes: Sequence[Prefix], tokens: list[int], block_size: int, keys: Sequence[Keys]
    ) -> None:
        """Log that blocks with consecutive content were published."""
        before = prefixes[0].before
        self._add(
            {
                "type": "BlockStored",
                "block_hashes": [prefix.digest for prefix in prefixes],
                "parent_block_hash": before.digest if before else None,
                "token_ids": tokens,
                "block_size": block_size,
                "lora_id": None,
                "medium": MEDIUM,
                "lora_name": None,
                "extra_keys": [own or None for own in keys],
                "group_idx": 0,
            }
        )

    def removed(self, prefix: Prefix) -> None:
        """Log that the last block with some content was taken for something else."""
        event = {"type": "BlockRemoved", "block_hashes": [prefix.digest]}
        self._add({**event, "medium": MEDIUM, "group_idx": 0})

    def cleared(self) -> None:
        """Log that nothing is published any more."""
        self._add({"type": "AllBlocksCleared"})

    def take(self) -> list[Event]:
        """Return the events since the last call, in order, and forget them."""
        events, self._events = self._events, []
        return events

    def _add(self, event: Event) -> None:
        if self.wanted:
            self._events.append(event)
