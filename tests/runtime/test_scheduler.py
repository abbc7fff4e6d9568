"""What a scheduler decides when blocks are plenty, and what it says about itself."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import pytest
import torch

from kvproof.core import Status
from kvproof.runtime import (
    FinishReason,
    Request,
    RequestOutput,
    Scheduler,
    SchedulerConfig,
    StepOutput,
)

Advance = Callable[..., tuple[StepOutput, list[RequestOutput]]]
Unchanged = Callable[[Scheduler], AbstractContextManager[None]]

ROOMY: dict[str, Any] = {"num_blocks": 100, "block_size": 4}


def scheduler_with(*requests: Request, **limits: int) -> Scheduler:
    """Return a scheduler with plenty of blocks, the given limits, and requests that wait."""
    scheduler = Scheduler(SchedulerConfig(**(ROOMY | limits)), debug=True)
    for request in requests:
        scheduler.add_request(request)
    return scheduler


def test_first_come_is_first_served(advance: Advance) -> None:
    """Requests are admitted, and then visited, in the order in which they came."""
    scheduler = scheduler_with(*(Request(name, [1], 4) for name in "cab"))

    first, _ = advance(scheduler)
    scheduler.add_request(Request("d", [1], 4))
    second, _ = advance(scheduler)

    assert first.req_ids == ["c", "a", "b"]
    assert second.req_ids == ["c", "a", "b", "d"]


@pytest.mark.rule("12")
def test_long_prompt_is_computed_in_chunks(advance: Advance) -> None:
    """A prompt longer than the budget takes several steps, and samples in the last of them."""
    scheduler = scheduler_with(Request("a", range(10), 2), max_num_batched_tokens=4)

    outputs = [advance(scheduler)[0] for _ in range(4)]

    assert [output.num_scheduled_tokens["a"] for output in outputs] == [4, 4, 2, 1]
    assert [output.computed.tolist() for output in outputs] == [[0], [4], [8], [10]]
    assert [output.sampled_req_ids for output in outputs] == [[], [], ["a"], ["a"]]
    assert not scheduler.has_unfinished_requests()


@pytest.mark.rule("12")
def test_budget_goes_to_running_requests_first(advance: Advance) -> None:
    """What running requests leave of the budget is a waiting one's first chunk."""
    scheduler = scheduler_with(Request("a", range(4), 9), max_num_batched_tokens=5)
    scheduler.add_request(Request("b", range(8), 9))

    outputs = [advance(scheduler)[0].num_scheduled_tokens for _ in range(4)]

    assert outputs == [{"a": 4, "b": 1}, {"a": 1, "b": 4}, {"a": 1, "b": 3}, {"a": 1, "b": 1}]


def test_spent_budget_leaves_requests_out(advance: Advance) -> None:
    """A request that the budget does not reach waits for the next step."""
    scheduler = scheduler_with(*(Request(n, [1], 9) for n in "abc"), max_num_batched_tokens=2)

    outputs = [advance(scheduler)[0].num_scheduled_tokens for _ in range(2)]

    assert outputs == [{"a": 1, "b": 1}, {"a": 1, "b": 1}]
    assert scheduler.status("c") == Status.WAITING


@pytest.mark.rule("12")
def test_no_more_run_than_allowed(advance: Advance) -> None:
    """A place among the running is taken only when another request has left it."""
    scheduler = scheduler_with(*(Request(n, [1], 2) for n in "abc"), max_num_seqs=2)

    outputs = [advance(scheduler)[0].req_ids for _ in range(3)]

    assert outputs == [["a", "b"], ["a", "b"], ["c"]]


@pytest.mark.rule("12")
def test_long_prefill_is_held_back(advance: Advance) -> None:
    """No request gets more tokens in a step than the threshold, so that others get some."""
    scheduler = scheduler_with(
        Request("a", range(7), 2), Request("b", range(3), 2), long_prefill_token_threshold=3
    )

    outputs = [advance(scheduler)[0].num_scheduled_tokens for _ in range(3)]

    assert outputs == [{"a": 3, "b": 3}, {"a": 3, "b": 1}, {"a": 1}]


@pytest.mark.rule("12", "vllm#37307")
def test_request_that_does_not_fit_whole_is_not_admitted(advance: Advance) -> None:
    """A prompt starts only if all of it fits into the free blocks, whatever its first chunk."""
    scheduler = scheduler_with(
        Request("a", range(8), 1), Request("b", range(9), 1), num_blocks=5, max_num_batched_tokens=9
    )

    first, _ = advance(scheduler)
    second, _ = advance(scheduler)

    assert first.num_scheduled_tokens == {"a": 8}
    assert second.num_scheduled_tokens == {"b": 9}


