"""What a step says, in vLLM's field names, and that it says nothing before it is asked."""

from collections.abc import Callable

import numpy as np

from kvproof.runtime import Request, RequestOutput, Scheduler, SchedulerConfig, StepOutput
from kvproof.runtime.step_output import NewRequestData

Advance = Callable[..., tuple[StepOutput, list[RequestOutput]]]
LAZY = (
    "req_ids",
    "num_scheduled_tokens",
    "sampled_req_ids",
    "new_block_ids",
    "scheduled_new_reqs",
    "scheduled_cached_reqs",
)


def scheduler_with(*requests: Request, num_blocks: int = 50, budget: int = 100) -> Scheduler:
    """Return a scheduler whose blocks hold two tokens, and requests that wait."""
    config = SchedulerConfig(num_blocks=num_blocks, block_size=2, max_num_batched_tokens=budget)
    scheduler = Scheduler(config, debug=True)
    for request in requests:
        scheduler.add_request(request)
    return scheduler


def test_new_request_is_told_whole() -> None:
    """Workers get prompt, blocks and computed tokens of a request that they have not seen."""
    output = scheduler_with(Request("a", [7, 8, 9], 2)).schedule()

    assert output.scheduled_new_reqs == [NewRequestData("a", (7, 8, 9), ([1, 2],), 0)]
    assert output.scheduled_cached_reqs.req_ids == []
    assert output.new_block_ids == {"a": [1, 2]}
    assert output.num_scheduled_tokens == {"a": 3}
    assert output.total_num_scheduled_tokens == 3


def test_known_request_is_told_what_changed(advance: Advance) -> None:
    """Workers get only the new blocks of a request that they know, or None."""
    scheduler = scheduler_with(Request("a", [7, 8, 9], 5), Request("b", [7, 8], 5))
    advance(scheduler)
    scheduler.add_request(Request("c", [1], 5))
    output, _ = advance(scheduler)
    cached = output.scheduled_cached_reqs

    assert output.req_ids == ["a", "b", "c"]
    assert [data.req_id for data in output.scheduled_new_reqs] == ["c"]
    assert cached.req_ids == ["a", "b"]
    assert cached.resumed_req_ids == set()
    assert cached.new_block_ids == [None, ([4],)]
    assert cached.num_computed_tokens == [3, 2]
    assert cached.num_output_tokens == [1, 1]
    assert output.new_block_ids == {"a": [], "b": [4], "c": [5]}


def test_chunk_samples_nothing(advance: Advance) -> None:
    """Only a request whose known tokens are all computed in the step is sampled from."""
    scheduler = scheduler_with(Request("a", [1], 5), Request("b", range(6), 5), budget=4)
    first, _ = advance(scheduler)
    second, _ = advance(scheduler)

    assert (first.sampled_req_ids, second.sampled_req_ids) == (["a"], ["a", "b"])
    assert first.sampling_places.tolist() == [0]
    assert first.sampling_rows.tolist() == first.rows[:1].tolist()
    assert [request.request_id for request in second.sampling_requests] == ["a", "b"]
    assert second.sampling_rows is second.rows
    assert second.scheduled_cached_reqs.num_computed_tokens == [1, 3]


def test_resumed_request_gets_its_whole_table_anew(advance: Advance) -> None:
    """A resumed request counts as known, and its new blocks are all that it has."""
    scheduler = scheduler_with(Request("a", [1, 2], 3), Request("b", [3, 4], 3), num_blocks=4)
    advance(scheduler)
    preempting, _ = advance(scheduler)
    advance(scheduler)
    resuming, _ = advance(scheduler)
    cached = resuming.scheduled_cached_reqs

    assert preempting.preempted_req_ids == {"b"}
    assert resuming.finished_req_ids == {"a"}
    assert (cached.req_ids, cached.resumed_req_ids) == (["b"], {"b"})
    assert resuming.resumed_req_ids == {"b"}
    assert cached.num_computed_tokens == [0]
    assert cached.num_output_tokens == [1]
    assert cached.new_block_ids == [(resuming.new_block_ids["b"],)]
    assert len(resuming.new_block_ids["b"]) == 2


def test_ended_requests_are_named_once(advance: Advance) -> None:
    """The step after a request has ended or been aborted names it, and no other step does."""
    scheduler = scheduler_with(*(Request(name, [1], 1 + (name > "a")) for name in "abc"))
    first, _ = advance(scheduler)
    scheduler.abort(["b"])
    second = scheduler.schedule()
    scheduler.abort(["c"])
    scheduler.update(second, [0])
    third, _ = advance(scheduler)
    fourth, _ = advance(scheduler)

    assert first.finished_req_ids == frozenset()
    assert second.finished_req_ids == {"a", "b"}
    assert third.finished_req_ids == {"c"}
    assert fourth.finished_req_ids == frozenset()


def test_lists_are_built_only_when_asked_for(advance: Advance) -> None:
    """An engine that takes tensors pays for no list, and a list is built once."""
    scheduler = scheduler_with(Request("a", [1], 2))
    output = scheduler.schedule()
    output.to_tensors()
    scheduler.update(output, np.zeros(1, dtype=np.int64))

    assert not set(LAZY) & set(vars(output))
    for name in LAZY:
        assert getattr(output, name) is getattr(output, name)
    assert set(LAZY) <= set(vars(output))


def test_output_says_the_same_after_its_step(advance: Advance) -> None:
    """What a step decided can still be read when its requests have gone."""
    scheduler = scheduler_with(Request("a", [1, 2, 3], 1))
    output, _ = advance(scheduler)
    scheduler.add_request(Request("b", [9], 1))
    advance(scheduler)

    assert output.num_scheduled_tokens == {"a": 3}
    assert output.scheduled_new_reqs == [NewRequestData("a", (1, 2, 3), ([1, 2],), 0)]


def test_steps_are_numbered(advance: Advance) -> None:
    """Steps count from one."""
    scheduler = scheduler_with()

    assert [advance(scheduler)[0].step for _ in range(3)] == [1, 2, 3]


def test_empty_step_has_empty_fields() -> None:
    """A step in which nobody runs has all of its fields."""
    output = scheduler_with().schedule()

    assert output.num_scheduled_tokens == {}
    assert output.new_block_ids == {}
    assert output.scheduled_new_reqs == []
    assert output.scheduled_cached_reqs.req_ids == []
    assert output.sampled_req_ids == []
