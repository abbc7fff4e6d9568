"""What an exploration covers: limits, kinds of requests, and how many of them are there at once."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import combinations_with_replacement

from attrs import Factory, field, frozen

from kvproof.runtime import Profile, SchedulerConfig
from kvproof.verify.explorer.shapes import Shape, default_shapes

Workload = tuple[Shape, ...]


@cache
def _broken_by_the_reference() -> frozenset[str]:
    from kvproof.spec.scheduler import SCHEDULER

    return frozenset(name for row in SCHEDULER.transitions for name in row.breaks)


def _default(scope: Scope) -> tuple[Shape, ...]:
    return default_shapes(scope.blocks, scope.block_size, scope.policy)


@frozen(kw_only=True)
class Scope:
    """The bound of an exploration; everything within it is tried.

    Attributes:
        profile: the rules of the scheduler.
        requests: requests that are there at once; whoever ends may come again, without end.
        blocks: blocks that can be used; the null block is not one.
        block_size: tokens of a block.
        in_flight: steps that may be scheduled before the first of them is accounted for.
        policy: "fcfs" or "priority".
        token_budget: tokens of a step; 0 for as many as fit into the pool.
        lookahead: slots that are kept beyond the tokens of a request.
        watermark: share of the blocks that admissions keep free while others run.
        admits_whole: a request is admitted only if all of its known tokens fit.
        caches_prefixes: blocks of equal prefixes are shared, and all prompts begin alike.
        failure_policy: "recompute" or "fail".
        throttles: steps may be asked to leave prefills for later.
        aborts: requests may be aborted at any time.
        asks_again: the connector may answer "ask again".
        offers_again: the connector may offer a load again although the last one brought nothing.
        loads_fail: loads may fail at any of their blocks, or be lost.
        failures_come_early: that a load has failed may be reported before its end.
        shapes: the kinds of requests.

    """

    profile: Profile = field(factory=Profile.safe)
    requests: int = 2
    blocks: int = 5
    block_size: int = 2
    in_flight: int = 1
    policy: str = "fcfs"
    token_budget: int = 0
    lookahead: int = 0
    watermark: float = 0.0
    admits_whole: bool = True
    caches_prefixes: bool = False
    failure_policy: str = "recompute"
    throttles: bool = True
    aborts: bool = True
    asks_again: bool = True
    offers_again: bool = True
    loads_fail: bool = True
    failures_come_early: bool = True
    shapes: tuple[Shape, ...] = Factory(_default, takes_self=True)

    def config(self) -> SchedulerConfig:
        """Return the limits of the scheduler."""
        pool = self.blocks * self.block_size
        return SchedulerConfig(
            num_blocks=self.blocks + 1,
            block_size=self.block_size,
            max_num_seqs=self.requests,
            max_num_batched_tokens=self.token_budget or pool,
            max_steps_in_flight=self.in_flight,
            max_model_len=max(2 * pool, *(s.prompt + s.max_tokens for s in self.shapes)),
            policy=self.policy,
            enable_prefix_caching=self.caches_prefixes,
            watermark=self.watermark,
            scheduler_reserve_full_isl=self.admits_whole,
            num_lookahead_tokens=self.lookahead,
            kv_load_failure_policy=self.failure_policy,
            profile=self.profile,
        )

    def broken_by_rule(self) -> frozenset[str]:
        """Return the invariants that rows of the reference are declared, and proved, to break.

        Under the safe profile there are none, for it uses no such row.
        """
        return frozenset() if self.profile == Profile.safe() else _broken_by_the_reference()

    def workloads(self) -> Iterator[Workload]:
        """Yield which shapes are there together, those of few requests first."""
        for count in range(1, self.requests + 1):
            yield from combinations_with_replacement(self.shapes, count)
