"""What a connector has offered and nobody has taken up yet.

An offer binds nobody: `match` may be asked any number of times, and the request may be refused,
preempted or aborted before `allocated` (public reports: lmc#1034, vllm#35931). So an offer is only
remembered here, and holds neither memory nor a file.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import frozen

from kvproof.runtime.errors import CallerError


@frozen
class Load:
    """Blocks to fill, and the hash of the prefix that ends with each; equally many."""

    block_hashes: tuple[bytes, ...]
    block_ids: tuple[int, ...]


@frozen
class _Promise:
    first_block: int
    block_hashes: tuple[bytes, ...]


class Promises:
    """The last offer to each request; whole blocks only."""

    def __init__(self, block_size: int) -> None:
        """Start without offers; a block holds `block_size` tokens."""
        self._size = block_size
        self._promises: dict[str, _Promise] = {}

    def make(
        self,
        request_id: str,
        block_hashes: Sequence[bytes],
        num_tokens: int,
        num_computed_tokens: int,
        is_there: Callable[[bytes], bool],
    ) -> tuple[int, bool]:
        """Answer `match`: offer the unbroken chain of blocks that are there, from the tokens on.

        Returns:
            The number of tokens, a multiple of the block size, and True; or 0 and False, as vLLM
            KVConnectorBase_V1 has it. The answer may cover every token of the request.

        """
        first, offset = divmod(num_computed_tokens, self._size)
        # A load into the middle of a block would write over tokens that are computed.
        end = first if offset else num_tokens // self._size
        found: list[bytes] = []
        for block_hash in block_hashes[first:end]:
            if not is_there(block_hash):
                break
            found.append(block_hash)
        self.drop(request_id)
        if found:
            self._promises[request_id] = _Promise(first, tuple(found))
        return len(found) * self._size, bool(found)

    def take(
        self, request_id: str, block_ids: Sequence[int], first_token: int, num_tokens: int
    ) -> Load | None:
        """Answer `allocated`: return what is to be loaded, or None if nothing was offered.

        An offer of which nothing is taken is a load of no blocks, and has its end like any other
        (public report: vllm#56640). Part of the last block counts as the whole.

        Raises:
            CallerError: If more is asked for than was offered, or not from the start of a block.

        """
        promise = self._promises.get(request_id)
        if promise is None and not num_tokens:
            return None
        offered = promise or _Promise(0, ())
        first, offset = divmod(first_token, self._size)
        end = -(-(first_token + num_tokens) // self._size) if num_tokens else first
        start, last = offered.first_block, offered.first_block + len(offered.block_hashes)
        if num_tokens and (offset or not start <= first < end <= min(last, len(block_ids))):
            raise CallerError(
                f"allocated({request_id!r}): got a load of {num_tokens} tokens from token "
                f"{first_token} into a table of {len(block_ids)} blocks, expected one within tokens"
                f" {start * self._size} to {last * self._size}, from the start of a block on, and "
                "a table that covers it; load what the last match has offered, or 0 tokens"
            )
        self.drop(request_id)
        hashes = offered.block_hashes[first - start : end - start] if num_tokens else ()
        return Load(hashes, tuple(block_ids[first:end]) if num_tokens else ())

    def drop(self, request_id: str) -> None:
        """Forget the offer to a request, if there is one."""
        self._promises.pop(request_id, None)
