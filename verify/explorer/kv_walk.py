"""Whether calls of an exploration let a token be computed from KV that is not the request's own.

The explorer knows what the scheduler keeps, and not what the memory holds. Here it is known: a load
writes when its end is reported, but for the blocks that were ever said to have failed, a
synchronous one before the step that it is part of runs; a lost load writes nothing; a load of
somebody who has ended writes too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from attrs import define, evolve, field

from kvproof.runtime import StepOutput
from kvproof.runtime.step_results import StepResults
from kvproof.verify.explorer.events import Event, Update
from kvproof.verify.explorer.machine import GO_ON, Machine
from kvproof.verify.explorer.scope import Scope, Workload
from kvproof.verify.kv_shadow import KVShadow
from kvproof.verify.simulated_connector import Load

Places = tuple[tuple[str, int], ...]


def misread(scope: Scope, workload: Workload, events: Iterable[Event]) -> str | None:
    """Return whose token was computed from KV that is not its own, and in which call."""
    return next(_Walk(Machine(scope, workload)).follow(list(events)), None)


@define
class _Walk:
    """A machine, and what its memory holds.

    Attributes:
        machine: where the calls are made.
        shadow: the memory.
        loads: the asynchronous loads that have not ended, of those who have ended too.
        misled: of each step in flight, who reads KV that is not its own.

    """

    machine: Machine
    shadow: KVShadow = field(init=False)
    loads: dict[str, Load] = field(factory=dict)
    misled: deque[set[str]] = field(factory=deque)

    def __attrs_post_init__(self) -> None:
        self.shadow = KVShadow(self.machine.scope.block_size, self._tokens)

    def follow(self, events: list[Event]) -> Iterator[str]:
        """Make the calls; yield who is given a token of foreign KV."""
        failures = (event.failed for event in events if isinstance(event, Update))
        for number, event in enumerate(events):
            if isinstance(event, Update):
                self._end_loads(event)
            self.machine.follow(event)
            outcome = self.machine.outcome
            if isinstance(outcome, StepOutput):
                self._run(outcome, next(failures, ()))
            elif isinstance(event, Update) and isinstance(outcome, StepResults):
                misled = self.misled.popleft()
                for result in outcome:
                    if result.new_token_ids and result.request_id in misled:
                        yield f"{result.request_id} in call {number}: {event}"

    def _run(self, output: StepOutput, failures: Places) -> None:
        """Start loads, do the synchronous ones, and run a step that comes back with failures."""
        for name, blocks, first, count in self.machine.connector.started:
            load = Load(name, blocks, first, first + count, frozenset())
            if self.machine.shapes[name].synchronous:
                self.shadow.fill(_with(load, failures))
            else:
                self.loads[name] = load
        tables = {name: self.machine.scheduler.block_ids(name) for name in output.req_ids}
        self.misled.append(self.shadow.run(output, tables))

    def _end_loads(self, event: Update) -> None:
        for name, load in list(self.loads.items()):
            self.loads[name] = _with(load, event.failed)
        for name in event.received:
            self.shadow.fill(self.loads.pop(name))
        for name in event.lost:
            self.loads.pop(name, None)

    def _tokens(self, name: str, count: int) -> list[int]:
        prompt = self.machine.request(name).prompt_token_ids
        return [*prompt[:count], *[GO_ON] * (count - len(prompt))]


def _with(load: Load, failures: Places) -> Load:
    places = {place for name, place in failures if name == load.request_id}
    return evolve(load, failed_places=load.failed_places | places)
