"""A snapshot of all that a scheduler holds, and steps by hand."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy
from typing import Any

import numpy as np
import pytest

from kvproof.core.tables import Tables
from kvproof.runtime import RequestOutput, Scheduler, StepOutput

Snapshot = dict[str, Any]
TakeSnapshot = Callable[[Scheduler], Snapshot]
Unchanged = Callable[..., AbstractContextManager[None]]
Advance = Callable[..., tuple[StepOutput, list[RequestOutput]]]

COLUMNS = ("request", "block", "fence")
SINGLES = ("pool", "step")


def take_snapshot(scheduler: Scheduler) -> Snapshot:
    """Return a deep copy of the state, the orders and the tables of a scheduler, by name."""
    books = scheduler._books
    found = {
        f"{part}.{name}": plain(getattr(getattr(books.state, part), name))
        for part in (*COLUMNS, *SINGLES)
        for name in type(getattr(books.state, part)).__slots__
        if name not in {"cells", "scratch"}
    }
    table = books.table
    for name in ("requests", "stop_token", "serial", "several_stops", "row_of", "_vacant"):
        found[f"table.{name}"] = plain(getattr(table, name))
    for name in ("tokens", "starts", "_lengths", "_used"):
        found[f"tokens.{name}"] = plain(getattr(table.tokens, name))
    for name in ("_ended", "_finished_ids", "_preemptions", "_in_flight"):
        found[f"scheduler.{name}"] = plain(getattr(scheduler, name))
    return found | {
        "free queue": list(books.queue),
        "waiting": list(books.waiting),
        "running": books.running.rows.tolist(),
        "fences": (list(books.fences._used), list(books.fences._vacant)),
        "aborted in flight": books.aborted_in_flight,
    }


def plain(value: object) -> object:
    """Return a copy of a value that later changes do not reach; others count as they are."""
    if isinstance(value, Tables):
        return value.rows.tolist()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return copy(value) if isinstance(value, list | dict | set) else value


@pytest.fixture
def snapshot() -> TakeSnapshot:
    """Return the function that copies all that a scheduler holds."""
    return take_snapshot


@pytest.fixture
def unchanged() -> Unchanged:
    """Return a context that fails if anything of a scheduler changes in it."""

    @contextmanager
    def check(scheduler: Scheduler, but: Sequence[str] = ()) -> Iterator[None]:
        before = take_snapshot(scheduler)
        yield
        after = take_snapshot(scheduler)
        assert [name for name in before if before[name] != after[name] and name not in but] == []
        scheduler.check()

    return check


@pytest.fixture
def advance() -> Advance:
    """Return a function that schedules and updates, with one token for all or one for each id."""

    def step(
        scheduler: Scheduler, token: int = 0, **tokens: int
    ) -> tuple[StepOutput, list[RequestOutput]]:
        output = scheduler.schedule()
        sampled = {name: tokens.get(name, token) for name in output.sampled_req_ids}
        return output, list(scheduler.update(output, sampled))

    return step
