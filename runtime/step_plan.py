"""What a pass has decided so far, so that a victim can be taken out of it again."""

from __future__ import annotations

import numpy as np
from attrs import define, field

from kvproof.core.arrays import Flags, Integers
from kvproof.runtime.demand import Demand


@define(eq=False)  # made in each step, and a frozen one takes three times as long to make
class Stretch:
    """Requests that are scheduled together, in order.

    Attributes:
        rows: rows of the request table, int64 [n].
        tokens: tokens of each in this step, int64 [n].
        computed: tokens of each computed before this step, int64 [n].
        known: tokens of each that are known, int64 [n].
        grown_rows: the row that took each new block, a row's blocks side by side, int64 [k].
        grown_blocks: the new blocks, int64 [k].
        grown_places: where each of `grown_rows` stands in `rows`, int64 [k], if that is known and
            no row takes two; None otherwise.

    """

    rows: Integers
    tokens: Integers
    computed: Integers
    known: Integers
    grown_rows: Integers
    grown_blocks: Integers
    grown_places: Integers | None = None

    def written(self) -> Integers:
        """Return the tokens of each that are known and written once the step has run, int64 [n]."""
        written: Integers = np.minimum(self.computed + self.tokens, self.known)
        return written

    def without(self, row: int) -> Stretch:
        """Return the stretch with nothing of `row` in it."""
        stays: Flags = self.rows != row
        grown: Flags = self.grown_rows != row
        return Stretch(
            self.rows[stays],
            self.tokens[stays],
            self.computed[stays],
            self.known[stays],
            self.grown_rows[grown],
            self.grown_blocks[grown],
        )


_NO_ROWS: Integers = np.zeros(0, dtype=np.int64)
NOTHING = Stretch(_NO_ROWS, _NO_ROWS, _NO_ROWS, _NO_ROWS, _NO_ROWS, _NO_ROWS)


@define
class StepPlan:
    """The stretches of the open step, and who was admitted or preempted in it (as rows).

    `tables` holds the whole block table of each admitted row, hits first; `deferred` says that
    requests were left waiting because the step defers prefills; `awaits_frames` that one is to be
    preempted as soon as no frame in flight touches its blocks. `refused` says, by row, what was
    short for whom, unless it got it later in the same pass; `stopped_at` is the row behind which
    nobody was looked at; `moved` says that the pass started or ended a load.
    """

    stretches: list[Stretch] = field(factory=list)
    new: list[int] = field(factory=list)
    resumed: list[int] = field(factory=list)
    preempted: list[int] = field(factory=list)
    tables: dict[int, list[int]] = field(factory=dict)
    deferred: bool = False
    awaits_frames: bool = False
    refused: dict[int, Demand] = field(factory=dict)
    stopped_at: int | None = None
    moved: bool = False

    def grown(self, row: int) -> list[int]:
        """Return the blocks that a row takes in the step."""
        found = [stretch.grown_blocks[stretch.grown_rows == row] for stretch in self.stretches]
        return [block for blocks in found for block in blocks.tolist()]

    def forget(self, row: int) -> None:
        """Leave nothing of a victim in the plan: not its tokens, not its blocks."""
        self.stretches = [stretch.without(row) for stretch in self.stretches]

    def leave(self, row: int) -> None:
        """Take note that a request has ended: nobody is refused, or stands behind it, any more."""
        self.refused.pop(row, None)
        if self.stopped_at == row:
            self.stopped_at = None

    def joined(self) -> Stretch:
        """Return all stretches as one."""
        if len(self.stretches) == 1:
            return self.stretches[0]
        if not self.stretches:
            return NOTHING
        return Stretch(
            np.concatenate([stretch.rows for stretch in self.stretches]),
            np.concatenate([stretch.tokens for stretch in self.stretches]),
            np.concatenate([stretch.computed for stretch in self.stretches]),
            np.concatenate([stretch.known for stretch in self.stretches]),
            np.concatenate([stretch.grown_rows for stretch in self.stretches]),
            np.concatenate([stretch.grown_blocks for stretch in self.stretches]),
        )
