"""The encoder cache: what a step computes, who shares it, and when its slots come back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.core import Status
from kvproof.runtime import EncoderItem, RequestRefused

IMAGE = EncoderItem("image", 4, 2)
OTHER = EncoderItem("other", 4, 2)


@pytest.fixture
def loop(new_loop: Any) -> Any:
    """Return a scheduler that computes and holds six embeddings."""
    return new_loop(encoder_cache_size=6, max_num_encoder_input_tokens=6, num_blocks=33)


def slots(loop: Any) -> tuple[int, int, int]:
    """Return how many slots are free, used and idle."""
    pool = loop.scheduler._books.state.pool
    return pool.encoder_free, pool.encoder_used, pool.encoder_idle


def test_an_item_is_computed_with_its_first_token(loop: Any) -> None:
    """The step that computes the first of an item's tokens computes the item, and only that one."""
    loop.add("a", 8, 2, mm_features=[IMAGE])

    assert [output.scheduled_encoder_inputs for output in loop.steps(2)] == [{"a": [0]}, {}]


@pytest.mark.rule("14")
def test_a_step_keeps_its_encoder_budget(new_loop: Any) -> None:
    """Embeddings beyond the budget of a step are computed in the next one."""
    loop = new_loop(encoder_cache_size=16, max_num_encoder_input_tokens=4)
    loop.add("a", 4, 4, mm_features=[EncoderItem("x", 0, 4)])
    loop.add("b", 4, 4, mm_features=[EncoderItem("y", 0, 4)])

    assert loop.step().scheduled_encoder_inputs == {"a": [0]}
    assert loop.step().scheduled_encoder_inputs == {"b": [0]}


def test_a_chunk_ends_before_an_item_that_cannot_be_computed(new_loop: Any) -> None:
    """Only the tokens before the item are scheduled, of a new request and of a running one."""
    loop = new_loop(encoder_cache_size=16, max_num_encoder_input_tokens=4)
    items = [EncoderItem("x", 1, 3), EncoderItem("y", 6, 3), EncoderItem("z", 9, 4)]
    loop.add("a", 14, 2, mm_features=items)

    tokens = [loop.step().num_scheduled_tokens["a"] for _ in range(3)]
    assert tokens == [6, 3, 5]


@pytest.mark.rule("14")
def test_slots_bound_what_is_held_at_once(loop: Any) -> None:
    """An item waits until enough slots are free or idle, however large the budget."""
    loop.add("a", 12, 2, mm_features=[EncoderItem("x", 0, 4), EncoderItem("y", 6, 4)])
    output = loop.scheduler.schedule()
    assert (output.num_scheduled_tokens["a"], slots(loop)) == (6, (2, 4, 0))
    loop.finish_step(output)

    assert slots(loop) == (2, 0, 4)
    output = loop.step()
    assert output.scheduled_encoder_inputs == {"a": [1]}
    assert output.free_encoder_mm_hashes == ["x"]


@pytest.mark.rule("14")
def test_equal_items_are_computed_once(loop: Any) -> None:
    """Requests whose items have one identifier share the entry, in a step and later."""
    for name in ("a", "b"):
        loop.add(name, 8, 4, mm_features=[IMAGE])
    assert loop.step().scheduled_encoder_inputs == {"a": [0]}

    loop.add("c", 8, 4, mm_features=[IMAGE])
    assert loop.step().scheduled_encoder_inputs == {}
    assert slots(loop) == (4, 0, 2)


def test_equal_items_of_one_request_share_an_entry(new_loop: Any) -> None:
    """A request that shows the same image twice uses one entry, wherever its chunks are cut."""
    items = [EncoderItem("x", 0, 4), EncoderItem("x", 4, 4)]
    for budget in range(1, 9):
        loop = new_loop(
            encoder_cache_size=4, max_num_encoder_input_tokens=4, max_num_batched_tokens=budget
        )
        loop.add("a", 9, 2, mm_features=items)
        outputs = loop.steps(10)

        assert [o.scheduled_encoder_inputs for o in outputs if o.scheduled_encoder_inputs] == [
            {"a": [0]}
        ]
        assert loop.is_empty()


