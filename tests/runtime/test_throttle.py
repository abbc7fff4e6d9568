"""The prefill throttle: what a deferred step leaves out, and when throttling is ignored.

`defer = throttle and not capacity_bound and some running request decodes`; after a step that
neither deferred nor preempted, `capacity_bound = somebody still waits`.
"""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture
def loop(new_loop: Any) -> Any:
    """Return a scheduler in which "decoding" decodes and nobody waits."""
    loop = new_loop(num_blocks=65, max_num_seqs=3, max_num_batched_tokens=8)
    loop.add("decoding", 2, 30)
    loop.step()
    return loop


def is_bound(loop: Any) -> bool:
    """Return whether throttling is ignored because the rank is bound by capacity."""
    bound: bool = loop.scheduler.statistics().is_capacity_bound
    return bound


@pytest.mark.rule("8")
def test_a_throttled_step_admits_no_prefill(loop: Any) -> None:
    """New prefills wait for a step that is not throttled; decodes run."""
    loop.add("new", 4)

    assert loop.step(throttle=True).num_scheduled_tokens == {"decoding": 1}
    assert loop.step(throttle=True).num_scheduled_tokens == {"decoding": 1}
    assert loop.step().num_scheduled_tokens == {"decoding": 1, "new": 4}


@pytest.mark.rule("8")
def test_a_throttled_step_skips_chunks(loop: Any) -> None:
    """A prefill in the middle of its chunks waits too, and the decodes behind it run."""
    loop.add("long", 12)
    loop.add("later", 1, 9)
    assert loop.step().num_scheduled_tokens == {"decoding": 1, "long": 7}
    assert loop.step().num_scheduled_tokens == {"decoding": 1, "long": 5, "later": 1}
    loop.add("new", 20)
    loop.scheduler.abort("long")
    assert loop.step().num_scheduled_tokens == {"decoding": 1, "later": 1, "new": 6}

    assert loop.step(throttle=True).num_scheduled_tokens == {"decoding": 1, "later": 1}
    assert loop.step().num_scheduled_tokens == {"decoding": 1, "later": 1, "new": 6}


def test_one_last_token_is_no_prefill(new_loop: Any) -> None:
    """A request that lacks one token alone runs like a decode, wherever it stands."""
    loop = new_loop(enable_prefix_caching=True)
    loop.add("decoding", [1, 2, 3], 20)
    loop.step()
    loop.add("one left", [1, 2, 9])
    loop.add("two left", [1, 2, 9, 9])

    output = loop.step(throttle=True)
    assert output.num_scheduled_tokens == {"decoding": 1, "one left": 1}


@pytest.mark.rule("8")
def test_the_throttle_is_ignored_while_nobody_decodes(new_loop: Any) -> None:
    """A rank without decodes prefills at once, running chunks included, model G9."""
    loop = new_loop(max_num_batched_tokens=4)
    loop.add("a", 8)

    assert loop.step(throttle=True).num_scheduled_tokens == {"a": 4}
    assert loop.step(throttle=True).num_scheduled_tokens == {"a": 4}
    loop.add("b", 3)
    assert loop.step(throttle=True).num_scheduled_tokens == {"a": 1}


@pytest.mark.rule("8", "vllm#44558")
def test_a_backlog_makes_a_rank_capacity_bound(loop: Any) -> None:
    """After an aligned step that left somebody waiting, throttling is ignored, vllm#44558."""
    for name in ("b", "c", "d"):
        loop.add(name, 7, 3)
    loop.step()
    assert is_bound(loop)

    output = loop.step(throttle=True)
    assert output.num_scheduled_tokens == {"decoding": 1, "b": 1, "c": 6}
    assert is_bound(loop)


def test_an_aligned_step_without_a_backlog_ends_it(loop: Any) -> None:
    """Once everybody has been admitted the rank is throttled again."""
    for name in ("b", "c"):
        loop.add(name, 7, 9)
    loop.step()
    assert is_bound(loop)
    loop.step()
    assert not is_bound(loop)

    loop.scheduler.abort("c")
    loop.add("d", 3)
    assert loop.step(throttle=True).num_scheduled_tokens == {"decoding": 1, "b": 1}


def test_a_deferred_step_leaves_the_flag(loop: Any) -> None:
    """A step that deferred says nothing about capacity: its backlog was left on purpose."""
    loop.add("new", 4)
    output = loop.step(throttle=True)

    assert "new" not in output.req_ids
    assert not is_bound(loop)
    assert loop.step(throttle=True).num_scheduled_tokens == {"decoding": 1}


@pytest.mark.parametrize("bound", [False, True])
@pytest.mark.rule("8")
def test_a_step_that_preempted_leaves_the_flag(new_loop: Any, bound: bool) -> None:
    """A step that preempted admits nobody, so that its backlog says nothing, review of G9."""
    loop = new_loop(num_blocks=6, max_num_seqs=2)
    for name in ("a", "b", "c") if bound else ("a", "b"):
        loop.add(name, 3, 6)

    loop.step()
    assert is_bound(loop) is bound
    loop.until(lambda output: output.preempted_req_ids)
    assert loop.scheduler.statistics().num_requests_waiting > 0
    assert is_bound(loop) is bound


def test_a_prefill_waits_for_the_next_aligned_step_at_most(loop: Any) -> None:
    """With every second step aligned, a waiting prefill is admitted within two steps, model G9."""
    for number in range(6):
        loop.add("new", 4, 1)
        outputs = [loop.step(throttle=(number + step) % 2 == 0) for step in range(2)]
        assert sum("new" in output.req_ids for output in outputs) == 1


def test_a_deferred_request_says_why_it_waits(loop: Any) -> None:
    """The statistics tell requests that a throttled step left out from those without room."""
    loop.add("new", 4)
    loop.step(throttle=True)
    reasons = loop.scheduler.statistics().num_requests_waiting_by_reason
    assert reasons == {"capacity": 0, "deferred": 1, "grammar": 0, "streaming": 0}

    for name in ("b", "c", "d"):
        loop.add(name, 9)
    loop.step()
    reasons = loop.scheduler.statistics().num_requests_waiting_by_reason
    assert reasons == {"capacity": 2, "deferred": 0, "grammar": 0, "streaming": 0}
