"""How often what has happened to transfers; counted from any thread, the first trouble logged."""

from __future__ import annotations

import logging
from collections import Counter
from threading import Lock

logger = logging.getLogger(__name__)


class TransferTally:
    """Counters by name."""

    def __init__(self) -> None:
        """Start at zero."""
        self._counts: Counter[str] = Counter()
        self._lock = Lock()

    def __getitem__(self, name: str) -> int:
        """Return how often something has happened."""
        with self._lock:
            return self._counts[name]

    def add(self, name: str) -> int:
        """Count something once more and return how often it has happened."""
        with self._lock:
            self._counts[name] += 1
            return self._counts[name]

    def trouble(self, name: str, problem: object) -> None:
        """Count something that went wrong; only the first of a name is logged."""
        if self.add(name) == 1:
            logger.warning("%s (further ones are counted only, as %s)", problem, name)
