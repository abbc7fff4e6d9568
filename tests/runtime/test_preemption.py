"""Preemption in scenarios small enough to be worked out by hand; a block holds one token."""

from collections.abc import Callable

import numpy as np
import pytest

from kvproof.core import Status
from kvproof.runtime import Request, RequestOutput, Scheduler, SchedulerConfig, StepOutput
from kvproof.runtime.running_pass import Victim, last_running
from kvproof.runtime.running_view import RunningView

Advance = Callable[..., tuple[StepOutput, list[RequestOutput]]]


def first_running(running: RunningView) -> int:
    """Choose the request that is visited first."""
    return int(running.rows[0])


def crowd(names: str, usable: int, choose_victim: Victim = last_running) -> Scheduler:
    """Return a scheduler with requests of one token that sample three, and so many blocks."""
    config = SchedulerConfig(num_blocks=usable + 1, block_size=1)
    scheduler = Scheduler(config, debug=True, choose_victim=choose_victim)
    for name in names:
        scheduler.add_request(Request(name, [1], 3))
    return scheduler


@pytest.mark.rule("3")
def test_last_of_the_running_gives_way(advance: Advance) -> None:
    """When blocks run out the request that was admitted last is preempted, and only that one."""
    scheduler = crowd("ab", usable=4)
    for _ in range(2):
        advance(scheduler)  # each holds two blocks now
    output, results = advance(scheduler)

    assert output.preempted_req_ids == {"b"}
    assert output.num_scheduled_tokens == {"a": 1}
    assert [(result.request_id, result.finish_reason) for result in results] == [("a", "length")]
    assert scheduler.statistics().num_preemptions == 1


@pytest.mark.rule("1")
def test_preempted_request_holds_nothing_and_starts_over(advance: Advance) -> None:
    """A victim keeps its tokens and nothing else; resumed, it computes all of them again."""
    scheduler = crowd("ab", usable=4)
    advance(scheduler, 5)
    advance(scheduler, 6)
    output = scheduler.schedule()

    assert scheduler.status("b") == Status.PREEMPTED
    assert scheduler.block_ids("b") == []
    assert scheduler.token_ids("b") == [1, 5, 6]
    scheduler.update(output, [7])

    resumed, results = advance(scheduler, 8)
    assert resumed.resumed_req_ids == {"b"}
    assert resumed.scheduled_new_reqs == []
    assert resumed.scheduled_cached_reqs.resumed_req_ids == {"b"}
    assert resumed.scheduled_cached_reqs.num_computed_tokens == [0]
    assert resumed.scheduled_cached_reqs.num_output_tokens == [2]
    assert resumed.num_scheduled_tokens == {"b": 3}
    assert len(resumed.new_block_ids["b"]) == 3
    assert results[0].finish_reason == "length"
    assert scheduler.statistics().num_free_blocks == 4


@pytest.mark.rule("1")
def test_preempted_request_goes_to_the_front_of_the_queue(advance: Advance) -> None:
    """A victim is admitted again before those that have never run."""
    scheduler = crowd("ab", usable=4)
    advance(scheduler)
    advance(scheduler)
    scheduler.add_request(Request("c", [1], 1))
    advance(scheduler)
    output, _ = advance(scheduler)

    assert output.req_ids == ["b", "c"]
    assert output.resumed_req_ids == {"b"}
    assert [data.req_id for data in output.scheduled_new_reqs] == ["c"]


@pytest.mark.rule("2")
def test_several_victims_keep_their_order(advance: Advance) -> None:
    """Victims are preempted from the end, so the earlier of them is again the first to be tried."""
    scheduler = crowd("abc", usable=3)
    scheduler.add_request(Request("d", [1], 1))
    advance(scheduler)
    first, _ = advance(scheduler)  # a takes c's block, b wants one and is the last by then

    assert first.preempted_req_ids == {"c", "b"}
    assert first.num_scheduled_tokens == {"a": 1}
    second, _ = advance(scheduler)  # a takes the third block and ends
    third, _ = advance(scheduler)
    assert second.num_scheduled_tokens == {"a": 1}
    assert third.req_ids == ["b", "c"][: third.num_requests]


@pytest.mark.rule("5")
def test_step_that_preempted_admits_nobody(advance: Advance) -> None:
    """A request that would fit has to wait for the step after a preemption."""
    scheduler = crowd("ab", usable=4)
    advance(scheduler)
    advance(scheduler)
    scheduler.add_request(Request("c", [1], 1))
    output, _ = advance(scheduler)

    assert output.preempted_req_ids == {"b"}
    assert output.new_rows == output.resumed_rows == ()
    assert scheduler.status("c") == Status.WAITING
    assert scheduler.statistics().num_free_blocks == 4  # a has ended; c needed one


