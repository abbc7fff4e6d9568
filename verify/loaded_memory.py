"""The KV memory of a run that is loaded into: what loads write, and when.

A load writes when its end is reported, but for the blocks that were ever said to have failed; a
synchronous one writes before the step that it is part of runs. A load that is lost writes nothing.
One of a request that has ended by then writes too.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

from attrs import define, evolve, field

from kvproof.runtime import StepOutput
from kvproof.runtime.step_results import StepResults
from kvproof.verify.kv_shadow import KVShadow, Tokens
from kvproof.verify.simulated_connector import Load


@define
class LoadedMemory:
    """What each slot holds, and who reads what is not its own.

    Attributes:
        shadow: the slots.
        loads: by request, the asynchronous loads that have not ended.

    """

    shadow: KVShadow
    loads: dict[str, Load] = field(factory=dict)
    _misled: deque[set[str]] = field(factory=deque)

    @classmethod
    def of(cls, block_size: int, tokens: Tokens) -> LoadedMemory:
        """Return memory that nobody has written; see `KVShadow`."""
        return cls(KVShadow(block_size, tokens))

    def load_now(self, load: Load) -> None:
        """Do a synchronous load."""
        self.shadow.fill(load)

    def start(self, load: Load) -> None:
        """Start an asynchronous load."""
        self.loads[load.request_id] = load

    def fail(self, name: str, places: Iterable[int]) -> None:
        """Let a load leave out the blocks at these places of the block table."""
        load = self.loads[name]
        self.loads[name] = evolve(load, failed_places=load.failed_places.union(places))

    def receive(self, name: str) -> None:
        """Let a load write what it has brought; one that is over writes no more."""
        if name in self.loads:
            self.shadow.fill(self.loads.pop(name))

    def lose(self, name: str) -> None:
        """Let a load end without a word."""
        self.loads.pop(name, None)

    def run(self, output: StepOutput, tables: dict[str, list[int]]) -> None:
        """Let a step read and write."""
        self._misled.append(self.shadow.run(output, tables))

    def misread(self, results: StepResults) -> list[str]:
        """Return who is given tokens, by the oldest step, that it computed from foreign KV."""
        misled = self._misled.popleft()
        return [r.request_id for r in results if r.new_token_ids and r.request_id in misled]
