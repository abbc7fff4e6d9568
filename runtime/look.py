"""A look at a scheduler: its books, and what a pass over them decides or has decided."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from kvproof.core import Status
from kvproof.runtime.books import Books
from kvproof.runtime.step_plan import StepPlan


@frozen(eq=False, kw_only=True)
class Look:
    """What explanations are read from; nothing that reads them changes anything.

    Attributes:
        books: the scheduler's books.
        plan: what the pass decides.
        seen: the books that the pass has changed: a copy if the step is the next one.
        steps: which step each frame in flight is, the oldest first.
        step: the step that was decided, if the plan is the last one; None if it is the next.
        is_frozen: nothing can happen any more but a call of the callers.
        note: what else is to be said, of every request.

    """

    books: Books
    plan: StepPlan
    seen: Books
    steps: Mapping[int, int]
    step: int | None = None
    is_frozen: bool = False
    note: str = ""

    @property
    def is_next(self) -> bool:
        """Whether the plan is that of the next step."""
        return self.step is None

    def name(self, row: int) -> str:
        """Return the id of the request in a row."""
        found: str = self.books.table.requests[row].request_id
        return found

    def status(self, row: int) -> Status:
        """Return the state of the request in a row."""
        return Status(self.books.state.request.cells.status[row])

    def held(self, row: int) -> int:
        """Return the blocks that the request in a row holds."""
        return self.books.state.request.cells.held[row]

    def tokens(self, row: int) -> int:
        """Return how many tokens the pass gives to a row."""
        for stretch in self.plan.stretches:
            place = (stretch.rows == row).nonzero()[0]
            if len(place):
                return int(stretch.tokens[place[0]])
        return 0
