"""What every slot must hold, as one number: the tokens of a request up to its position.

Two requests with the same first tokens have the same keys there, so that a shared prefix block is
nobody's in particular, and a block with anything else in it is seen.
"""

from __future__ import annotations

from collections.abc import Sequence

_MULTIPLIER, _MASK = 6364136223846793005, 2**62 - 1


class ContentKeys:
    """The keys of the requests of an engine, extended as their tokens become known."""

    def __init__(self) -> None:
        """Start without requests."""
        self._keys: dict[str, list[int]] = {}

    def of(self, request_id: str, token_ids: Sequence[int]) -> list[int]:
        """Return a key for each of the request's tokens."""
        keys = self._keys.get(request_id, [])
        self._keys[request_id] = extended(keys, token_ids[len(keys) :])
        return self._keys[request_id][: len(token_ids)]

    def forget(self, request_id: str) -> None:
        """Forget a request that has ended."""
        self._keys.pop(request_id, None)


def extended(keys: Sequence[int], token_ids: Sequence[int]) -> list[int]:
    """Return keys followed by those of more tokens."""
    result = list(keys)
    for token in token_ids:
        parent = result[-1] if result else 1
        result.append(((parent * _MULTIPLIER) ^ (token + 1)) & _MASK)
    return result
