"""Aborts: legal in every state, without effect the second time, and every block back once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.core import Status


def waiting(loop: Any) -> None:
    """Let "a" wait for admission."""
    loop.add("a", 5)


def computing(loop: Any) -> None:
    """Let "a" be in the middle of its prompt."""
    loop.add("a", 9)
    loop.step()


def decoding(loop: Any) -> None:
    """Let "a" have sampled, with draft tokens for the next step."""
    loop.add("a", 3)
    loop.step()
    loop.scheduler.update_draft_tokens({"a": [0, 0]})


def preempted(loop: Any) -> None:
    """Let "a" be the victim of another request."""
    loop.add("other", 7, 9)
    loop.steps(2)
    loop.add("a", 7, 9)
    loop.until(lambda output: output.preempted_req_ids)
    loop.scheduler.abort("other")


def waiting_for_grammar(loop: Any) -> None:
    """Let "a" wait for its grammar."""
    loop.add("a", 3, needs_grammar=True)


def waiting_for_input(loop: Any) -> None:
    """Let "a" wait for the next turn of its session."""
    loop.add("a", 3, 1, resumable=True)
    loop.step()


STATES: list[tuple[Callable[[Any], None], Status]] = [
    (waiting, Status.WAITING),
    (computing, Status.RUNNING),
    (decoding, Status.RUNNING),
    (preempted, Status.PREEMPTED),
    (waiting_for_grammar, Status.WAITING_FOR_GRAMMAR),
    (waiting_for_input, Status.WAITING_FOR_STREAMING),
]


@pytest.fixture
def loop(new_loop: Any) -> Any:
    """Return a scheduler of eight blocks."""
    return new_loop(
        num_blocks=9, max_num_batched_tokens=6, num_speculative_tokens=2, enable_prefix_caching=True
    )


@pytest.mark.parametrize(("reach", "status"), STATES)
@pytest.mark.rule("15")
def test_a_request_can_be_aborted_in_every_state(
    loop: Any, reach: Callable[[Any], None], status: Status
) -> None:
    """Whatever a request does, an abort ends it and gives every block back, models C4 and C5."""
    reach(loop)
    assert loop.scheduler.status("a") is status

    assert loop.scheduler.abort("a") == ["a"]
    assert loop.scheduler.status("a") is None
    assert loop.is_empty()
    assert not loop.scheduler.has_unfinished_requests()
    assert "a" in loop.step().finished_req_ids


@pytest.mark.parametrize(("reach", "status"), STATES)
@pytest.mark.rule("15")
def test_a_second_abort_changes_nothing(
    loop: Any, reach: Callable[[Any], None], status: Status, unchanged: Any
) -> None:
    """An abort that comes twice, or after the end, is passed over."""
    reach(loop)
    assert loop.scheduler.abort(["a", "a"]) == ["a"]

    with unchanged(loop.scheduler):
        assert loop.scheduler.abort("a") == []
    assert len(loop.step().finished_req_ids & {"a"}) == 1
    assert not loop.step().finished_req_ids


@pytest.mark.parametrize(("reach", "status"), STATES)
@pytest.mark.rule("15", "vllm#6586", "vllm#32255")
def test_a_request_can_be_aborted_while_a_step_flies(
    loop: Any, reach: Callable[[Any], None], status: Status, unchanged: Any
) -> None:
    """Blocks that the step may still write come back with its end, not before, and once."""
    reach(loop)
    output = loop.scheduler.schedule()
    held = loop.scheduler.block_ids("a")
    assert loop.scheduler.abort("a") == ["a"]
    with unchanged(loop.scheduler):
        loop.scheduler.abort("a")
    assert set(held).isdisjoint(loop.scheduler.free_block_ids())
    assert loop.scheduler.statistics().num_fenced_blocks == len(held)

    before = len(loop.results)
    loop.finish_step(output)
    assert "a" not in [result.request_id for result in loop.results[before:]]
    assert loop.is_empty()
    assert loop.scheduler.status("a") is None


@pytest.mark.parametrize(("reach", "status"), STATES)
@pytest.mark.rule("vllm#15326")
def test_an_id_is_free_after_its_abort(
    loop: Any, reach: Callable[[Any], None], status: Status
) -> None:
    """A new request may have the id of one that was aborted, and shares nothing else with it."""
    reach(loop)
    loop.scheduler.abort("a")
    loop.results.clear()
    loop.add("a", 4, 3)
    loop.run()

    assert loop.outputs("a") == [0, 0, 0]
    assert loop.is_empty()


def test_an_aborted_victim_of_the_step_in_flight_is_dropped(loop: Any) -> None:
    """A request that a step has just preempted can be aborted before the step is over."""
    loop.add("other", 7, 9)
    loop.steps(2)
    loop.add("a", 7, 9)
    output = loop.scheduler.schedule()
    while not output.preempted_req_ids:
        loop.finish_step(output)
        output = loop.scheduler.schedule()

    assert output.preempted_req_ids == {"a"}
    loop.scheduler.abort("a")
    loop.finish_step(output)
    loop.run()
    assert loop.is_empty()


def test_others_are_not_touched(loop: Any) -> None:
    """Those that share blocks with an aborted request go on as if nothing had been."""
    loop.add("a", [1, 2, 3, 4, 5], 5)
    loop.step()
    loop.add("b", [1, 2, 3, 4, 9], 3)
    loop.step()
    shared = loop.scheduler.block_ids("b")[:2]
    loop.scheduler.abort("a")

    assert loop.scheduler.block_ids("b")[:2] == shared
    loop.run()
    assert loop.outputs("b") == [0, 0, 0]


CALLS = st.lists(
    st.tuples(
        st.sampled_from(["add", "step", "step", "abort", "abort in flight"]), st.integers(0, 5)
    ),
    max_size=30,
)


@settings(max_examples=60)
@given(calls=CALLS)
def test_aborts_at_any_time_leave_nothing_behind(
    new_loop: Any, calls: list[tuple[str, int]]
) -> None:
    """However aborts and steps are interleaved, in the end every block is free once."""
    loop = new_loop(num_blocks=9, max_num_batched_tokens=6, enable_prefix_caching=True)
    for number, (name, which) in enumerate(calls):
        if name == "add" and loop.scheduler.status(f"request-{which}") is None:
            loop.add(f"request-{which}", [which % 2 + 1] * (1 + number % 7), 1 + which)
        elif name == "abort":
            loop.scheduler.abort(f"request-{which}")
        elif name != "add":
            output = loop.scheduler.schedule()
            if name == "abort in flight":
                loop.scheduler.abort([f"request-{which}", "unknown"])
            loop.finish_step(output)
    loop.run()
    assert loop.is_empty()
    assert loop.scheduler.reset_prefix_cache()
