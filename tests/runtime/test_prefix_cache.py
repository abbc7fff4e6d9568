"""The prefix cache: who shares which blocks, for how long, and what a hit costs."""

from __future__ import annotations

from typing import Any

import pytest

from kvproof.core import Status
from kvproof.runtime import EncoderItem

TAIL = [7, 7, 7]


@pytest.fixture
def loop(new_loop: Any) -> Any:
    """Return a scheduler with a prefix cache and 16 blocks of 2 tokens."""
    return new_loop(enable_prefix_caching=True)


def computed(loop: Any, name: str, prompt: list[int], **options: Any) -> int:
    """Return how many tokens of a new request are found, after running it to its end."""
    loop.add(name, prompt, 1, **options)
    output = loop.step()
    found: int = output.computed.tolist()[output.req_ids.index(name)]
    loop.run()
    return found


@pytest.mark.rule("6")
def test_equal_prefixes_share_blocks(loop: Any) -> None:
    """A request whose first blocks are there starts behind them, in the very same blocks."""
    loop.add("owner", [1, 2, 3, 4, 5])
    loop.step()
    loop.add("sharer", [1, 2, 3, 4, 9, 9, 9])
    output = loop.step()

    assert output.num_scheduled_tokens["sharer"] == 3
    assert loop.scheduler.block_ids("sharer")[:2] == loop.scheduler.block_ids("owner")[:2]
    assert set(loop.scheduler.block_ids("sharer")[2:]).isdisjoint(loop.scheduler.block_ids("owner"))
    new = next(item for item in output.scheduled_new_reqs if item.req_id == "sharer")
    assert (new.num_computed_tokens, new.block_ids[0]) == (4, loop.scheduler.block_ids("sharer"))


def test_a_shared_block_is_freed_with_its_last_user(loop: Any) -> None:
    """While one request uses a block it is not free, whoever else has given it up."""
    loop.add("owner", [1, 2, 3, 4, 5])
    loop.step()
    loop.add("sharer", [1, 2, 3, 4, 9], 2)
    shared = set(loop.scheduler.block_ids("owner")[:2])
    loop.step()

    loop.scheduler.abort("owner")
    assert shared.isdisjoint(loop.scheduler.free_block_ids())
    loop.run()
    assert shared <= set(loop.scheduler.free_block_ids())
    assert loop.is_empty()


@pytest.mark.parametrize(("length", "found"), [(3, 2), (4, 2), (5, 4), (6, 4)])
@pytest.mark.rule("6", "lmc#2327")
def test_one_token_is_always_computed(loop: Any, length: int, found: int) -> None:
    """Even if all of a prompt is there, its last block is computed, for something to sample."""
    prompt = list(range(1, 7))
    computed(loop, "owner", prompt)

    assert computed(loop, "again", prompt[:length]) == found


def test_sampled_tokens_are_shared_too(loop: Any) -> None:
    """The blocks that an output has filled serve a prompt that goes on from it."""
    loop.add("turn-1", [1, 2, 3], 6)
    loop.run()
    output = loop.outputs("turn-1")

    assert computed(loop, "turn-2", [1, 2, 3, *output, 5]) == 8


@pytest.mark.rule("6", "vllm#11565")
def test_idle_hits_are_needed_not_free(new_loop: Any) -> None:
    """Hits in the free queue are no room for others: 2 hits and 2 new do not fit into 3 free.

    Reports vllm#11562 and vllm#24228, models D6 and D7.
    """
    loop = new_loop(enable_prefix_caching=True, num_blocks=5)
    computed(loop, "owner", [1, 2, 3, 4, 5])
    loop.add("holder", [9], 2)
    loop.step()
    free = loop.scheduler.free_block_ids()
    assert len(free) == 3

    loop.add("late", [1, 2, 3, 4, *TAIL], 1)
    output = loop.scheduler.schedule()
    assert output.req_ids == ["holder"]
    assert loop.scheduler.free_block_ids() == free
    assert loop.scheduler.block_ids("late") == []
    loop.finish_step(output)

    assert loop.step().computed.tolist() == [4]


def test_hits_in_use_are_not_needed_again(new_loop: Any) -> None:
    """Hits that somebody uses cost nothing: 2 of them and 1 new fit into 1 free."""
    loop = new_loop(enable_prefix_caching=True, num_blocks=5)
    loop.add("owner", [1, 2, 3, 4, 5], 2)
    loop.step()
    loop.add("sharer", [1, 2, 3, 4, 9], 1)

    assert "sharer" in loop.step().req_ids


@pytest.mark.rule("6", "vllm#29387")
def test_equal_prompts_of_one_step_are_computed_apart(loop: Any) -> None:
    """What a step is only about to write is no hit in that step; both publish what they wrote.

    Report vllm#29387, model H3.
    """
    loop.add("one", [1, 2, 3, 4, 5])
    loop.add("two", [1, 2, 3, 4, 5])
    output = loop.step()

    assert output.computed.tolist() == [0, 0]
    blocks = [set(loop.scheduler.block_ids(name)) for name in ("one", "two")]
    assert blocks[0].isdisjoint(blocks[1])
    assert len(loop.scheduler._books.prefix.index) == 4


