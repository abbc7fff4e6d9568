"""The outputs of one step, built one by one when somebody looks at them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import define
from numpy.typing import NDArray

from kvproof.core.arrays import Integers
from kvproof.runtime.request import FinishReason, RequestOutput
from kvproof.runtime.samples import Samples


@define(eq=False)  # made in each step, and a frozen one takes three times as long to make
class StepResults:
    """What `Scheduler.update` returns: iterate it for a `RequestOutput` of each accepted sample.

    Attributes:
        requests: the requests that got a token, object [S].
        rows: the row of each, int64 [S].
        samples: the tokens of each.
        reasons: why a request ended, for the places that did.

    """

    requests: NDArray[Any]
    rows: Integers
    samples: Samples
    reasons: Mapping[int, FinishReason]

    def __len__(self) -> int:
        """Return the number of outputs."""
        return len(self.requests)

    def __iter__(self) -> Iterator[RequestOutput]:
        """Yield the outputs in the order of the batch."""
        pairs = zip(self.requests, self.samples.lists(), strict=True)
        for place, (request, tokens) in enumerate(pairs):
            yield RequestOutput(request.request_id, tuple(tokens), self.reasons.get(place))

    def ended_rows(self) -> list[int]:
        """Return the rows of the requests that ended, in the order of the batch.

        A session whose turn is over is parked; it has not ended, unless its load has failed.
        """
        return [
            int(self.rows[place])
            for place, reason in self.reasons.items()
            if reason is FinishReason.ERROR or not self.requests[place].resumable
        ]

    def finished(self) -> list[RequestOutput]:
        """Return only the outputs that are the last of their request."""
        return [output for output in self if output.finished] if self.reasons else []
