"""Several steps in flight: a request runs ahead of its samples, and blocks wait for their steps."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from kvproof.core import Status
from kvproof.runtime import (
    EncoderItem,
    FinishReason,
    Request,
    RequestOutput,
    RunningView,
    Scheduler,
    SchedulerConfig,
    StepOrderError,
    StepOutput,
)
from kvproof.runtime.running_pass import Victim

STEPS_MAX = 2_000


def first_running(running: RunningView) -> int:
    """Choose the request that is visited first."""
    return int(running.rows[0])


class Pipeline:
    """A scheduler with some steps in flight, and an engine that samples by name and position.

    `outputs` are the steps in flight; `stops` says at which position a request samples the token 7.
    """

    def __init__(
        self,
        steps: int,
        stops: Mapping[str, int] | None = None,
        choose_victim: Victim | None = None,
        **limits: Any,
    ) -> None:
        """Make a scheduler of small blocks whose invariants are checked after each call."""
        small = {"num_blocks": 17, "block_size": 2, "max_model_len": 64, **limits}
        config = SchedulerConfig(**small, max_steps_in_flight=steps)
        self.scheduler = Scheduler(config, choose_victim=choose_victim, debug=True)
        self.outputs: deque[StepOutput] = deque()
        self.results: list[RequestOutput] = []
        self.stops = stops or {}

    def add(self, name: str, prompt: Sequence[int], max_tokens: int = 8, **options: Any) -> None:
        """Add a request that stops at the token 7."""
        self.scheduler.add_request(Request(name, prompt, max_tokens, [7], **options))

    def dispatch(self) -> StepOutput:
        """Schedule one more step."""
        output = self.scheduler.schedule()
        self.outputs.append(output)
        return output

    def account(self) -> list[RequestOutput]:
        """Give the oldest step in flight what it has sampled; return what came of it."""
        output = self.outputs.popleft()
        ends = (output.computed + output.tokens)[output.sampling_places].tolist()
        pairs = zip(output.sampled_req_ids, ends, strict=True)
        sampled = {name: self.token(name, position) for name, position in pairs}
        found = list(self.scheduler.update(output, sampled))
        self.results += found
        return found

    def token(self, name: str, position: int) -> int:
        """Return the token that a request samples at a position, the same in every run."""
        return 7 if self.stops.get(name) == position else 100 + (sum(name.encode()) + position) % 50

    def run(self) -> None:
        """Keep as many steps in flight as there may be until nobody waits or runs."""
        for _ in range(STEPS_MAX):
            while len(self.outputs) < self.scheduler.config.max_steps_in_flight:
                self.dispatch()
            self.account()
            if not self.scheduler.has_unfinished_requests():
                break
        while self.outputs:
            self.account()

    def tokens(self, name: str) -> list[int]:
        """Return all tokens that a request has sampled."""
        found = [result.new_token_ids for result in self.results if result.request_id == name]
        return [token for some in found for token in some]

    @property
    def reasons(self) -> dict[str, FinishReason | None]:
        """Why each request has ended."""
        return {r.request_id: r.finish_reason for r in self.results if r.finish_reason}

    def num_free(self) -> int:
        """Return the free blocks."""
        return len(self.scheduler.free_block_ids())


LIMITS: list[dict[str, Any]] = [
    {},
    {"num_blocks": 9, "max_num_batched_tokens": 4, "max_num_seqs": 3},
    {"num_blocks": 8, "block_size": 1, "max_num_batched_tokens": 16, "policy": "priority"},
    {"num_blocks": 12, "enable_prefix_caching": True, "long_prefill_token_threshold": 2},
]


@pytest.mark.rule("11")
@pytest.mark.parametrize("limits", LIMITS, ids=["roomy", "crowded", "priority", "prefixes"])
@pytest.mark.parametrize("steps", [2, 3])
def test_tokens_are_those_of_one_step_in_flight(steps: int, limits: dict[str, Any]) -> None:
    """However many steps are in flight, and whoever is preempted, everybody samples the same."""
    pipelines = [Pipeline(count, {"c": 5}, **limits) for count in (1, steps)]
    for pipeline in pipelines:
        for place, name in enumerate("abcd"):
            pipeline.add(name, [1, 2, 3, place][: 4 - place % 3], 3, priority=place % 2)
        pipeline.run()

    one, several = pipelines
    assert several.reasons == one.reasons
    assert one.reasons.keys() == set("abcd")
    assert [several.tokens(name) for name in "abcd"] == [one.tokens(name) for name in "abcd"]
    assert several.num_free() == several.scheduler.config.num_usable_blocks


@pytest.mark.rule("11")
def test_a_request_runs_ahead_of_its_samples() -> None:
    """A step computes the token that the step before it is still to sample, and says so."""
    pipeline = Pipeline(3)
    pipeline.add("a", [1, 2, 3])
    first, second = pipeline.dispatch(), pipeline.dispatch()
    pipeline.add("b", [4])
    third = pipeline.dispatch()

    assert [output.computed.tolist() for output in (first, second, third)] == [[0], [3], [4, 0]]
    assert [output.num_scheduled_tokens for output in (first, second, third)] == [
        {"a": 3},
        {"a": 1},
        {"a": 1, "b": 1},
    ]
    pending = [output.pending_places.tolist() for output in (first, second, third)]
    assert pending == [[], [0], [0]]
    pipeline.account()
    assert third.to_tensors().positions.tolist() == [4, 0]
    assert third.to_tensors().input_ids.tolist()[1] == 4


def test_known_inputs_are_not_pending() -> None:
    """Once a sample has been accounted for, the next step reads it like any other token."""
    pipeline = Pipeline(2)
    pipeline.add("a", [1, 2, 3])
    pipeline.dispatch()
    pipeline.account()
    output = pipeline.dispatch()

    assert output.pending_places.tolist() == []
    assert output.to_tensors().input_ids.tolist() == [pipeline.token("a", 3)]


@pytest.mark.rule("11")
def test_a_sample_that_comes_after_the_end_is_dropped() -> None:
    """A request that stops early ends; what a later step samples for it is nobody's."""
    pipeline = Pipeline(2, {"a": 3})
    pipeline.add("a", [1, 2, 3])
    pipeline.dispatch()
    pipeline.dispatch()
    (ended,) = pipeline.account()

    assert ended.finish_reason is FinishReason.STOP
    assert pipeline.scheduler.status("a") is Status.FINISHED_STOPPED
    assert pipeline.account() == []
    assert pipeline.tokens("a") == [7]
    assert pipeline.scheduler.status("a") is None


