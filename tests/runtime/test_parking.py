"""Parked requests: a grammar or a session's next turn is awaited without holding anything."""

from __future__ import annotations

from typing import Any

import pytest

from kvproof.core import Status
from kvproof.runtime import (
    FinishReason,
    Profile,
    Request,
    RequestRefused,
    Scheduler,
    SchedulerConfig,
)


def test_a_request_waits_for_its_grammar(new_loop: Any) -> None:
    """Until its grammar is compiled a request is in no queue; then it waits like any other."""
    loop = new_loop()
    loop.add("a", 3, 2, needs_grammar=True)
    assert loop.scheduler.status("a") is Status.WAITING_FOR_GRAMMAR
    assert loop.scheduler.waiting_request_ids() == []
    assert not loop.scheduler.has_unfinished_requests()
    assert loop.step().num_requests == 0

    assert loop.scheduler.grammar_ready("a")
    assert loop.scheduler.waiting_request_ids() == ["a"]
    loop.run()
    assert loop.outputs("a") == [0, 0]


def test_a_grammar_is_ready_once(new_loop: Any, unchanged: Any) -> None:
    """The end of a compilation that nobody waits for changes nothing, vllm#38551."""
    loop = new_loop()
    loop.add("a", 3, 2, needs_grammar=True)
    loop.add("plain", 3, 2)
    loop.scheduler.grammar_ready("a")

    with unchanged(loop.scheduler):
        assert not loop.scheduler.grammar_ready("a")
        assert not loop.scheduler.grammar_ready("plain")
        assert not loop.scheduler.grammar_ready("unknown")


def test_a_late_grammar_queues_behind(new_loop: Any) -> None:
    """Whoever waits for a grammar gives way to those that can run, and comes after them."""
    loop = new_loop(max_num_seqs=1)
    loop.add("grammar", 3, 1, needs_grammar=True)
    loop.add("plain", 3, 1)
    loop.scheduler.grammar_ready("grammar")

    assert [output.req_ids for output in loop.steps(2)] == [["plain"], ["grammar"]]


def test_a_session_goes_on_turn_by_turn(new_loop: Any) -> None:
    """Each turn starts from all tokens so far, and finds the blocks of the turns before."""
    loop = new_loop(enable_prefix_caching=True)
    loop.add("s", [1, 2, 3], 2, resumable=True)
    loop.run()
    assert loop.scheduler.status("s") is Status.WAITING_FOR_STREAMING
    assert loop.results[-1].finish_reason is FinishReason.LENGTH
    assert loop.is_empty()

    loop.scheduler.continue_session("s", [4, 5], 3)
    output = loop.step()
    assert output.computed.tolist() == [4]
    assert output.num_scheduled_tokens == {"s": 3}
    loop.run()

    loop.scheduler.continue_session("s", [], 1)
    assert loop.step().computed.tolist() == [8]
    assert loop.scheduler.token_ids("s") == [1, 2, 3, 0, 0, 4, 5, 0, 0, 0, 0]
    assert loop.is_empty()


def test_a_stop_token_ends_a_turn(new_loop: Any) -> None:
    """A turn may end before its length, and the next one has a length of its own."""
    loop = new_loop()
    loop.add("s", 3, 9, resumable=True, stop_token_ids=[7])
    loop.step({"s": 7})
    assert loop.results[-1].finish_reason is FinishReason.STOP

    loop.scheduler.continue_session("s", [1], 2)
    loop.run()
    assert loop.outputs("s") == [7, 0, 0]


@pytest.mark.rule("15", "vllm#53130")
def test_parked_requests_take_no_place_among_the_running(new_loop: Any) -> None:
    """Sessions whose clients have vanished keep nobody out, report vllm#53130, model A6."""
    loop = new_loop(max_num_seqs=2, num_blocks=5)
    for name in ("gone-1", "gone-2"):
        loop.add(name, 4, 1, resumable=True)
    loop.add("grammar", 4, 1, needs_grammar=True)
    loop.step()
    assert not loop.scheduler.has_unfinished_requests()

    loop.add("new-1", 4, 1)
    loop.add("new-2", 4, 1)
    assert loop.step().req_ids == ["new-1", "new-2"]
    assert loop.is_empty()


