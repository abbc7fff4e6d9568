"""What the connector of a run does, counted."""

from __future__ import annotations

from kvproof.runtime.connector import Connector
from kvproof.runtime.connectors.observed import ObservedConnector, ObservedLoad


class LoadCounts(ObservedConnector):
    """A `Connector` around another one.

    Attributes:
        started: loads that have started.
        landed: those that brought all that they should.
        failed: those that brought less.
        lost: those whose end has never come.
        tokens_loaded: tokens that need not be computed.

    """

    def __init__(self, inner: Connector, block_size: int) -> None:
        """Start from zero."""
        super().__init__(inner, block_size)
        self.started = self.landed = self.failed = self.lost = self.tokens_loaded = 0

    def load_started(self, load: ObservedLoad) -> None:
        """Count it."""
        self.started += 1

    def load_ended(self, load: ObservedLoad, num_valid: int) -> None:
        """Count it, and what it has brought."""
        self.landed += num_valid == load.num_tokens
        self.failed += num_valid < load.num_tokens
        self.tokens_loaded += num_valid

    def load_lost(self, load: ObservedLoad) -> None:
        """Count it."""
        self.lost += 1