@pytest.mark.rule("14", "vllm#38551")
def test_an_entry_is_kept_until_the_item_has_been_processed(new_loop: Any) -> None:
    """A chunk in flight keeps its items, report vllm#38551, model B10; so does half an item."""
    loop = new_loop(encoder_cache_size=6, max_num_encoder_input_tokens=6, max_num_batched_tokens=3)
    loop.add("a", 8, 2, mm_features=[EncoderItem("x", 2, 4)])

    assert loop.step().num_scheduled_tokens == {"a": 3}
    assert slots(loop) == (2, 4, 0)
    output = loop.scheduler.schedule()
    assert slots(loop) == (2, 4, 0)
    loop.finish_step(output)
    assert slots(loop) == (2, 0, 4)


@pytest.mark.rule("14", "vllm#31857")
def test_a_refused_request_has_taken_nothing(new_loop: Any) -> None:
    """A request without blocks keeps no entry from another, report vllm#31857, model C7."""
    loop = new_loop(
        num_blocks=6,
        encoder_cache_size=2,
        max_num_encoder_input_tokens=2,
        max_num_batched_tokens=4,
    )
    loop.add("running", 8, 2, mm_features=[EncoderItem("x", 5, 2)])
    loop.step()
    loop.add("refused", 8, 2, mm_features=[EncoderItem("y", 0, 2)])

    output = loop.step()
    assert loop.scheduler.status("refused") is Status.WAITING
    assert output.scheduled_encoder_inputs == {"running": [0]}
    loop.run()
    assert loop.is_empty()


def crowded(new_loop: Any, items: dict[str, list[EncoderItem]], blocks: int) -> Any:
    """Return a loop whose next step computes the items, and preempts "low" for the last one.

    Everybody gets one block a step, and there is one block too few.
    """
    loop = new_loop(
        policy="priority",
        num_blocks=blocks + 1,
        encoder_cache_size=6,
        max_num_encoder_input_tokens=4,
        long_prefill_token_threshold=2,
        scheduler_reserve_full_isl=False,
    )
    *early, last = items
    for number, name in enumerate(early):
        loop.add(name, 7, 2, priority=9 - number, mm_features=items[name])
    loop.step()
    loop.add(last, 7, 2, priority=0, mm_features=items[last])
    loop.step()
    return loop


@pytest.mark.rule("4", "vllm#28558")
def test_a_victim_gives_its_items_back(new_loop: Any) -> None:
    """A victim of this step leaves no entry and no spent budget, report vllm#28558, model E5."""
    loop = crowded(new_loop, {"low": [IMAGE], "high": []}, 4)
    output = loop.step()

    assert output.preempted_req_ids == {"low"}
    assert output.scheduled_encoder_inputs == {}
    assert slots(loop) == (6, 0, 0)
    step = loop.scheduler._books.state.step
    assert step.encoder_budget_left == loop.config.max_num_encoder_input_tokens
    loop.run()
    assert loop.is_empty()


def test_a_shared_item_is_handed_over(new_loop: Any) -> None:
    """If the victim was to compute an item that another request shares, that one computes it."""
    loop = crowded(new_loop, {"low": [IMAGE], "middle": [IMAGE], "high": []}, 7)
    output = loop.step()

    assert output.preempted_req_ids == {"low"}
    assert output.scheduled_encoder_inputs == {"middle": [0]}
    loop.run()
    assert loop.is_empty()


def test_the_needy_one_computes_what_its_victim_was_to_compute(new_loop: Any) -> None:
    """A request that shares an item with its own victim, in one step, computes it itself."""
    shared = EncoderItem(IMAGE.identifier, 2, 2)
    loop = crowded(new_loop, {"low": [IMAGE], "high": [shared]}, 4)
    output = loop.step()

    assert output.preempted_req_ids == {"low"}
    assert output.scheduled_encoder_inputs == {"high": [0]}
    loop.run()
    assert loop.is_empty()


