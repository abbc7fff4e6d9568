"""What the tests of the runtime share: snapshots, steps by hand, and a scheduler to drive."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from copy import copy, deepcopy
from typing import Any

import numpy as np
import pytest

from kvproof.core.tables import Tables
from kvproof.runtime import Request, RequestOutput, Scheduler, SchedulerConfig, StepOutput

Snapshot = dict[str, Any]
TakeSnapshot = Callable[[Scheduler], Snapshot]
Unchanged = Callable[..., AbstractContextManager[None]]
Advance = Callable[..., tuple[StepOutput, list[RequestOutput]]]

COLUMNS = ("request", "block", "fence", "item")
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
    for name in (
        "requests",
        "stop_token",
        "serial",
        "priority",
        "arrival",
        "several_stops",
        "row_of",
        "_vacant",
    ):
        found[f"table.{name}"] = plain(getattr(table, name))
    for name in ("tokens", "starts", "_lengths", "_used"):
        found[f"tokens.{name}"] = plain(getattr(table.tokens, name))
    for name in ("_ended", "_finished_ids", "_preemptions", "_in_flight", "_steps"):
        found[f"scheduler.{name}"] = plain(getattr(scheduler, name))
    return found | {
        "free queue": list(books.queue),
        "waiting": list(books.waiting),
        "running": books.running.rows.tolist(),
        "fences": (dict(books.fences.owners), list(books.fences._vacant)),
        "dropped until": books.dropped_until,
        "untold": dict(books.untold),
        "prefix cache": deepcopy(books.prefix._rows) if books.prefix else None,
        "prefix index": list(books.prefix.index) if books.prefix else None,
        "encoder": deepcopy(books.encoder._rows) if books.encoder else None,
    }


def plain(value: object) -> object:
    """Return a copy of a value that later changes do not reach; others count as they are."""
    if isinstance(value, Tables):
        return value.rows.tolist()
    if isinstance(value, np.ndarray):
        return value.tolist()
    return copy(value) if isinstance(value, list | dict | set | deque) else value


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


STEPS_MAX = 2_000
Sampled = Mapping[str, int | Sequence[int]]


class Loop:
    """A small scheduler whose invariants are checked after each call, and what came out of it.

    Every sample is the token 0 unless a test says otherwise.
    """

    def __init__(
        self,
        *,
        order: Callable[..., Any] | None = None,
        choose_victim: Callable[..., int] | None = None,
        **limits: Any,
    ) -> None:
        """Make a scheduler of small blocks; `limits` are fields of the configuration."""
        small = {"num_blocks": 17, "block_size": 2, "max_model_len": 64, **limits}
        self.config = SchedulerConfig(**small)
        self.scheduler = Scheduler(
            self.config, order=order, choose_victim=choose_victim, debug=True
        )
        self.results: list[RequestOutput] = []

    def add(
        self, name: str, prompt: Sequence[int] | int, max_tokens: int = 8, **options: Any
    ) -> None:
        """Add a request; a number stands for that many tokens that no other request has."""
        if isinstance(prompt, int):
            start = 1_000 * (1 + sum(name.encode()))
            prompt = range(start, start + prompt)
        self.scheduler.add_request(Request(name, tuple(prompt), max_tokens, **options))

    def step(self, sampled: Sampled | None = None, throttle: bool = False) -> StepOutput:
        """Schedule a step, read all that it says, and account for its samples."""
        output = self.scheduler.schedule(throttle)
        assert output.num_scheduled_tokens.keys() == output.new_block_ids.keys()
        assert output.scheduled_spec_decode_tokens is not None
        self.finish_step(output, sampled)
        return output

    def finish_step(self, output: StepOutput, sampled: Sampled | None = None) -> None:
        """Account for the samples of a step."""
        tokens = dict.fromkeys(output.sampled_req_ids, 0) | dict(sampled or {})
        self.results += self.scheduler.update(output, tokens)

    def steps(self, count: int) -> list[StepOutput]:
        """Run some steps."""
        return [self.step() for _ in range(count)]

    def until(self, reached: Callable[[StepOutput], object]) -> StepOutput:
        """Run until a step is as wanted, and return that step."""
        for _ in range(STEPS_MAX):
            output = self.step()
            if reached(output):
                return output
        raise AssertionError(f"not reached in {STEPS_MAX} steps")

    def run(self) -> None:
        """Run until nobody waits or runs."""
        for _ in range(STEPS_MAX):
            if not self.scheduler.has_unfinished_requests():
                return
            self.step()
        raise AssertionError(f"still unfinished after {STEPS_MAX} steps")

    def outputs(self, name: str) -> list[int]:
        """Return all tokens that a request has sampled."""
        return [
            token
            for result in self.results
            if result.request_id == name
            for token in result.new_token_ids
        ]

    def is_empty(self) -> bool:
        """Return whether every block is free again, once and for all."""
        free = self.scheduler.free_block_ids()
        return sorted(free) == list(range(1, self.config.num_blocks))


@pytest.fixture(scope="session")
def new_loop() -> type[Loop]:
    """Return the class of the driver, so that a test can make one with the limits it wants."""
    return Loop
