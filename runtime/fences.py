"""Releasing blocks: every table goes behind a fence, and is free when its last frame is back.

With nothing in flight a fence drains at once; there is no second way to free a block.
Rule: deferred frees of vLLM (vllm#45357).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kvproof.core import State, batches
from kvproof.core.arrays import Integers
from kvproof.runtime.errors import BrokenInvariant
from kvproof.runtime.free_queue import FreeQueue


class Fences:
    """The fences in use, oldest first, and the free queue that their blocks return to.

    A freed block that is published waits behind all others to be taken, so that it can be shared
    until then; one that is not is taken first. Rule: vLLM BlockPool.free_blocks.
    `on_free` is called with the ids of blocks whose content nobody can want any more, int64 [n].

    Attributes:
        owners: whose blocks each fence in use holds back, as request ids, the oldest first.

    """

    def __init__(
        self,
        state: State,
        queue: FreeQueue,
        on_free: Callable[[Integers], None] | None,
        *,
        early: bool = False,
    ) -> None:
        """Start with every fence vacant; `early` waits for no frame, as only the reference does."""
        self._state, self._queue, self._on_free = state, queue, on_free
        self._early = early
        self._vacant = list(range(state.fence.capacity - 1, -1, -1))
        self.owners: dict[int, str] = {}

    def __len__(self) -> int:
        """Return the number of fences that hold blocks back."""
        return len(self.owners)

    def __iter__(self) -> Iterator[int]:
        """Yield the fences that hold blocks back, the oldest first."""
        return iter(self.owners)

    def vacant(self) -> int:
        """Return a fence without blocks, after making room for it."""
        if not self._vacant:
            capacity = self._state.fence.capacity
            self._state.fence.reserve(2 * capacity)
            self._vacant = list(range(2 * capacity - 1, capacity - 1, -1))
        return self._vacant[-1]

    def close(self, fence: int, owner: str) -> None:
        """Take note that a row has just moved the table of `owner` behind the fence of `vacant`."""
        self._vacant.remove(fence)
        self.owners[fence] = owner

    def drain(self) -> None:
        """Give back the blocks of every fence whose last frame has come back, in order."""
        for fence in [item for item in self.owners if self._is_over(item)]:
            del self.owners[fence]
            self._drain_one(fence)
            self._vacant.append(fence)

    def snapshot(self) -> tuple[list[int], dict[int, str]]:
        """Return which fences are vacant and which in use, for `restore`."""
        return self._vacant.copy(), self.owners.copy()

    def restore(self, kept: tuple[list[int], dict[int, str]]) -> None:
        """Use the fences that were in use when `snapshot` was called."""
        vacant, owners = kept
        self._vacant, self.owners = vacant.copy(), owners.copy()

    def _is_over(self, fence: int) -> bool:
        cells = self._state.fence.cells
        if cells.pinned[fence]:
            return False
        return self._early or cells.until[fence] <= self._state.step.returned

    def _drain_one(self, fence: int) -> None:
        give_back = batches.drain_early if self._early else batches.drain
        blocks = give_back(self._state, fence)
        if blocks is None:
            raise BrokenInvariant(f"fence {fence} is over but its blocks cannot be released.")
        freed = blocks[self._state.block.queued[blocks]]
        published = self._state.block.content[freed] != 0
        self._queue.put_first(freed[~published].tolist())
        self._queue.put_last(freed[published].tolist())
        if self._on_free is not None and not published.all():
            self._on_free(freed[~published])