def test_an_end_is_told_while_a_later_step_is_in_flight() -> None:
    """The workers learn of an end with the next step, though the id is not free yet."""
    pipeline = Pipeline(3, {"a": 3})
    pipeline.add("a", [1, 2, 3])
    pipeline.dispatch()
    pipeline.dispatch()
    pipeline.account()

    assert pipeline.dispatch().finished_req_ids == {"a"}
    assert pipeline.scheduler.status("a") is Status.FINISHED_STOPPED
    pipeline.account()
    assert pipeline.scheduler.status("a") is None
    assert pipeline.dispatch().finished_req_ids == set()


@pytest.mark.rule("11")
@pytest.mark.parametrize("steps", [2, 3])
def test_nobody_is_scheduled_past_its_limit(steps: int) -> None:
    """A request that will be complete once all steps have come back is left out of the next."""
    pipeline = Pipeline(steps)
    pipeline.add("a", [1, 2, 3], 2)
    outputs = [pipeline.dispatch() for _ in range(steps)]

    assert [output.num_scheduled_tokens for output in outputs] == [{"a": 3}, {"a": 1}, {}][:steps]
    pipeline.run()
    assert len(pipeline.tokens("a")) == 2
    assert pipeline.reasons == {"a": FinishReason.LENGTH}


