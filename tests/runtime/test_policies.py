"""Policies: they decide who is admitted and who is preempted, and can break nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.core import Status
from kvproof.runtime import CallerError, EncoderItem, RunningView, WaitingRequest

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "policies.py"
LINES_MAX = 50


def shortest_remaining_first(request: WaitingRequest) -> int:
    """Order by the tokens left to compute and to sample."""
    return request.known + request.remaining


def test_the_example_runs() -> None:
    """The example of the README is short, and its policies do what they promise."""
    done = subprocess.run([sys.executable, EXAMPLE], capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stderr
    usual, shortest = (int(line.partition(" step ")[2].split(",")[0]) for line in lines_of(done))
    assert shortest < usual
    assert len(EXAMPLE.read_text(encoding="utf-8").splitlines()) <= LINES_MAX


def lines_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    """Return the two lines that the example prints."""
    first, second = done.stdout.splitlines()
    return [first, second]


def test_the_least_key_is_admitted_first(new_loop: Any) -> None:
    """With `order`, neither arrival nor priority counts, only the key."""
    loop = new_loop(order=shortest_remaining_first, max_num_seqs=1)
    loop.add("long", 9, 5)
    loop.add("short", 3, 5)
    loop.add("middle", 3, 8, priority=-1)

    assert loop.scheduler.waiting_request_ids() == ["short", "middle", "long"]
    assert loop.step().req_ids == ["short"]


def test_a_policy_sees_what_a_request_is_like(new_loop: Any) -> None:
    """A policy gets a record for each time that a request is queued, and it cannot write to it."""
    seen: list[WaitingRequest] = []

    def order(request: WaitingRequest) -> int:
        seen.append(request)
        return 0

    loop = new_loop(order=order, num_blocks=7)
    loop.add("a", 3, 9, arrival_time=1.5)
    loop.add("b", 3, 6, priority=2, arrival_time=2.5, needs_grammar=True)
    assert [request.request_id for request in seen] == ["a"]
    loop.scheduler.grammar_ready("b")
    assert seen[0] == WaitingRequest("a", 0, 1.5, known=3, remaining=9, preemptions=0)
    assert seen[1] == WaitingRequest("b", 2, 2.5, known=3, remaining=6, preemptions=0)

    loop.until(lambda output: output.preempted_req_ids)
    sampled = len(loop.outputs("b"))
    assert seen[2] == WaitingRequest(
        "b", 2, 2.5, known=3 + sampled, remaining=6 - sampled, preemptions=1
    )
    with pytest.raises(AttributeError):
        seen[0].priority = 9  # type: ignore[misc]


def test_a_policy_cannot_write_to_what_it_sees(new_loop: Any) -> None:
    """The columns of the running requests are read-only, and copies besides."""

    def choose_victim(running: RunningView) -> int:
        for column in (running.rows, running.priority, running.arrival_time, running.remaining):
            with pytest.raises(ValueError, match="read-only"):
                column[:] = 0
            column.flags.writeable = True
            column[:] = 0
        return 1

    loop = new_loop(choose_victim=choose_victim, num_blocks=7)
    loop.add("a", 3, 9)
    loop.add("b", 3, 6)
    loop.run()
    assert loop.is_empty()
    assert loop.scheduler.statistics().num_preemptions > 0


def test_a_session_is_ordered_anew_each_turn(new_loop: Any) -> None:
    """The next turn of a session waits where its own length puts it."""
    loop = new_loop(order=shortest_remaining_first, max_num_seqs=1)
    loop.add("session", 3, 1, resumable=True)
    loop.step()
    loop.add("middle", 6, 2)
    loop.scheduler.continue_session("session", [1, 2], 1)
    assert loop.scheduler.waiting_request_ids() == ["session", "middle"]

    loop.step()
    loop.scheduler.continue_session("session", [1, 2, 3], 4)
    assert loop.scheduler.waiting_request_ids() == ["middle", "session"]


def test_a_key_that_does_not_sort_is_refused(new_loop: Any, unchanged: Any) -> None:
    """Keys of two kinds are a fault of the policy: the request is refused, nothing changes."""
    keys = iter((1, "one"))
    loop = new_loop(order=lambda _: next(keys))
    loop.add("a", 3)

    with (
        unchanged(loop.scheduler),
        pytest.raises(CallerError, match=r"order returned 'one' for request 'b'.*sort with 1"),
    ):
        loop.add("b", 3)


def test_an_order_that_raises_mid_step_gives_the_step_up(new_loop: Any) -> None:
    """If the place of a victim cannot be told, it keeps its blocks, and the next step goes on."""
    calm = [True]

    def order(request: WaitingRequest) -> int:
        if not calm[0]:
            raise LookupError(request.request_id)
        return 0

    loop = new_loop(order=order, num_blocks=7)
    loop.add("a", 3, 9)
    loop.add("b", 3, 6)
    calm[0] = False
    with pytest.raises(LookupError, match="b"):
        loop.run()
    assert loop.scheduler.status("b") is Status.RUNNING
    assert loop.scheduler.statistics().num_preemptions == 0

    calm[0] = True
    loop.run()
    assert loop.is_empty()


REQUESTS = st.lists(
    st.tuples(st.integers(1, 9), st.integers(1, 7), st.integers(0, 2), st.integers(0, 2)),
    min_size=1,
    max_size=8,
)


def play(loop: Any, requests: list[tuple[int, int, int, int]]) -> Iterator[object]:
    """Run requests that arrive two a step, and yield what each step did."""
    for number, (prompt, max_tokens, priority, arrival) in enumerate(requests):
        options = {"priority": priority, "arrival_time": float(arrival)}
        loop.add(f"request-{number}", prompt, max_tokens, **options)
        if number % 2:
            output = loop.step()
            yield output.num_scheduled_tokens, output.preempted_req_ids
            yield loop.scheduler.waiting_request_ids()
    while loop.scheduler.has_unfinished_requests():
        output = loop.step()
        yield output.num_scheduled_tokens, output.preempted_req_ids
        yield loop.scheduler.waiting_request_ids()


@pytest.mark.parametrize(
    ("policy", "order"),
    [
        ("fcfs", lambda _: 0),
        ("priority", lambda request: (request.priority, request.arrival_time, request.request_id)),
    ],
)
@settings(max_examples=40)
@given(requests=REQUESTS)
def test_the_usual_orders_are_policies_too(
    new_loop: Any, policy: str, order: Callable[..., Any], requests: list[tuple[int, int, int, int]]
) -> None:
    """One key for all is first come, first served; the key of priorities is the priority queue."""
    limits = {"policy": policy, "num_blocks": 9, "max_num_seqs": 3}

    assert list(play(new_loop(order=order, **limits), requests)) == list(
        play(new_loop(**limits), requests)
    )


class Moody:
    """A key that does not want to be compared."""

    def __lt__(self, other: object) -> bool:
        """Refuse."""
        raise LookupError("not today")

    __gt__ = __lt__


class Nasty:
    """Policies that do whatever a list of numbers says, and behave once it is used up."""

    def __init__(self, numbers: list[int]) -> None:
        """Start with the first number."""
        self._numbers = iter(numbers)

    def order(self, request: WaitingRequest) -> Any:
        """Return some key, or none, or fail."""
        number = next(self._numbers, 9)
        keys: tuple[Any, ...] = ("text", None, float("nan"), Moody(), (number,), [], -number)
        if number == 0:
            raise LookupError(request.request_id)
        return keys[number] if number < len(keys) else request.remaining

    def choose_victim(self, running: RunningView) -> Any:
        """Return some victim, or what is none, or fail; write to whatever is there."""
        number = next(self._numbers, 9)
        row = running.rows[number % len(running)]
        if number == 0:
            raise LookupError("no victim")
        for column in (running.rows, running.remaining):
            column.flags.writeable = True
            column[:] = -1
        return {1: -1, 2: 10**9, 3: "row", 4: None, 5: 1.0}.get(number, int(row))


CALLS = st.lists(
    st.tuples(st.sampled_from(["add", "add", "step", "step", "step", "abort"]), st.integers(0, 9)),
    max_size=40,
)


@settings(max_examples=120)
@given(calls=CALLS, numbers=st.lists(st.integers(0, 12)), whole=st.booleans())
@pytest.mark.rule("3", "vllm#54644")
def test_no_policy_breaks_an_invariant(
    new_loop: Any, calls: list[tuple[str, int]], numbers: list[int], whole: bool
) -> None:
    """Whatever policies return, raise or overwrite, every invariant holds after every call."""
    nasty = Nasty(numbers)
    loop = new_loop(
        order=nasty.order,
        choose_victim=nasty.choose_victim,
        num_blocks=8,
        max_num_batched_tokens=7,
        enable_prefix_caching=True,
        scheduler_reserve_full_isl=whole,
        encoder_cache_size=3,
        max_num_encoder_input_tokens=2,
    )
    for number, (name, which) in enumerate(calls):
        try:
            if name == "add":
                items = [EncoderItem(f"item-{number % 2}", which // 2, 2)] if which > 3 else []
                prompt = [1] * (1 + which)
                loop.add(f"request-{number}", prompt, 1 + number % 5, mm_features=items)
            elif name == "step":
                loop.step()
            else:
                loop.scheduler.abort(f"request-{which}")
        except (LookupError, CallerError, TypeError):
            loop.scheduler.check()
    loop.scheduler.abort([f"request-{number}" for number in range(len(calls))])
    assert loop.is_empty()


def test_workers_learn_of_blocks_of_a_step_that_was_given_up(new_loop: Any) -> None:
    """A block that a request took in a step that a policy spoilt is told with its next token."""
    answers = [-1]

    def choose_victim(running: RunningView) -> int:
        return answers.pop() if answers else int(running.rows[-1])

    loop = new_loop(num_blocks=6, block_size=1, choose_victim=choose_victim)
    loop.add("a", [1], 4)
    loop.add("b", [2], 4)
    told = [block for output in loop.steps(2) for block in output.new_block_ids["a"]]
    with pytest.raises(CallerError, match="choose_victim returned -1"):
        loop.scheduler.schedule()  # a took the last block, and b had none
    output = loop.step()

    assert output.num_scheduled_tokens == {"a": 1}
    assert loop.scheduler.block_ids("a") == told + output.new_block_ids["a"]


@settings(max_examples=60)
@given(requests=REQUESTS, numbers=st.lists(st.integers(0, 20), max_size=60))
def test_random_policies_change_no_output(
    new_loop: Any, requests: list[tuple[int, int, int, int]], numbers: list[int]
) -> None:
    """However requests are ordered and preempted, each gets all of its tokens."""
    choices = iter(numbers)

    def choose_victim(running: RunningView) -> int:
        return int(running.rows[next(choices, -1) % len(running)])

    loop = new_loop(
        order=lambda _: next(choices, 0), choose_victim=choose_victim, num_blocks=9, max_num_seqs=4
    )
    for _ in play(loop, requests):
        pass
    for number, (_, max_tokens, *_) in enumerate(requests):
        assert loop.outputs(f"request-{number}") == [0] * max_tokens
    assert loop.is_empty()
