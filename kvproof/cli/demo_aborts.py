"""Who is aborted in a run of the demo, and when: at random moments, the same for the same seed."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

STEPS_BETWEEN = 12


class Aborts:
    """Up to `count` aborts, each before a random step and of a random request."""

    def __init__(self, count: int, seed: int) -> None:
        """Choose by the seed."""
        self._left, self._random = count, Random(seed)

    def now(self, request_ids: Sequence[str]) -> list[str]:
        """Return which of these requests to abort before the next step; mostly none."""
        if not self._left or not request_ids or self._random.randrange(STEPS_BETWEEN):
            return []
        self._left -= 1
        return [self._random.choice(request_ids)]