@pytest.mark.rule("10", "vllm#45357")
def test_blocks_of_an_aborted_request_wait_for_its_last_step() -> None:
    """They are free when the last step that touches them has come back, and not one before."""
    pipeline = Pipeline(3)
    pipeline.add("a", [1, 2, 3])
    pipeline.add("b", [4])
    for _ in range(3):
        pipeline.dispatch()
    held, free = pipeline.scheduler.block_ids("a"), pipeline.num_free()
    assert pipeline.scheduler.abort("a") == ["a"]

    for _ in range(3):
        assert pipeline.num_free() == free
        assert pipeline.scheduler.statistics().num_fenced_blocks == len(held)
        pipeline.account()
    assert pipeline.num_free() == free + len(held)
    assert pipeline.tokens("a") == []
    assert len(pipeline.tokens("b")) == 3


@pytest.mark.rule("10")
def test_blocks_of_a_stopped_request_wait_for_the_step_that_ran_ahead() -> None:
    """A step that computes a token nobody wants still writes to the table of its request."""
    pipeline = Pipeline(2, {"a": 3})
    pipeline.add("a", [1, 2, 3])
    pipeline.dispatch()
    pipeline.dispatch()
    pipeline.account()
    assert pipeline.num_free() == 16 - 2
    assert pipeline.scheduler.statistics().num_fenced_blocks == 2
    pipeline.account()
    assert pipeline.num_free() == 16


def cramped() -> tuple[Pipeline, StepOutput]:
    """Return a pipeline of two requests on four blocks of one token, and the step that lacks one.

    Both requests are in the step before that, which is in flight.
    """
    pipeline = Pipeline(2, num_blocks=5, block_size=1)
    pipeline.add("a", [1], 4)
    pipeline.add("b", [2], 4)
    pipeline.dispatch()
    pipeline.dispatch()
    pipeline.account()
    return pipeline, pipeline.dispatch()


@pytest.mark.rule("2", "10", "vllm#49674")
def test_a_victim_in_flight_is_preempted_when_it_has_come_back() -> None:
    """It is left out of the step, since its blocks could not be had, and preempted in a later."""
    pipeline, output = cramped()
    assert output.num_scheduled_tokens == {}
    assert output.preempted_req_ids == set()
    assert pipeline.scheduler.running_request_ids() == ["a", "b"]

    pipeline.account()
    output = pipeline.dispatch()
    assert output.preempted_req_ids == {"b"}
    assert output.num_scheduled_tokens == {"a": 1}
    pipeline.run()
    assert [len(pipeline.tokens(name)) for name in "ab"] == [4, 4]


def test_a_step_that_waits_for_a_victim_admits_nobody() -> None:
    """A waiting request does not take the blocks for whose sake somebody is to be preempted."""
    pipeline = Pipeline(2, num_blocks=6, block_size=1)
    pipeline.add("a", [1], 5)
    pipeline.add("b", [2, 3], 4)
    pipeline.dispatch()
    pipeline.dispatch()
    pipeline.account()
    pipeline.add("c", [3], 1)
    output = pipeline.dispatch()

    assert output.num_requests == 0
    assert pipeline.scheduler.waiting_request_ids() == ["c"]


def test_workers_learn_of_a_block_taken_in_a_step_that_was_left() -> None:
    """A victim that has to wait keeps the block that it took; it is told with its next token."""
    pipeline = Pipeline(2, {"b": 2}, num_blocks=6, block_size=1, choose_victim=first_running)
    pipeline.add("a", [1], 4)
    pipeline.add("b", [2], 4)
    told = [*pipeline.dispatch().new_block_ids["a"], *pipeline.dispatch().new_block_ids["a"]]
    pipeline.account()
    assert pipeline.dispatch().num_requests == 0  # a took the last block and gives way to b
    assert pipeline.scheduler.block_ids("a")[:2] == told
    assert len(pipeline.scheduler.block_ids("a")) == 3

    pipeline.account()  # b has stopped
    output = pipeline.dispatch()
    assert output.num_scheduled_tokens == {"a": 1}
    assert pipeline.scheduler.block_ids("a") == told + output.new_block_ids["a"]
    block_table = output.to_tensors().block_table
    assert block_table.tolist() == [pipeline.scheduler.block_ids("a")]


