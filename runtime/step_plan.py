"""What a pass has decided so far, so that a victim can be taken out of it again."""

from __future__ import annotations

import numpy as np
from attrs import define, field

from kvproof.core.arrays import Integers

_NOTHING: Integers = np.zeros(0, dtype=np.int64)


@define
class StepPlan:
    """The rows of the open step, with their tokens and the blocks they took, in order.

    Every array is int64; `rows` and `tokens` have one entry a request, `grown_rows` and
    `grown_blocks` one entry a block.
    """

    rows: Integers = _NOTHING
    tokens: Integers = _NOTHING
    grown_rows: Integers = _NOTHING
    grown_blocks: Integers = _NOTHING
    new: list[int] = field(factory=list)
    resumed: list[int] = field(factory=list)
    preempted: list[int] = field(factory=list)

    def add(self, rows: Integers, tokens: Integers) -> None:
        """Take note of scheduled rows."""
        self.rows = _joined(self.rows, rows)
        self.tokens = _joined(self.tokens, tokens)

    def add_blocks(self, rows: Integers, blocks: Integers) -> None:
        """Take note of blocks that rows took."""
        self.grown_rows = _joined(self.grown_rows, rows)
        self.grown_blocks = _joined(self.grown_blocks, blocks)

    def forget(self, row: int) -> None:
        """Leave nothing of a victim in the plan: not its tokens, not its blocks."""
        stays = self.rows != row
        self.rows, self.tokens = self.rows[stays], self.tokens[stays]
        stays = self.grown_rows != row
        self.grown_rows, self.grown_blocks = self.grown_rows[stays], self.grown_blocks[stays]


def _joined(first: Integers, second: Integers) -> Integers:
    return np.concatenate([first, second]) if len(first) else second