@pytest.mark.rule("2")
def test_request_in_need_may_be_its_own_victim(advance: Advance) -> None:
    """The last of the running gives up itself, and those before it go on."""
    scheduler = crowd("ab", usable=3)
    advance(scheduler)
    output, _ = advance(scheduler)

    assert output.preempted_req_ids == {"b"}
    assert output.num_scheduled_tokens == {"a": 1}


@pytest.mark.rule("2")
def test_own_victim_ends_the_pass(advance: Advance) -> None:
    """When the request in need was chosen itself, nobody behind it is visited in this step."""
    scheduler = crowd("abc", usable=3, choose_victim=first_running)
    advance(scheduler)
    output, _ = advance(scheduler)

    assert output.preempted_req_ids == {"a"}
    assert output.num_scheduled_tokens == {}
    assert scheduler.statistics().num_free_blocks == 1


@pytest.mark.rule("4", "vllm#23713")
def test_victim_that_was_scheduled_leaves_the_step(advance: Advance) -> None:
    """Nothing of a victim stays in the step: no tokens, no sample, no new blocks."""
    scheduler = crowd("ab", usable=3, choose_victim=first_running)
    advance(scheduler)
    output, results = advance(scheduler, 5)  # a takes the last block, then b needs one

    assert output.preempted_req_ids == {"a"}
    assert output.req_ids == output.sampled_req_ids == ["b"]
    assert output.num_scheduled_tokens == {"b": 1}
    assert output.total_num_scheduled_tokens == 1
    assert list(output.new_block_ids) == ["b"]
    assert output.scheduled_cached_reqs.req_ids == ["b"]
    assert [result.request_id for result in results] == ["b"]
    assert scheduler.token_ids("a") == [1, 0]
    assert scheduler.statistics().num_free_blocks == 1


@pytest.mark.rule("4")
def test_victim_that_was_scheduled_gives_its_budget_back(advance: Advance) -> None:
    """What a victim had been given of the budget goes to the requests behind the one in need.

    That one itself keeps to what it asked for (vLLM Scheduler.schedule).
    """
    config = SchedulerConfig(
        num_blocks=11, block_size=1, max_num_batched_tokens=4, long_prefill_token_threshold=2
    )
    scheduler = Scheduler(config, debug=True, choose_victim=first_running)
    scheduler.add_request(Request("a", [1], 9))
    scheduler.add_request(Request("b", range(7), 1))
    scheduler.add_request(Request("c", range(5), 1))
    steps = [advance(scheduler)[0].num_scheduled_tokens for _ in range(2)]
    last, _ = advance(scheduler)

    assert steps == [{"a": 1, "b": 2, "c": 1}, {"a": 1, "b": 2, "c": 1}]
    assert last.preempted_req_ids == {"a"}
    assert last.num_scheduled_tokens == {"b": 2, "c": 2}  # with a in the step c would have one


@pytest.mark.rule("vllm#49674")
def test_blocks_of_a_victim_serve_the_same_step(advance: Advance) -> None:
    """A victim's blocks are free at once, since no frame that writes them is in flight."""
    scheduler = crowd("ab", usable=4)
    advance(scheduler)
    advance(scheduler)
    given_up = set(scheduler.block_ids("b"))
    output, _ = advance(scheduler)

    assert set(output.new_block_ids["a"]) <= given_up


@pytest.mark.rule("3")
def test_policy_sees_the_running_list_and_cannot_change_it(advance: Advance) -> None:
    """A policy is given the rows in the order of visits, and columns, all of them read-only."""
    seen = []

    def watch(running: RunningView) -> int:
        columns = running.rows, running.priority, running.arrival_time, running.remaining
        seen.append([(column.tolist(), column.flags.writeable) for column in columns])
        return np.int64(running.rows[-1])  # type: ignore[return-value]

    scheduler = crowd("ab", usable=3, choose_victim=watch)
    advance(scheduler)
    advance(scheduler)

    assert seen == [[([0, 1], False), ([0, 0], False), ([0.0, 0.0], False), ([2, 2], False)]]


def test_everybody_ends_however_small_the_pool(advance: Advance) -> None:
    """A pool that holds one request at a time serves eight, in order."""
    scheduler = crowd("abcdefgh", usable=3)
    ended = []
    for _ in range(8 * 4):
        _, results = advance(scheduler)
        ended += [result.request_id for result in results if result.finished]

    assert ended == list("abcdefgh")
    assert scheduler.statistics().num_free_blocks == 3
