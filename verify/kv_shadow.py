"""A shadow of the KV memory: what each slot holds, as a hash of all tokens up to its position."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence

from attrs import define, field

from kvproof.runtime import StepOutput
from kvproof.verify.simulated_connector import Load

Tokens = Callable[[str, int], Sequence[int]]


@define
class KVShadow:
    """Slots by (block, offset); `tokens` returns so many first tokens of a request.

    Steps run in the order in which they are scheduled, so that a step may be looked at at once.
    """

    block_size: int
    tokens: Tokens
    _slots: dict[tuple[int, int], int] = field(factory=dict)

    def fill(self, load: Load) -> None:
        """Write what a load has brought."""
        contents = self._contents(load.request_id, load.end)
        for position in range(load.first, load.end):
            if position // self.block_size not in load.failed_places:
                self._slots[self._slot(load.blocks, position)] = contents[position]

    def run(self, output: StepOutput, tables: dict[str, list[int]]) -> set[str]:
        """Write what a step writes; return the requests that read a slot which is not their own."""
        starts = dict(zip(output.req_ids, output.computed.tolist(), strict=True))
        contents = {
            name: self._contents(name, starts[name] + count)
            for name, count in output.num_scheduled_tokens.items()
        }
        for name, own in contents.items():
            for position in range(starts[name], len(own)):
                self._slots[self._slot(tables[name], position)] = own[position]
        return {name for name, own in contents.items() if not self._holds(tables[name], own)}

    def _holds(self, table: Sequence[int], own: Sequence[int]) -> bool:
        slots = (self._slots.get(self._slot(table, position)) for position in range(len(own)))
        return all(seen == expected for seen, expected in zip(slots, own, strict=True))

    def _slot(self, table: Sequence[int], position: int) -> tuple[int, int]:
        return table[position // self.block_size], position % self.block_size

    def _contents(self, name: str, count: int) -> list[int]:
        content, contents = 0, []
        for token in self.tokens(name, count):
            content = zlib.crc32(str(token).encode(), content)
            contents.append(content)
        return contents
