"""What a victim policy sees of the running requests: columns that it can read, and nothing else.

They are copies, and read-only, so that a policy that writes to one by mistake is told so.
"""

from __future__ import annotations

from typing import Self

import numpy as np
from attrs import frozen
from numpy.typing import NDArray

from kvproof.core.arrays import Integers
from kvproof.runtime.request_table import RequestTable


@frozen(eq=False)
class RunningView:
    """The running requests in the order in which a step visits them; a policy returns a row.

    Attributes:
        rows: rows of the request table, int64 [running].
        priority: priority of each, int64 [running].
        arrival_time: arrival time of each in seconds, float64 [running].
        remaining: tokens that each may still sample, int64 [running].

    """

    rows: Integers
    priority: Integers
    arrival_time: NDArray[np.float64]
    remaining: Integers

    @classmethod
    def of(cls, table: RequestTable, rows: Integers) -> Self:
        """Read the columns of the given rows."""
        columns = rows.copy(), table.priority[rows], table.arrival[rows], table.remaining(rows)
        for column in columns:
            column.flags.writeable = False
        return cls(*columns)

    def __len__(self) -> int:
        """Return the number of running requests."""
        return len(self.rows)