def test_request_behind_one_that_does_not_fit_waits_too(advance: Advance) -> None:
    """Nobody overtakes: the first that does not fit ends the pass."""
    scheduler = scheduler_with(
        Request("a", range(8), 2), Request("b", range(16), 1), Request("c", [1], 1), num_blocks=5
    )

    assert advance(scheduler)[0].req_ids == ["a"]


def test_request_ends_by_length(advance: Advance) -> None:
    """The last of max_tokens ends a request, and nothing comes after it."""
    scheduler = scheduler_with(Request("a", [1], 3))

    outputs = [advance(scheduler, token)[1] for token in (5, 6, 7, 8)]

    assert outputs == [
        [RequestOutput("a", (5,))],
        [RequestOutput("a", (6,))],
        [RequestOutput("a", (7,), FinishReason.LENGTH)],
        [],
    ]
    assert outputs[2][0].finished
    assert not outputs[1][0].finished


@pytest.mark.rule("12")
def test_request_ends_at_the_length_of_the_model(advance: Advance) -> None:
    """A request has no more tokens than the model allows, whatever it asked for."""
    scheduler = scheduler_with(Request("a", [1, 2, 3], 50), max_model_len=5)

    reasons = [advance(scheduler)[1][0].finish_reason for _ in range(2)]

    assert reasons == [None, FinishReason.LENGTH]


def test_request_ends_at_its_stop_token(advance: Advance) -> None:
    """A stop token ends a request and is part of its output."""
    scheduler = scheduler_with(Request("a", [9], 5, {9}), Request("b", [9], 5))

    _, first = advance(scheduler, a=8, b=8)
    _, second = advance(scheduler, a=9, b=9)

    assert [output.finish_reason for output in first] == [None, None]
    assert second == [RequestOutput("a", (9,), FinishReason.STOP), RequestOutput("b", (9,))]


@pytest.mark.parametrize("token", [3, 5])
def test_any_of_several_stop_tokens_ends_a_request(advance: Advance, token: int) -> None:
    """A request with several stop tokens ends at each of them, its neighbours at none."""
    scheduler = scheduler_with(Request("a", [1], 5, {3, 5}), Request("b", [1], 5, {4}))

    _, outputs = advance(scheduler, token)

    assert [output.finish_reason for output in outputs] == [FinishReason.STOP, None]


def test_stop_token_at_the_limit_counts_as_stop(advance: Advance) -> None:
    """A last token that is also a stop token ends a request as stopped."""
    scheduler = scheduler_with(Request("a", [1], 1, {7}))

    assert advance(scheduler, 7)[1] == [RequestOutput("a", (7,), FinishReason.STOP)]


def test_stop_tokens_do_not_outlive_their_request(advance: Advance) -> None:
    """A request in a row that another has left does not stop at the other's tokens."""
    scheduler = scheduler_with(Request("a", [1], 5, {3, 5}))
    advance(scheduler, 3)
    scheduler.add_request(Request("b", [1], 5))

    assert advance(scheduler, 5)[1] == [RequestOutput("b", (5,))]


def test_negative_sample_is_no_stop_token(advance: Advance) -> None:
    """A token that no request can stop at stops none, whatever stands for having no stop token."""
    scheduler = scheduler_with(Request("a", [1], 5))

    assert advance(scheduler, -1)[1] == [RequestOutput("a", (-1,))]


def test_outputs_come_in_the_order_of_the_batch(advance: Advance) -> None:
    """Outputs follow logits_indices; requests in the midst of their prompt have none."""
    scheduler = scheduler_with(
        Request("long", range(9), 5), Request("b", [1], 5), long_prefill_token_threshold=4
    )

    output, results = advance(scheduler, b=6)
    assert output.sampled_req_ids == ["b"]
    assert results == [RequestOutput("b", (6,))]

    advance(scheduler)
    output, results = advance(scheduler, long=1, b=2)
    assert output.sampled_req_ids == ["long", "b"]
    assert results == [RequestOutput("long", (1,)), RequestOutput("b", (2,))]


@pytest.mark.parametrize("kind", [list, tuple, np.array, torch.tensor, lambda t: np.array(t, "i4")])
def test_samples_may_come_in_any_form(kind: Callable[[list[int]], Any]) -> None:
    """Samples are taken from lists, arrays and tensors alike."""
    scheduler = scheduler_with(Request("a", [1], 2), Request("b", [1], 2))
    results = scheduler.update(scheduler.schedule(), kind([4, 5]))

    assert [output.new_token_ids for output in results] == [(4,), (5,)]
    assert len(results) == 2
    assert results.finished() == []