@pytest.mark.parametrize("kind", ["grammar", "session"])
@pytest.mark.rule("15", "vllm#53321")
def test_a_parked_request_can_be_aborted(new_loop: Any, kind: str) -> None:
    """A wait always has an exit: an abort ends it, and the id is free again, vllm#53321."""
    loop = new_loop()
    loop.add("a", 3, 1, needs_grammar=kind == "grammar", resumable=kind == "session")
    loop.run()

    assert loop.scheduler.abort("a") == ["a"]
    assert loop.scheduler.status("a") is None
    assert not loop.scheduler.grammar_ready("a")
    with pytest.raises(RequestRefused, match="no session of that id waits"):
        loop.scheduler.continue_session("a", [1])
    loop.add("a", 3, 1)
    loop.run()
    assert loop.is_empty()


@pytest.mark.rule("vllm#52693")
def test_only_a_parked_session_goes_on(new_loop: Any, unchanged: Any) -> None:
    """A turn for a session that waits or runs, or for no session, is refused, vllm#52693."""
    loop = new_loop()
    loop.add("s", 3, 4, resumable=True)
    loop.add("plain", 3, 1)
    for _ in range(2):
        for name in ("s", "plain", "unknown"):
            with (
                unchanged(loop.scheduler),
                pytest.raises(RequestRefused, match=f"'{name}': no session of that id waits"),
            ):
                loop.scheduler.continue_session(name, [1])
        loop.step()


@pytest.mark.parametrize(
    ("tokens", "max_tokens", "seen"),
    [
        (range(70), 1, "max_model_len is 64"),
        (range(40), 9, "need 27 blocks of 2, but the pool has 16"),
        ([1], 0, "max_tokens is 0"),
        ([-1], 1, "saw the token -1"),
    ],
)
def test_a_turn_that_can_never_run_is_refused(
    new_loop: Any, unchanged: Any, tokens: Any, max_tokens: int, seen: str
) -> None:
    """An input that does not fit, or is no input, leaves the session parked as it was."""
    loop = new_loop()
    loop.add("s", 3, 2, resumable=True)
    loop.run()

    with unchanged(loop.scheduler), pytest.raises(RequestRefused, match=seen):
        loop.scheduler.continue_session("s", tokens, max_tokens)
    loop.scheduler.continue_session("s", [1], 1)
    loop.run()
    assert loop.outputs("s") == [0, 0, 0]


def test_a_turn_that_never_fits_is_refused_under_any_profile() -> None:
    """Even where an arrival that never fits is accepted, as in vLLM, such a turn is refused."""
    limits: dict[str, Any] = {"num_blocks": 5, "block_size": 2, "max_model_len": 64}
    scheduler = Scheduler(SchedulerConfig(profile=Profile.vllm_0_25_1(), **limits))
    scheduler.add_request(Request("s", (1, 2, 3), 1, resumable=True))
    output = scheduler.schedule()
    scheduler.update(output, {"s": 0})

    with pytest.raises(RequestRefused, match="the pool has 4"):
        scheduler.continue_session("s", range(40), 4)
    assert scheduler.status("s") is Status.WAITING_FOR_STREAMING


def test_a_session_may_be_preempted(new_loop: Any) -> None:
    """A later turn can be a victim, and comes back for the rest of its turn."""
    loop = new_loop(num_blocks=7)
    loop.add("other", 3, 7)
    loop.add("s", 3, 1, resumable=True)
    loop.step()
    loop.scheduler.continue_session("s", [1, 2], 4)
    loop.run()

    assert loop.scheduler.statistics().num_preemptions > 0
    assert loop.outputs("s") == [0] * 5
    assert loop.is_empty()