@pytest.mark.rule("11")
def test_a_stale_sample_is_no_token_of_the_next_turn() -> None:
    """A session that goes on while a step of its last turn is in flight takes nothing from that."""
    pipeline = Pipeline(2, {"s": 3})
    pipeline.add("s", [1, 2, 3], 4, resumable=True)
    pipeline.dispatch()
    pipeline.dispatch()
    pipeline.account()
    assert pipeline.scheduler.status("s") is Status.WAITING_FOR_STREAMING

    pipeline.scheduler.continue_session("s", [5, 6], 2)
    output = pipeline.dispatch()
    assert output.computed.tolist() == [0]
    assert output.num_scheduled_tokens == {"s": 6}
    assert pipeline.account() == []
    assert pipeline.scheduler.token_ids("s") == [1, 2, 3, 7, 5, 6]
    (result,) = pipeline.account()
    assert result.new_token_ids == (pipeline.token("s", 6),)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_one_step_too_many_is_refused(steps: int, unchanged: Any) -> None:
    """With as many steps in flight as there may be, `schedule` raises and changes nothing."""
    pipeline = Pipeline(steps)
    pipeline.add("a", [1, 2, 3])
    for _ in range(steps):
        pipeline.dispatch()

    with (
        unchanged(pipeline.scheduler),
        pytest.raises(StepOrderError, match=r"step 1 is in flight; give its samples to update"),
    ):
        pipeline.scheduler.schedule()
    pipeline.account()
    assert pipeline.dispatch().step == steps + 1


def test_steps_are_accounted_for_in_order(unchanged: Any) -> None:
    """The samples of a later step are refused while an older one is in flight."""
    pipeline = Pipeline(2)
    pipeline.add("a", [1, 2, 3])
    pipeline.dispatch()
    later = pipeline.dispatch()

    with (
        unchanged(pipeline.scheduler),
        pytest.raises(StepOrderError, match="saw the samples of step 2, awaited: 1"),
    ):
        pipeline.scheduler.update(later, [0])
    assert [len(pipeline.account()) for _ in range(2)] == [1, 1]


def test_an_empty_step_in_flight_holds_nothing_up() -> None:
    """A step without requests is accounted for in its turn, and blocks do not wait for it."""
    pipeline = Pipeline(2)
    assert pipeline.dispatch().num_requests == 0
    pipeline.add("a", [1, 2, 3], 1)
    assert pipeline.dispatch().num_scheduled_tokens == {"a": 3}

    assert pipeline.account() == []
    assert [result.finish_reason for result in pipeline.account()] == [FinishReason.LENGTH]
    assert pipeline.num_free() == 16


@pytest.mark.rule("14", "vllm#38551")
def test_an_entry_is_released_when_its_tokens_are_settled() -> None:
    """A step that has passed an item and is in flight keeps the entry, though it counts as run."""
    limits: dict[str, Any] = {"encoder_cache_size": 4, "max_num_encoder_input_tokens": 4}
    pipeline = Pipeline(2, **limits, max_num_batched_tokens=4)
    pipeline.add("a", range(1, 9), mm_features=[EncoderItem("x", 1, 4)])
    pool = pipeline.scheduler._books.state.pool
    pipeline.dispatch()
    pipeline.dispatch()
    assert pipeline.scheduler.num_computed_tokens("a") == 8

    pipeline.account()  # half of the item has come back
    assert (pool.encoder_used, pool.encoder_idle) == (4, 0)
    pipeline.account()
    assert (pool.encoder_used, pool.encoder_idle) == (0, 4)


def test_drafts_wait_until_no_step_is_in_flight(unchanged: Any) -> None:
    """Draft tokens follow the known ones, so they are refused while more are to come."""
    pipeline = Pipeline(2, num_speculative_tokens=2)
    pipeline.add("a", [1, 2, 3])
    pipeline.dispatch()

    with unchanged(pipeline.scheduler), pytest.raises(StepOrderError, match="after update"):
        pipeline.scheduler.update_draft_tokens({"a": [5]})
    assert pipeline.dispatch().num_requests == 0  # of drafts in flight nobody knows which are right
    pipeline.account()
    pipeline.account()
    pipeline.scheduler.update_draft_tokens({"a": [5]})
    assert pipeline.dispatch().num_scheduled_tokens == {"a": 2}
