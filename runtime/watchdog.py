"""The watchdog: a pass that changes nothing though work is unfinished, and nothing will.

A freeze is told by the pass itself, the moment it happens, and not by a timeout: with no frame in
flight and no transfer pending the next pass would decide the same. Wish of vllm#56816; the freezes
it is for: vllm#45406, vllm#57841, vllm#39734.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from kvproof.core import Status
from kvproof.runtime.books import Books
from kvproof.runtime.demand import Quantity
from kvproof.runtime.errors import Frozen
from kvproof.runtime.explanation import Explanation
from kvproof.runtime.step_plan import StepPlan

_LOG = logging.getLogger(__name__)

OnFreeze = Callable[[Sequence[Explanation]], None]


def is_freeze(books: Books, plan: StepPlan, *, decided_by: Books | None = None) -> bool:
    """Return whether nothing can happen any more but a call of the callers.

    Args:
        books: the scheduler's books.
        plan: what the pass has decided.
        decided_by: the books that the pass changed, if it was tried on a copy.

    """
    step = (decided_by or books).state.step
    moves = len(plan.joined().rows) or plan.preempted or plan.moved
    deferred = plan.deferred or step.is_deferring
    if moves or deferred or books.in_flight or plan.awaits_frames:
        return False
    if any(demand.quantity is Quantity.ANSWER for demand in plan.refused.values()):
        return False
    return _has_work(books) and not _transfer_is_pending(books)


def _has_work(books: Books) -> bool:
    pool, transfers = books.state.pool, books.transfers
    loads = 0 if transfers is None else transfers.num_loading()
    return pool.running + pool.waiting + loads > 0


def _transfer_is_pending(books: Books) -> bool:
    """Return whether a load or a send is to end; a load that ended unnoticed is none."""
    transfers = books.transfers
    if transfers is None:
        return False
    request = books.state.request
    loading = request.loading & (request.status == Status.WAITING_FOR_REMOTE_KVS)
    pending = transfers.num_obligations or transfers.connector.has_pending_transfers()
    return bool(loading.any()) or bool(pending)


class Watchdog:
    """Counts freezes, and says each of them once.

    Attributes:
        num_freezes: freezes since the start.
        is_frozen: the last step was one of a freeze.

    """

    def __init__(self, on_freeze: OnFreeze | None, *, raises: bool) -> None:
        """Start with none; `raises` says what is done with one if there is no handler."""
        self.num_freezes = 0
        self.is_frozen = False
        self._on_freeze, self._raises = on_freeze, raises

    def note(self, frozen: bool, explain: Callable[[], Sequence[Explanation]]) -> None:
        """Take note whether a step was one of a freeze.

        Raises:
            Frozen: If it is the first of it, nobody handles freezes, and they are to be raised.

        """
        begins, self.is_frozen = frozen and not self.is_frozen, frozen
        if not begins:
            return
        self.num_freezes += 1
        reasons = explain()
        if self._on_freeze is not None:
            self._on_freeze(reasons)
            return
        text = "\n".join(map(str, reasons))
        message = f"frozen: a step changed nothing, and nothing else will.\n{text}"
        if self._raises:
            raise Frozen(message)
        _LOG.error("%s", message)
