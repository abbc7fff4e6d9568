"""When a connector hears that a block is written: while the block still holds it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import pytest

from kvproof.runtime import Request, Scheduler, SchedulerConfig, StepOutput
from kvproof.runtime.connector import NOTHING_HAPPENED, TransferReport


class Listener:
    """A connector that loads nothing and takes note of what it hears of blocks."""

    def __init__(self) -> None:
        """Start without blocks."""
        self.taken: list[tuple[bytes, int]] = []
        self.evicted_first: list[tuple[bytes, int]] = []

    def match(self, *_: object) -> tuple[int | None, bool]:
        """Offer nothing."""
        return 0, False

    def allocated(self, *_: object) -> None:
        """Load nothing."""

    def written(self, block_hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Take note of blocks that have been taken for something else by now."""
        pairs = zip(block_hashes, block_ids, strict=True)
        self.evicted_first += [pair for pair in pairs if pair in self.taken]

    def evicted(self, block_hashes: Sequence[bytes], block_ids: Sequence[int]) -> None:
        """Take note of blocks that are taken in this step."""
        self.taken += zip(block_hashes, block_ids, strict=True)

    def preempted(self, *_: object) -> None:
        """Do nothing."""

    def finished(self, *_: object) -> bool:
        """Keep nothing."""
        return False

    def aborted(self, *_: object) -> None:
        """Do nothing."""

    def poll(self) -> TransferReport:
        """Report nothing."""
        return NOTHING_HAPPENED

    def has_pending_transfers(self) -> bool:
        """Return False."""
        return False

    def close(self) -> None:
        """Do nothing."""


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_block_is_reported_before_it_is_taken_again(steps: int) -> None:
    """A block that a victim filled with its last token is reported before another overwrites it."""
    listener, in_flight = Listener(), deque[StepOutput]()
    config = SchedulerConfig(
        num_blocks=9,
        block_size=2,
        max_model_len=64,
        max_steps_in_flight=steps,
        enable_prefix_caching=True,
    )
    scheduler = Scheduler(config, connector=listener, debug=True)
    for number, length in enumerate((1, 2, 3, 4)):
        scheduler.add_request(Request(f"request-{number}", [number] * length, 10))
    while scheduler.has_work():
        output = scheduler.schedule()
        in_flight.append(output)
        while len(in_flight) > (steps - 1 if output.num_requests else 0):
            oldest = in_flight.popleft()
            scheduler.update(oldest, [0] * len(oldest.sampling_places))
            listener.taken.clear()

    assert scheduler.statistics().num_preemptions > 0
    assert listener.evicted_first == []
