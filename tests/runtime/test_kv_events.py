"""KV events: a listener that replays them knows what is published, step by step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.runtime import EncoderItem, RequestRefused

PROMPTS = st.lists(st.integers(1, 2), min_size=1, max_size=9)
ADD = st.tuples(st.just("add"), PROMPTS, st.sampled_from(["", "salt"]))
OTHERS = st.sampled_from(["step", "step", "step", "abort", "reset"]).map(lambda name: (name,))
CALLS = st.lists(st.one_of(ADD, OTHERS), max_size=40)


class Listener:
    """What a router does with the events: it keeps the hashes that can be hit."""

    def __init__(self) -> None:
        """Start with nothing published."""
        self.published: set[bytes] = set()

    def hear(self, events: Iterable[dict[str, Any]]) -> None:
        """Replay events."""
        for event in events:
            if event["type"] == "AllBlocksCleared":
                self.published.clear()
            elif event["type"] == "BlockRemoved":
                self.published -= set(event["block_hashes"])
            else:
                parent = event["parent_block_hash"]
                assert parent is None or parent in self.published
                self.published |= set(event["block_hashes"])


@pytest.fixture
def loop(new_loop: Any) -> Any:
    """Return a scheduler with a prefix cache whose events are wanted."""
    loop = new_loop(enable_prefix_caching=True, num_blocks=7)
    assert loop.scheduler.take_events() == []
    return loop


def published(loop: Any) -> set[bytes]:
    """Return the hashes that a request could hit."""
    return {prefix.digest for _, prefix in loop.scheduler._books.prefix.index}


def call(loop: Any, number: int, name: str, *arguments: Any) -> None:
    """Do one of the things that callers do."""
    if name == "add":
        prompt, salt = arguments
        try:
            loop.add(f"request-{number}", prompt, 1 + number % 4, cache_salt=salt)
        except RequestRefused:
            return
    elif name == "step":
        loop.step()
    elif name == "abort":
        loop.scheduler.abort(f"request-{number - 3}")
    else:
        loop.scheduler.reset_prefix_cache()


@settings(max_examples=60)
@given(calls=CALLS, algorithm=st.sampled_from(["sha256", "xxh3"]))
def test_replaying_the_events_gives_the_index(
    new_loop: Any, calls: list[tuple[Any, ...]], algorithm: str
) -> None:
    """After every call, the hashes stored and not removed are exactly those that are published."""
    loop = new_loop(
        enable_prefix_caching=True, num_blocks=7, prefix_caching_hash_algo=algorithm, max_num_seqs=3
    )
    listener = Listener()
    listener.hear(loop.scheduler.take_events())
    for number, arguments in enumerate(calls):
        call(loop, number, *arguments)
        listener.hear(loop.scheduler.take_events())
        assert listener.published == published(loop)


def test_a_stored_event_has_vllms_fields(loop: Any) -> None:
    """One event tells of all blocks that a request publishes in a step, with what they hold."""
    loop.add("a", [1, 2, 3, 4, 5], 2, cache_salt="s")
    loop.step()

    (event,) = loop.scheduler.take_events()
    prefixes = [prefix for _, prefix in loop.scheduler._books.prefix.index]
    assert event == {
        "type": "BlockStored",
        "block_hashes": [prefix.digest for prefix in prefixes],
        "parent_block_hash": None,
        "token_ids": [1, 2, 3, 4],
        "block_size": 2,
        "lora_id": None,
        "medium": "GPU",
        "lora_name": None,
        "extra_keys": [("s",), None],
        "group_idx": 0,
    }


def test_a_later_event_names_its_parent(loop: Any) -> None:
    """Blocks that fill later are told with the hash of the block before them."""
    loop.add("a", [1, 2, 3], 4)
    loop.step()
    (first,) = loop.scheduler.take_events()
    loop.steps(2)
    (second,) = loop.scheduler.take_events()

    assert second["parent_block_hash"] == first["block_hashes"][-1]
    assert second["token_ids"] == [3, 0]


def test_items_are_told_as_keys(new_loop: Any) -> None:
    """A listener that rebuilds hashes is given the items of each block, and where they start."""
    loop = new_loop(
        enable_prefix_caching=True, encoder_cache_size=8, max_num_encoder_input_tokens=8
    )
    loop.scheduler.take_events()
    loop.add("a", [1, 2, 3, 4, 5], 2, mm_features=[EncoderItem("image", 1, 3)])
    loop.step()

    (event,) = loop.scheduler.take_events()
    assert event["extra_keys"] == [(("image", 1),), (("image", -1),)]


def test_a_removal_is_told_with_the_last_copy(loop: Any) -> None:
    """While another block holds the same content, a listener keeps its hash, report vllm#55092."""
    loop.add("one", [1, 2, 3], 1)
    loop.add("two", [1, 2, 3], 1)
    loop.run()
    (digest,) = published(loop)
    loop.scheduler.take_events()

    loop.add("big", [8] * 9, 1)
    loop.step()
    removed = [e for e in loop.scheduler.take_events() if e["type"] == "BlockRemoved"]
    assert removed == []

    loop.add("bigger", [9] * 11, 1)
    loop.step()
    removed = [e for e in loop.scheduler.take_events() if e["type"] == "BlockRemoved"]
    assert {"type": "BlockRemoved", "block_hashes": [digest], "medium": "GPU", "group_idx": 0} in (
        removed
    )


def test_a_reset_is_told(loop: Any) -> None:
    """A reset clears a listener with one event."""
    loop.add("a", [1, 2, 3], 1)
    loop.run()
    loop.scheduler.take_events()
    assert loop.scheduler.reset_prefix_cache()

    assert loop.scheduler.take_events() == [{"type": "AllBlocksCleared"}]


def test_nothing_is_kept_for_nobody(new_loop: Any) -> None:
    """Until somebody takes events for the first time, none are gathered."""
    loop = new_loop(enable_prefix_caching=True)
    loop.add("a", [1, 2, 3], 1)
    loop.run()

    assert loop.scheduler.take_events() == []
