"""Statistics: what is counted, in which unit, and of whom."""

from __future__ import annotations

from typing import Any

import pytest

from kvproof.core import Status


def test_tokens_are_looked_up_and_found(new_loop: Any) -> None:
    """Queries and hits of the prefix cache are counted in tokens, at each look-up."""
    loop = new_loop(enable_prefix_caching=True)
    loop.add("a", [1, 2, 3, 4, 5], 1)
    loop.run()
    loop.add("b", [1, 2, 3, 4, 9, 9, 9], 1)
    loop.run()

    statistics = loop.scheduler.statistics()
    assert (statistics.prefix_cache_queries, statistics.prefix_cache_hits) == (5 + 7, 0 + 4)


def test_a_refused_look_up_is_counted_again(new_loop: Any) -> None:
    """A request that is looked up and not admitted is counted each time, as vLLM does."""
    loop = new_loop(enable_prefix_caching=True, num_blocks=5)
    loop.add("holder", 5, 4)
    loop.add("late", [1, 2, 3, 4, 5], 1)
    loop.steps(2)

    assert loop.scheduler.statistics().prefix_cache_queries == 5 + 5 + 5


@pytest.mark.rule("16")
def test_preempted_requests_are_counted_apart(new_loop: Any) -> None:
    """What victims find of their own blocks does not pass for sharing, design item 16."""
    loop = new_loop(enable_prefix_caching=True, num_blocks=7)
    loop.add("a", 5, 6)
    loop.add("b", 5, 6)
    output = loop.until(lambda output: output.resumed_req_ids)

    statistics = loop.scheduler.statistics()
    known = int(output.stretch.known[output.req_ids.index("b")])
    hits = int(output.computed[output.req_ids.index("b")])
    assert (statistics.prefix_cache_queries, statistics.prefix_cache_hits) == (10, 0)
    assert statistics.prefix_cache_queries_preempted % known == 0
    assert statistics.prefix_cache_queries_preempted >= known
    assert statistics.prefix_cache_hits_preempted >= hits > 0


def test_without_a_prefix_cache_nothing_is_looked_up(new_loop: Any) -> None:
    """All four counts stay at zero."""
    loop = new_loop()
    loop.add("a", 5, 6)
    loop.run()

    statistics = loop.scheduler.statistics()
    assert statistics.prefix_cache_queries == statistics.prefix_cache_queries_preempted == 0
    assert statistics.prefix_cache_hits == statistics.prefix_cache_hits_preempted == 0


@pytest.mark.rule("vllm#44773")
def test_preemptions_are_counted_by_request(new_loop: Any) -> None:
    """Each live request says how often it was preempted; the total says it of all, ever."""
    loop = new_loop(num_blocks=7)
    loop.add("a", 3, 9)
    loop.add("b", 3, 9)
    loop.until(lambda output: output.preempted_req_ids)
    statistics = loop.scheduler.statistics()
    assert statistics.preemptions_by_request == {"a": 0, "b": 1}

    loop.run()
    statistics = loop.scheduler.statistics()
    assert statistics.preemptions_by_request == {}
    assert statistics.num_preemptions >= 1


def test_everybody_waits_for_one_reason(new_loop: Any) -> None:
    """Whoever does not run is counted under what it waits for, and nowhere else."""
    loop = new_loop(max_num_seqs=1)
    loop.add("session", 3, 1, resumable=True)
    loop.step()
    loop.add("running", 3, 9)
    loop.add("waiting", 3, 9)
    loop.add("behind", 3, 9)
    loop.add("grammar", 3, 9, needs_grammar=True)
    loop.step()

    statistics = loop.scheduler.statistics()
    assert statistics.num_requests_waiting_by_reason == {
        "capacity": 2,
        "deferred": 0,
        "grammar": 1,
        "streaming": 1,
    }
    assert (statistics.num_requests_running, statistics.num_requests_waiting) == (1, 2)


def test_a_preempted_request_waits_for_capacity(new_loop: Any) -> None:
    """A victim counts among those that wait for blocks, even if the last step was throttled."""
    loop = new_loop(num_blocks=7)
    loop.add("a", 3, 9)
    loop.add("b", 3, 9)
    loop.step()
    while loop.scheduler.status("b") is not Status.PREEMPTED:
        loop.step(throttle=True)

    reasons = loop.scheduler.statistics().num_requests_waiting_by_reason
    assert (reasons["capacity"], reasons["deferred"]) == (1, 0)


def test_usage_is_the_share_of_blocks_that_are_not_free(new_loop: Any) -> None:
    """Blocks that only the prefix cache keeps are free, the null block is not one."""
    loop = new_loop(enable_prefix_caching=True)
    loop.add("a", 8, 2)
    loop.step()
    assert loop.scheduler.statistics().kv_cache_usage == 4 / 16
    assert loop.scheduler.statistics().blocks_by_request == {"a": 4}

    loop.run()
    statistics = loop.scheduler.statistics()
    assert (statistics.kv_cache_usage, statistics.num_free_blocks) == (0, 16)
    assert statistics.num_fenced_blocks == 0


def test_fenced_blocks_are_neither_free_nor_held(new_loop: Any) -> None:
    """Blocks of an aborted request wait for the step in flight, and are counted meanwhile."""
    loop = new_loop()
    loop.add("a", 8, 2)
    output = loop.scheduler.schedule()
    loop.scheduler.abort("a")

    statistics = loop.scheduler.statistics()
    assert (statistics.num_fenced_blocks, statistics.num_free_blocks) == (4, 12)
    loop.finish_step(output)
    assert loop.scheduler.statistics().num_fenced_blocks == 0