def test_content_published_twice_is_found_until_the_last_copy_goes(new_loop: Any) -> None:
    """If one of two equal blocks is taken for something else, the other one is still a hit."""
    loop = new_loop(enable_prefix_caching=True, num_blocks=7)
    loop.add("one", [1, 2, 3], 1)
    loop.add("two", [1, 2, 3], 1)
    loop.run()
    assert len(loop.scheduler._books.prefix.index) == 2

    # Four blocks were never published, so five of fresh content take one copy.
    loop.add("big", [8] * 9, 1)
    loop.step()
    assert len(loop.scheduler._books.prefix.index) == 1 + 4
    assert computed(loop, "again", [1, 2, 9]) == 2


@pytest.mark.rule("6", "7")
def test_freed_blocks_keep_their_content_until_they_are_taken(loop: Any) -> None:
    """A chain is freed from its end, behind all that nobody can share, and so it is evicted."""
    loop.add("owner", [1, 2, 3, 4, 5, 6, 7], 1)
    loop.step()
    first, second, third = range(1, 4)
    assert loop.scheduler.free_block_ids()[-3:] == [third, second, first]
    assert loop.scheduler.free_block_ids()[0] == 4

    loop.add("big", 2 * 14, 1)  # takes all but the two blocks at the end of the queue
    loop.step()
    assert computed(loop, "again", [1, 2, 3, 4, 5, 6, 7]) == 4


@pytest.mark.rule("ovg-project/kvcached#362")
def test_a_block_taken_for_something_else_is_no_hit(new_loop: Any) -> None:
    """Content that was overwritten is not found, report kvcached#362, model D9."""
    loop = new_loop(enable_prefix_caching=True, num_blocks=4)
    computed(loop, "owner", [1, 2, 3, 4])
    computed(loop, "other", [5, 6, 7, 8, 9])

    assert computed(loop, "again", [1, 2, 3, 4]) == 0


def test_salts_keep_requests_apart(loop: Any) -> None:
    """Requests with different salts share nothing, those with the same one do."""
    prompt = [1, 2, 3, 4, 5]

    assert computed(loop, "plain", prompt) == 0
    assert computed(loop, "salt", prompt, cache_salt="a") == 0
    assert computed(loop, "other salt", prompt, cache_salt="b") == 0
    assert computed(loop, "same salt", prompt, cache_salt="a") == 4
    assert computed(loop, "plain again", prompt) == 4


def test_items_keep_requests_apart(new_loop: Any) -> None:
    """Placeholder tokens of different items, or at different places, share nothing from there."""
    loop = new_loop(
        enable_prefix_caching=True, encoder_cache_size=8, max_num_encoder_input_tokens=8
    )
    prompt = [1, 2, 0, 0, 0, 5]

    assert computed(loop, "one", prompt, mm_features=[EncoderItem("a", 2, 3)]) == 0
    assert computed(loop, "other", prompt, mm_features=[EncoderItem("b", 2, 3)]) == 2
    assert computed(loop, "moved", prompt, mm_features=[EncoderItem("a", 3, 2)]) == 2
    assert computed(loop, "same", prompt, mm_features=[EncoderItem("a", 2, 3)]) == 4


def test_reset_forgets_everything_if_nothing_is_in_use(loop: Any) -> None:
    """After a weight update no old block is a hit; while one is in use nothing is forgotten."""
    loop.add("owner", [1, 2, 3, 4, 5], 1)
    output = loop.scheduler.schedule()
    assert not loop.scheduler.reset_prefix_cache()
    loop.finish_step(output)

    assert loop.scheduler.reset_prefix_cache()
    assert computed(loop, "again", [1, 2, 3, 4, 5]) == 0
    assert computed(loop, "third", [1, 2, 3, 4, 5]) == 4


def test_without_the_cache_nothing_is_shared(new_loop: Any) -> None:
    """Prefix caching is off unless it is asked for; a reset has nothing to do then."""
    loop = new_loop()

    assert computed(loop, "one", [1, 2, 3, 4, 5]) == 0
    assert computed(loop, "two", [1, 2, 3, 4, 5]) == 0
    assert loop.scheduler.reset_prefix_cache()
    assert loop.scheduler.take_events() == []


@pytest.mark.rule("6")
def test_a_preempted_request_finds_its_own_blocks(new_loop: Any) -> None:
    """A victim that comes back starts behind the blocks of its own that are still there."""
    loop = new_loop(enable_prefix_caching=True, num_blocks=7)
    loop.add("first", 5, 6)
    loop.add("second", 5, 6)
    output = loop.until(lambda output: output.preempted_req_ids)
    assert output.preempted_req_ids == {"second"}

    output = loop.until(lambda output: output.resumed_req_ids)
    assert output.resumed_req_ids == {"second"}
    assert output.computed.tolist()[output.req_ids.index("second")] >= 2
    loop.run()
    assert loop.is_empty()


def test_a_look_up_is_repeated_when_a_request_was_not_admitted(new_loop: Any) -> None:
    """Hits are never remembered from a step that refused the request, report vllm#18957, H2."""
    loop = new_loop(enable_prefix_caching=True, num_blocks=6)
    computed(loop, "owner", [1, 2, 3, 4, 5])
    loop.add("holder", 5, 4)
    loop.step()
    loop.add("late", [1, 2, 3, 4, *TAIL], 1)
    loop.step()
    assert loop.scheduler.status("late") is Status.WAITING

    loop.until(lambda _: loop.scheduler.status("holder") is None)
    output = loop.step()
    assert output.req_ids == ["late"]
    assert output.computed.tolist() == [2]
