"""The outputs of one step, built one by one when somebody looks at them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from attrs import frozen
from numpy.typing import NDArray

from kvproof.core.arrays import Integers
from kvproof.runtime.request import FinishReason, RequestOutput


@frozen(eq=False)
class StepResults:
    """What `Scheduler.update` returns: iterate it for a `RequestOutput` of each accepted sample.

    Attributes:
        requests: the requests that got a token, object [S].
        rows: the row of each, int64 [S].
        tokens: the token of each, int64 [S].
        reasons: why a request ended, for the places that did.

    """

    requests: NDArray[Any]
    rows: Integers
    tokens: Integers
    reasons: Mapping[int, FinishReason]

    def __len__(self) -> int:
        """Return the number of outputs."""
        return len(self.requests)

    def __iter__(self) -> Iterator[RequestOutput]:
        """Yield the outputs in the order of the batch."""
        for place, (request, token) in enumerate(
            zip(self.requests, self.tokens.tolist(), strict=True)
        ):
            yield RequestOutput(request.request_id, (token,), self.reasons.get(place))

    def ended_rows(self) -> list[int]:
        """Return the rows of the requests that ended, in the order of the batch."""
        return [int(self.rows[place]) for place in self.reasons]

    def finished(self) -> list[RequestOutput]:
        """Return only the outputs that are the last of their request."""
        return [
            RequestOutput(self.requests[place].request_id, (int(self.tokens[place]),), reason)
            for place, reason in sorted(self.reasons.items())
        ]