@pytest.mark.parametrize(("cached", "left"), [(False, (6, 0, 0)), (True, (4, 0, 2))])
def test_a_step_that_is_given_up_uses_no_item(
    new_loop: Any, cached: bool, left: tuple[int, int, int]
) -> None:
    """After a policy has failed, the next step computes or shares what the failed one was to."""
    choices = iter((None, 0))

    def choose_victim(running: Any) -> int:
        place = next(choices, -1)
        if place is None:
            raise LookupError("no victim today")
        return int(running.rows[place])

    loop = new_loop(
        choose_victim=choose_victim,
        num_blocks=8,
        encoder_cache_size=6,
        max_num_encoder_input_tokens=4,
        long_prefill_token_threshold=2,
        scheduler_reserve_full_isl=False,
    )
    if cached:
        loop.add("before", 7, 1, mm_features=[IMAGE])
        loop.run()
    for name in ("one", "two"):
        loop.add(name, 8, 2, mm_features=[IMAGE])
    loop.step()
    loop.add("three", 8, 2)
    loop.step()
    with pytest.raises(LookupError):
        loop.scheduler.schedule()
    assert slots(loop) == left
    # The step is over, but was never handed out: nothing awaits its samples.
    output = loop.step()
    assert output.preempted_req_ids == {"one"}
    assert output.scheduled_encoder_inputs == ({} if cached else {"two": [0]})
    loop.run()
    assert loop.is_empty()


def test_an_item_that_comes_again_later_keeps_no_entry(new_loop: Any) -> None:
    """An item between two places of another one is computed in the slots of that one."""
    items = [EncoderItem("x", 0, 2), EncoderItem("y", 2, 2), EncoderItem("x", 4, 2)]
    for budget in range(1, 7):
        loop = new_loop(
            encoder_cache_size=2, max_num_encoder_input_tokens=2, max_num_batched_tokens=budget
        )
        loop.add("a", 7, 2, mm_features=items)
        encoded = [step.scheduled_encoder_inputs.get("a", []) for step in loop.steps(12)]

        assert [place for places in encoded for place in places] == [0, 1, 2]
        assert loop.is_empty()


@pytest.mark.rule("14", "vllm#31857")
@pytest.mark.parametrize("slots", [3, 4, 7])
@pytest.mark.parametrize("threshold", [0, 1, 2])
@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_somebody_gets_on_however_small_the_cache(
    new_loop: Any, slots: int, threshold: int, policy: str
) -> None:
    """Requests that want one another's slots and blocks leave no step without a token for long.

    Steps that served nobody for ever were the symptom of report vllm#31857.
    """
    loop = new_loop(
        policy=policy,
        num_blocks=9,
        encoder_cache_size=slots,
        max_num_encoder_input_tokens=3,
        long_prefill_token_threshold=threshold,
    )
    for number in range(6):
        sizes = ((number, 3), (number + 1, 2), (number, 3), (number + 1, 2))
        items = [EncoderItem(f"{kind}", 3 * at, size) for at, (kind, size) in enumerate(sizes)]
        loop.add(f"r{number}", 12, 3, priority=number % 2, mm_features=items)
    while loop.scheduler.has_unfinished_requests():
        output = loop.step()
        assert output.num_scheduled_tokens or output.preempted_req_ids
    assert loop.is_empty()


def test_the_oldest_idle_entry_is_evicted_first(loop: Any) -> None:
    """Entries without users make room in the order in which they became idle, one at a time."""
    for name in ("x", "y", "z"):
        loop.add(name, 4, 1, mm_features=[EncoderItem(name, 0, 2)])
    loop.step()
    assert slots(loop) == (0, 0, 6)

    loop.add("more", 4, 1, mm_features=[EncoderItem("more", 0, 3)])
    assert loop.step().free_encoder_mm_hashes == ["x", "y"]
    loop.add("again", 4, 1, mm_features=[EncoderItem("z", 0, 2)])
    assert loop.step().scheduled_encoder_inputs == {}


def test_a_shared_idle_entry_is_not_evicted_for_its_own_request(loop: Any) -> None:
    """An entry that a chunk is about to use does not make room for another item of that chunk."""
    for name in ("x", "y"):
        loop.add(name, 4, 1, mm_features=[EncoderItem(name, 0, 2)])
    loop.step()
    loop.add("both", 6, 1, mm_features=[EncoderItem("new", 0, 4), EncoderItem("x", 4, 2)])
    output = loop.step()

    assert output.free_encoder_mm_hashes == ["y"]
    assert output.scheduled_encoder_inputs == {"both": [0]}
    assert output.num_scheduled_tokens == {"both": 6}


