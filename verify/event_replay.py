"""A router that believes every KV event, so that it knows what the scheduler says it can share."""

from __future__ import annotations

from kvproof.runtime import Scheduler


class EventReplay:
    """The prefixes that the events of a scheduler say are published (vllm#55092)."""

    def __init__(self, scheduler: Scheduler) -> None:
        """Turn the events on; nothing may be published yet."""
        self._scheduler = scheduler
        self._hashes: set[bytes] = set()
        scheduler.take_events()

    def differences(self) -> list[str]:
        """Replay the new events; return the hashes about which they and the scheduler disagree."""
        for event in self._scheduler.take_events():
            if event["type"] == "AllBlocksCleared":
                self._hashes.clear()
            elif event["type"] == "BlockStored":
                self._hashes.update(event["block_hashes"])
            else:
                self._hashes.difference_update(event["block_hashes"])
        return sorted(item.hex() for item in self._hashes ^ self._scheduler.published_hashes())
