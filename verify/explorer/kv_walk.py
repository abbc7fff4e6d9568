"""Whether calls of an exploration let a token be computed from KV that is not the request's own.

The explorer knows what the scheduler keeps, and not what the memory holds; here both are known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from attrs import define, field

from kvproof.runtime import StepOutput
from kvproof.runtime.step_results import StepResults
from kvproof.verify.explorer.events import Event, Update
from kvproof.verify.explorer.machine import GO_ON, Machine
from kvproof.verify.explorer.scope import Scope, Workload
from kvproof.verify.loaded_memory import LoadedMemory
from kvproof.verify.simulated_connector import Load

Places = tuple[tuple[str, int], ...]


def misread(scope: Scope, workload: Workload, events: Iterable[Event]) -> str | None:
    """Return whose token was computed from KV that is not its own, and in which call."""
    return next(_Walk(Machine(scope, workload)).follow(list(events)), None)


@define
class _Walk:
    machine: Machine
    memory: LoadedMemory = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.memory = LoadedMemory.of(self.machine.scope.block_size, self._tokens)

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
            elif isinstance(outcome, StepResults):
                for name in self.memory.misread(outcome):
                    yield f"{name} in call {number}: {event}"

    def _run(self, output: StepOutput, failures: Places) -> None:
        """Start loads, and run a step that comes back with such failures of synchronous ones."""
        for name, blocks, first, count in self.machine.connector.started:
            synchronous = self.machine.shapes[name].synchronous
            failed = frozenset(place for who, place in failures if who == name and synchronous)
            load = Load(name, blocks, first, first + count, failed)
            (self.memory.load_now if synchronous else self.memory.start)(load)
        block_ids = self.machine.scheduler.block_ids
        self.memory.run(output, {name: block_ids(name) for name in output.req_ids})

    def _end_loads(self, event: Update) -> None:
        for name, place in event.failed:
            if name in self.memory.loads:
                self.memory.fail(name, [place])
        for name in event.received:
            self.memory.receive(name)
        for name in event.lost:
            self.memory.lose(name)

    def _tokens(self, name: str, count: int) -> list[int]:
        prompt = self.machine.request(name).prompt_token_ids
        return [*prompt[:count], *[GO_ON] * (count - len(prompt))]
