"""A connector that answers, ends, fails and loses loads at random, and keeps some blocks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from random import Random

from attrs import define, evolve, field

from kvproof.runtime.connector import TransferReport
from kvproof.runtime.silent_connector import SilentConnector
from kvproof.verify.loaded_memory import LoadedMemory
from kvproof.verify.simulated_connector import Load


@define(eq=False)
class MixedConnector(SilentConnector):
    """Answers at random; `memory` is told what its loads write.

    Attributes:
        draw: where chance comes from.
        memory: the KV memory.
        counts: how often what happened.
        is_calm: it offers nothing any more, and ends what goes on.

    """

    draw: Random
    memory: LoadedMemory
    block_size: int
    counts: Counter[str] = field(factory=Counter)
    is_calm: bool = False
    _asynchronous: dict[str, bool] = field(factory=dict)
    _failed_now: list[set[int]] = field(factory=list)
    _kept: set[str] = field(factory=set)
    _over: list[str] = field(factory=list)

    def match(
        self,
        request_id: str,
        block_hashes: Sequence[bytes],
        num_tokens: int,
        num_computed_tokens: int,
    ) -> tuple[int | None, bool]:
        """Offer something, nothing, or ask to be asked again."""
        asynchronous = self.draw.random() < 0.5
        self._asynchronous[request_id] = asynchronous
        most = num_tokens - num_computed_tokens - (not asynchronous)
        if self.is_calm or most < 1 or self.draw.random() < 0.4:
            return 0, False
        if self.draw.random() < 0.2:
            self.counts["asked again"] += 1
            return None, False
        return self.draw.choice([most, self.draw.randint(1, most)]), asynchronous

    def allocated(
        self, request_id: str, block_ids: Sequence[int], first_token: int, num_tokens: int
    ) -> None:
        """Start a load, or do a synchronous one, of which some blocks fail now and then."""
        if not num_tokens:
            return
        load = Load(
            request_id, tuple(block_ids), first_token, first_token + num_tokens, frozenset()
        )
        if self._asynchronous[request_id]:
            self.counts["loads"] += 1
            self.memory.start(load)
            return
        self.counts["loads at once"] += 1
        failed = frozenset(self._some_places(load, 0.3))
        self.memory.load_now(evolve(load, failed_places=failed))
        self._failed_now[-1].update(load.blocks[place] for place in failed)

    def finished(self, request_id: str, block_ids: Sequence[int]) -> bool:
        """Keep the blocks of some."""
        is_kept = bool(block_ids) and self.draw.random() < 0.2
        if is_kept:
            self._kept.add(request_id)
        return is_kept

    def begin_step(self) -> None:
        """Get ready for the loads of a step."""
        self._failed_now.append(set())

    def report(self) -> TransferReport:
        """Return what has happened when the oldest step comes back, and some noise."""
        failed, received, lost = self._failed_now.pop(0), set[str](), set[str]()
        for name, load in list(self.memory.loads.items()):
            chance = 1.0 if self.is_calm else self.draw.random()
            places = [] if self.is_calm else self._some_places(load, 0.2)
            self.memory.fail(name, places)
            failed.update(load.blocks[place] for place in places)
            if chance > 0.6:
                (lost if 0.6 < chance < 0.7 else received).add(name)
        for name in received:
            self.memory.receive(name)
        for name in lost:
            self.memory.lose(name)
        sent = {name for name in sorted(self._kept) if self.is_calm or self.draw.random() < 0.4}
        self._kept -= sent
        noise = self._noise()
        self._over = [*self._over, *sorted(received | lost | sent)][-8:]
        self._count(received, lost, sent, failed)
        return TransferReport(
            received={*received, *noise}, sent={*sent, *noise}, failed_blocks=failed, lost=lost
        )

    def _noise(self) -> list[str]:
        """Return one that ended before and has begun nothing since: its end is told again."""
        over = [name for name in self._over if name not in {*self.memory.loads, *self._kept}]
        return self.draw.sample(over, min(1, len(over)))

    def has_pending_transfers(self) -> bool:
        """Return whether something is still to be reported."""
        return bool(self.memory.loads or self._kept)

    def _some_places(self, load: Load, chance: float) -> list[int]:
        """Return mostly nothing, or some of the blocks that a load fills."""
        if self.draw.random() > chance:
            return []
        places = range(load.first // self.block_size, -(-load.end // self.block_size))
        return self.draw.sample(places, self.draw.randint(1, len(places)))

    def _count(self, received: set[str], lost: set[str], sent: set[str], failed: set[int]) -> None:
        for kind, some in (("received", received), ("lost", lost), ("sent", sent)):
            self.counts[kind] += len(some)
        self.counts["failed blocks"] += len(failed)
