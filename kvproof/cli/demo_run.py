"""One run of the demo: step the engine, note what happened, and keep what is to be compared."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator

from attrs import define, field, frozen

from kvproof.cli.demo_aborts import Aborts
from kvproof.cli.demo_loads import LoadCounts
from kvproof.core import Status
from kvproof.runtime import FinishReason, Statistics
from kvproof.runtime.engine import InferenceEngine

IDLE_STEPS_MAX = 10_000


@frozen
class Event:
    """What befell one request in one step: admitted, preempted, loading, finished and so on."""

    request_id: str
    what: str


@define(eq=False)
class Run:
    """A run, how far it has got, and what the last step brought; a view reads it after each step.

    `tokens` holds what each request has sampled; `seconds` is the time spent in steps alone.
    `loads` counts what the connector does, if there is one, and `aborts` says whom to abort when.
    `aborted` and `failed` are the requests that ended before they were complete.
    """

    name: str
    engine: InferenceEngine
    tokens: dict[str, list[int]]
    loads: LoadCounts | None = None
    aborts: Aborts | None = None
    status: dict[str, Status | None] = field(init=False)
    preemptions: Counter[str] = field(factory=Counter)
    finished: set[str] = field(factory=set)
    aborted: set[str] = field(factory=set)
    failed: set[str] = field(factory=set)
    events: list[Event] = field(factory=list)
    steps: int = 0
    seconds: float = 0.0

    def __attrs_post_init__(self) -> None:
        """Note where every request is before the first step."""
        self.status = self._statuses()

    @classmethod
    def of(
        cls,
        name: str,
        engine: InferenceEngine,
        *,
        loads: LoadCounts | None = None,
        aborts: Aborts | None = None,
    ) -> Run:
        """Return a run of the requests that have been added to an engine."""
        names = engine.scheduler.statistics().blocks_by_request
        return cls(name, engine, {name: [] for name in names}, loads, aborts)

    def steps_until_done(self) -> Iterator[Run]:
        """Run step by step, and yield after each; give up where nobody gets a token any more."""
        idle = 0
        while self.engine.scheduler.has_work() and idle < IDLE_STEPS_MAX:
            idle = 0 if self._step() else idle + 1
            yield self

    @property
    def statistics(self) -> Statistics:
        """The scheduler's counts as they are now."""
        return self.engine.scheduler.statistics()

    @property
    def blocks(self) -> int:
        """Blocks that requests can hold."""
        return self.engine.scheduler.config.num_usable_blocks

    @property
    def num_tokens(self) -> int:
        """Tokens sampled so far."""
        return sum(map(len, self.tokens.values()))

    @property
    def tokens_per_second(self) -> float:
        """Sampled tokens for each second spent in steps."""
        return self.num_tokens / self.seconds if self.seconds else 0.0

    @property
    def cut_short(self) -> set[str]:
        """Requests of whose replies only the beginning can be there."""
        return self.aborted | self.failed

    def _step(self) -> int:
        if self.aborts is not None:
            going_on = [name for name in self.tokens if name not in self.finished | self.aborted]
            self.aborted.update(self.engine.scheduler.abort(self.aborts.now(going_on)))
        began = time.perf_counter()
        outputs = self.engine.step()
        self.seconds += time.perf_counter() - began
        self.steps += 1
        for output in outputs:
            self.tokens[output.request_id] += output.new_token_ids
            self._note_end(output.request_id, output.finish_reason)
        self._note_events()
        return len(outputs)

    def _note_end(self, name: str, reason: FinishReason | None) -> None:
        if reason is not None:
            self.finished.add(name)
        if reason is FinishReason.ERROR:
            self.failed.add(name)

    def _note_events(self) -> None:
        before, self.status = self.status, self._statuses()
        self.events = [
            Event(name, _befallen(before[name], status))
            for name, status in self.status.items()
            if status != before[name]
        ]
        self.preemptions.update(e.request_id for e in self.events if e.what == "preempted")

    def _statuses(self) -> dict[str, Status | None]:
        return {name: self.engine.scheduler.status(name) for name in self.tokens}


def _befallen(before: Status | None, after: Status | None) -> str:
    if after is Status.WAITING_FOR_REMOTE_KVS:
        return "loading"
    if before is Status.WAITING_FOR_REMOTE_KVS and after in (Status.WAITING, Status.PREEMPTED):
        return "loaded"
    if after is Status.PREEMPTED:
        return "preempted"
    if after is Status.RUNNING:
        return "resumed" if before is Status.PREEMPTED else "admitted"
    return "finished"
