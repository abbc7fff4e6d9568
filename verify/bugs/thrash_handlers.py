"""Handlers under which requests are preempted for nothing, or wait for ever.

Each function takes the sound handler and returns the one that is put in its place.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvproof.runtime import running_pass
from kvproof.runtime.books import Books
from kvproof.runtime.step_plan import StepPlan

Handler = Callable[..., Any]


def passes_over(sound: Handler) -> Handler:
    """Go on behind a request that lacks blocks, although there is a victim, under "priority"."""

    def serve_one(books: Books, plan: StepPlan, position: int, choose_victim: Any) -> Any:
        wish, _ = running_pass._wish_of_one(books, position)
        lacks = len(wish.rows) and running_pass._shortage(books, wish) is not None
        if lacks and books.config.policy == "priority":
            return position + 1
        return sound(books, plan, position, choose_victim)

    return serve_one