def test_finished_outputs_can_be_had_alone() -> None:
    """Only the last outputs of requests are among the finished ones."""
    scheduler = scheduler_with(Request("a", [1], 2), Request("b", [1], 1))
    results = scheduler.update(scheduler.schedule(), [4, 5])

    assert results.finished() == [RequestOutput("b", (5,), FinishReason.LENGTH)]


def test_request_can_be_looked_at(advance: Advance) -> None:
    """Tokens, blocks and status are told for as long as a request is there."""
    scheduler = scheduler_with(Request("a", [1, 2, 3, 4, 5], 2), block_size=2)
    assert scheduler.status("a") == Status.WAITING
    assert scheduler.block_ids("a") == []

    advance(scheduler, 6)
    assert scheduler.status("a") == Status.RUNNING
    assert scheduler.token_ids("a") == [1, 2, 3, 4, 5, 6]
    assert scheduler.block_ids("a") == [1, 2, 3]

    advance(scheduler)
    assert scheduler.status("a") is None
    for look in (scheduler.token_ids, scheduler.block_ids):
        with pytest.raises(KeyError):
            look("a")


def test_statistics_add_up(advance: Advance) -> None:
    """Counts are those of the moment, and blocks do not count the null block."""
    scheduler = scheduler_with(
        Request("a", range(8), 2), Request("b", range(4), 9), Request("c", [1], 1), max_num_seqs=2
    )
    advance(scheduler)
    statistics = scheduler.statistics()

    assert (statistics.num_requests_running, statistics.num_requests_waiting) == (2, 1)
    assert (statistics.num_free_blocks, statistics.num_fenced_blocks) == (96, 0)
    assert statistics.blocks_by_request == {"a": 2, "b": 1, "c": 0}
    assert statistics.kv_cache_usage == pytest.approx(3 / 99)
    assert statistics.num_preemptions == 0


@pytest.mark.rule("15", "vllm#32255")
def test_aborted_request_gives_its_blocks_back_at_once_or_after_its_frame() -> None:
    """Blocks that a frame in flight may write are fenced until its samples are in."""
    scheduler = scheduler_with(Request("a", range(8), 2), Request("b", range(8), 2))
    output = scheduler.schedule()

    assert scheduler.abort(["a"]) == ["a"]
    assert scheduler.statistics().num_fenced_blocks == 2
    assert scheduler.status("a") == Status.FINISHED_ABORTED
    results = list(scheduler.update(output, [3, 4]))
    assert results == [RequestOutput("b", (4,))]
    assert scheduler.statistics().num_fenced_blocks == 0
    assert scheduler.status("a") is None

    assert scheduler.abort("b") == ["b"]
    assert scheduler.statistics().num_free_blocks == 99


@pytest.mark.rule("15")
def test_abort_passes_over_what_is_not_live(advance: Advance, unchanged: Unchanged) -> None:
    """Unknown and ended ids are passed over, and a live one is ended once."""
    scheduler = scheduler_with(Request("a", [1], 1), Request("b", [1], 9))
    advance(scheduler)
    with unchanged(scheduler):
        assert scheduler.abort(["a", "nobody"]) == []
        assert scheduler.abort([]) == []

    assert scheduler.abort(["b", "a", "b"]) == ["b"]
    assert scheduler.abort("b") == []


@pytest.mark.rule("vllm#15326")
def test_id_can_be_used_again_after_its_request_has_left(advance: Advance) -> None:
    """A new request under an old id starts from its own prompt."""
    scheduler = scheduler_with(Request("a", [1, 2], 1))
    advance(scheduler)
    scheduler.add_request(Request("a", [7], 2))
    output, _ = advance(scheduler, 8)

    assert output.finished_req_ids == {"a"}
    assert scheduler.token_ids("a") == [7, 8]


def test_many_requests_make_room_for_themselves(advance: Advance) -> None:
    """Tables grow with the number of requests, those that are there already stay as they are."""
    scheduler = scheduler_with(*(Request(f"r{i}", [i], 3) for i in range(50)), max_num_seqs=300)
    advance(scheduler, 7)
    for i in range(50, 300):
        scheduler.add_request(Request(f"r{i}", [i] * 30, 3))
    output, _ = advance(scheduler, 8)

    assert scheduler.token_ids("r3") == [3, 7, 8]
    assert scheduler.token_ids("r60")[:30] == [60] * 30
    assert output.num_requests == 50 + 6  # 49 blocks are free, and each new prompt needs 8


def test_idle_scheduler_steps_without_effect(advance: Advance) -> None:
    """A step in which nobody runs can be scheduled and accounted for."""
    scheduler = scheduler_with()
    output, results = advance(scheduler)

    assert (output.num_requests, output.total_num_scheduled_tokens, results) == (0, 0, [])
    assert not scheduler.has_unfinished_requests()
