"""Stamps for what a connector has loaded, so that a read of anything else is loud.

A slot is stamped when its load is reported, and only if it lies before the first failed block. So a
block whose load has failed, is lost or has not ended is seen when it is read.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from kvproof.runtime.connector import Connector
from kvproof.runtime.connectors.observed import ObservedConnector, ObservedLoad
from kvproof.runtime.engine.content_keys import ContentKeys
from kvproof.runtime.kv_pool import KVPool

TokensOf = Callable[[str], Sequence[int]]


class LoadedStamps(ObservedConnector):
    """A `Connector` around another one; the pool must be in debug mode."""

    def __init__(self, inner: Connector, pool: KVPool, tokens_of: TokensOf) -> None:
        """Wrap a connector.

        Args:
            inner: the connector that loads.
            pool: the memory whose slots are stamped.
            tokens_of: returns the known tokens of a live request, and none of any other.

        """
        super().__init__(inner, pool.block_size)
        self._pool, self._tokens_of = pool, tokens_of

    def load_ended(self, load: ObservedLoad, num_valid: int) -> None:
        """Stamp the loaded slots with what they must hold; nobody reads those of who has left."""
        positions = range(load.first_token, load.first_token + num_valid)
        keys = ContentKeys().of(load.request_id, self._tokens_of(load.request_id))
        if not keys or not positions:
            return
        size = self.block_size
        slots = [load.block_ids[place // size] * size + place % size for place in positions]
        owners = keys[positions.start : positions.stop]
        self._pool.stamp(self._column(slots), self._column(owners), self._column(positions))

    def _column(self, numbers: Sequence[int]) -> torch.Tensor:
        return torch.tensor(numbers, dtype=torch.int64, device=self._pool.device)
