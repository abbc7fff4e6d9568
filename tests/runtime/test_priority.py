"""Priorities: who is admitted first, who gives way, and what is left of a victim of the same pass.

The least (priority, arrival time, id) is the most urgent; the greatest (priority, arrival time)
among the running is the victim.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvproof.core import Status


@pytest.fixture
def loop(new_loop: Any) -> Any:
    """Return a scheduler with priorities, in which one request runs at a time."""
    return new_loop(policy="priority", max_num_seqs=1)


def served(loop: Any) -> list[str]:
    """Return the requests in the order in which they run, one after the other."""
    found: list[str] = []
    while loop.scheduler.has_unfinished_requests():
        found += [name for name in loop.step().req_ids if name not in found]
    return found


def test_the_most_urgent_is_admitted_first(loop: Any) -> None:
    """The least priority goes first, then the earliest arrival, then the least id."""
    loop.add("d", 3, 1, priority=1, arrival_time=0.0)
    loop.add("c", 3, 1, priority=0, arrival_time=2.0)
    loop.add("b", 3, 1, priority=0, arrival_time=1.0)
    loop.add("a", 3, 1, priority=0, arrival_time=2.0)
    loop.add("e", 3, 1, priority=-1, arrival_time=9.0)

    assert loop.scheduler.waiting_request_ids() == ["e", "b", "a", "c", "d"]
    assert served(loop) == ["e", "b", "a", "c", "d"]


def test_first_come_first_served_knows_no_priority(new_loop: Any) -> None:
    """Under the default policy neither priority nor arrival time counts, only who was first."""
    loop = new_loop(max_num_seqs=1)
    loop.add("late", 3, 1, priority=9, arrival_time=9.0)
    loop.add("early", 3, 1, priority=0, arrival_time=0.0)

    assert served(loop) == ["late", "early"]


@pytest.mark.rule("1")
def test_a_preempted_request_goes_to_its_place(new_loop: Any) -> None:
    """A victim does not go to the front, but where its priority puts it."""
    loop = new_loop(policy="priority", num_blocks=6, max_num_seqs=2)
    loop.add("urgent", 3, 6, priority=0)
    loop.add("victim", 3, 6, priority=2)
    loop.add("between", 3, 6, priority=1, arrival_time=1.0)
    loop.add("behind", 3, 6, priority=3)
    loop.step()
    loop.scheduler.abort("between")
    loop.add("between", 3, 6, priority=1)
    loop.until(lambda output: output.preempted_req_ids)

    assert loop.scheduler.waiting_request_ids()[-2:] == ["victim", "behind"]
    loop.run()
    assert loop.is_empty()


def running(new_loop: Any, *requests: tuple[str, int, float]) -> Any:
    """Return a loop of requests that decode with one block too few, admitted in this order."""
    loop = new_loop(policy="priority", num_blocks=2 * len(requests) + 1)
    for name, priority, arrival in requests:
        loop.add(name, 3, 5, priority=priority, arrival_time=arrival)
        loop.step() if name == requests[0][0] else None
    return loop


def first_victims(loop: Any) -> set[str]:
    """Return whom the first step with victims preempts."""
    return set(loop.until(lambda output: output.preempted_req_ids).preempted_req_ids)


@pytest.mark.parametrize(
    ("requests", "victim"),
    [
        ([("a", 0, 0.0), ("b", 1, 0.0), ("c", 0, 9.0)], "b"),
        ([("a", 1, 0.0), ("b", 0, 0.0), ("c", 0, 9.0)], "a"),
        ([("a", 0, 3.0), ("b", 0, 9.0), ("c", 0, 1.0)], "b"),
        ([("a", 0, 9.0), ("b", 0, 3.0), ("c", 0, 1.0)], "a"),
    ],
)
@pytest.mark.rule("3")
def test_the_least_urgent_gives_way(
    new_loop: Any, requests: list[tuple[str, int, float]], victim: str
) -> None:
    """The victim is the greatest (priority, arrival time), wherever it stands in the list."""
    assert first_victims(running(new_loop, *requests)) == {victim}


def test_of_equals_the_last_to_be_visited_gives_way(new_loop: Any) -> None:
    """If priority and arrival are the same, it is the one that was admitted last."""
    loop = running(new_loop, ("a", 0, 0.0), ("b", 1, 2.0), ("c", 1, 2.0))
    loop.step()
    visited = loop.scheduler.running_request_ids()

    assert first_victims(loop) == {[name for name in visited if name != "a"][-1]}


@pytest.mark.rule("4", "vllm#23713")
def test_a_victim_of_this_pass_leaves_the_step_whole(new_loop: Any) -> None:
    """A victim scheduled earlier in the pass gives its budget to those behind, vllm#23347, E6."""
    loop = new_loop(policy="priority", num_blocks=4, max_num_batched_tokens=3)
    loop.add("low", 2, 3, priority=1)
    loop.step()
    loop.add("high", 2, 2, priority=0)
    loop.step()
    assert loop.scheduler.running_request_ids() == ["low", "high"]
    assert loop.scheduler.free_block_ids() == []

    output = loop.step()
    assert output.preempted_req_ids == {"low"}
    assert output.num_scheduled_tokens == {"high": 1}
    assert output.total_num_scheduled_tokens == 1
    assert loop.scheduler.block_ids("low") == []
    loop.run()
    assert loop.is_empty()


def test_budget_of_a_victim_serves_the_same_step(new_loop: Any) -> None:
    """The tokens that a victim gives back are there for those that come after it in the pass."""
    loop = new_loop(
        policy="priority", num_blocks=6, max_num_batched_tokens=3, scheduler_reserve_full_isl=False
    )
    loop.add("low", 2, 4, priority=1)
    loop.step()
    loop.add("high", 1, 4, priority=0)
    loop.add("long", 7, 1, priority=0, arrival_time=1.0)
    loop.step()
    assert loop.step().num_scheduled_tokens == {"low": 1, "high": 1, "long": 1}

    output = loop.step()
    assert output.preempted_req_ids == {"low"}
    assert output.num_scheduled_tokens == {"high": 1, "long": 2}
    loop.run()
    assert loop.is_empty()


@pytest.mark.rule("2")
def test_a_less_urgent_request_in_need_preempts_itself(new_loop: Any) -> None:
    """Whoever is the least urgent gives way itself, and the pass ends there."""
    loop = running(new_loop, ("low", 1, 0.0), ("high", 0, 0.0))

    assert first_victims(loop) == {"low"}
    assert loop.scheduler.status("low") is Status.PREEMPTED
    loop.run()
    assert loop.is_empty()


def test_an_aborted_request_leaves_its_place(loop: Any) -> None:
    """Anybody can be taken out of the queue, wherever priority has put it."""
    for number, name in enumerate("abcd"):
        loop.add(name, 3, 1, priority=number % 2)
    loop.scheduler.abort(["b", "c"])

    assert loop.scheduler.waiting_request_ids() == ["a", "d"]
    assert served(loop) == ["a", "d"]