def test_a_chunk_ends_before_an_idle_entry_that_must_make_room(new_loop: Any) -> None:
    """If an earlier item of the chunk needs all slots, a later one has to be computed anew."""
    loop = new_loop(encoder_cache_size=4, max_num_encoder_input_tokens=4)
    for name in ("x", "y"):
        loop.add(name, 4, 1, mm_features=[EncoderItem(name, 0, 2)])
    loop.step()
    loop.add("both", 6, 1, mm_features=[EncoderItem("new", 0, 4), EncoderItem("x", 4, 2)])
    first, second = loop.steps(2)

    assert first.free_encoder_mm_hashes == ["x", "y"]
    assert (first.num_scheduled_tokens, first.scheduled_encoder_inputs) == (
        {"both": 4},
        {"both": [0]},
    )
    assert second.scheduled_encoder_inputs == {"both": [1]}


@pytest.mark.parametrize(
    ("items", "seen"),
    [
        ([EncoderItem("x", 0, 7)], "'x' has 7 embeddings.*at most 6"),
        ([EncoderItem("x", 6, 3)], "'x' stands for tokens 6 to 9, expected some within 0 to 8"),
        ([EncoderItem("x", 0, 3), EncoderItem("y", 2, 2)], "'y' stands for tokens 2 to 4.*3 to 8"),
        ([EncoderItem("x", 0, 0)], "'x' stands for tokens 0 to 0"),
    ],
)
def test_an_impossible_item_is_refused(loop: Any, items: list[EncoderItem], seen: str) -> None:
    """An item that could never be computed, or stands for no tokens, is refused at arrival."""
    with pytest.raises(RequestRefused, match=seen):
        loop.add("a", 8, 2, mm_features=items)
    assert loop.scheduler.status("a") is None


def test_items_need_a_cache(new_loop: Any) -> None:
    """Without an encoder cache a request with items is refused."""
    with pytest.raises(RequestRefused, match="at most 0"):
        new_loop().add("a", 8, 2, mm_features=[IMAGE])


@pytest.mark.rule("15")
def test_an_aborted_request_lets_go(loop: Any) -> None:
    """An abort, before or while the item is computed, leaves no user behind."""
    loop.add("a", 8, 2, mm_features=[IMAGE])
    loop.add("b", 8, 2, mm_features=[OTHER])
    output = loop.scheduler.schedule()
    loop.scheduler.abort("a")
    loop.finish_step(output)
    loop.run()

    assert slots(loop) == (2, 0, 4)
    assert loop.is_empty()


LAYOUTS = st.lists(
    st.tuples(st.sampled_from("xyz"), st.integers(0, 2), st.integers(1, 3)), max_size=3
)
REQUESTS = st.lists(st.tuples(LAYOUTS, st.integers(1, 4)), min_size=1, max_size=6)


def laid_out(layout: Sequence[tuple[str, int, int]]) -> list[EncoderItem]:
    """Return items one after the other, each with a gap before it; equal names are as long."""
    found, end = [], 0
    for name, gap, _ in layout:
        found.append(EncoderItem(name, end + gap, 1 + "xyz".index(name)))
        end = found[-1].end
    return found


LIMITS = st.fixed_dictionaries(
    {
        "policy": st.sampled_from(["fcfs", "priority"]),
        "encoder_cache_size": st.integers(3, 6),
        "max_num_encoder_input_tokens": st.integers(3, 6),
        "max_num_batched_tokens": st.integers(2, 9),
        "enable_prefix_caching": st.booleans(),
    }
)


@settings(max_examples=80)
@given(requests=REQUESTS, limits=LIMITS)
def test_slots_are_conserved(
    new_loop: Any,
    requests: list[tuple[list[tuple[str, int, int]], int]],
    limits: dict[str, Any],
) -> None:
    """Whatever runs, is cut, preempted or aborted: all slots are free or idle in the end."""
    loop = new_loop(num_blocks=9, **limits)
    for number, (layout, max_tokens) in enumerate(requests):
        items = laid_out(layout)
        prompt = (items[-1].end if items else 0) + 2
        if prompt + max_tokens <= 16:
            options = {"priority": -number, "mm_features": items}
            loop.add(f"request-{number}", prompt, max_tokens, **options)
        loop.step()
    loop.scheduler.abort("request-0")
    loop.run()

    free, used, idle = slots(loop)
    assert (free + idle, used) == (limits["encoder_cache_size"], 0)
    assert loop.is_empty()
