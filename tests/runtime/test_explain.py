"""Explanations: for a request in any state, what refuses it, who holds that, and what would end it.

Wishes of vllm#56816 and vllm#53130. Loads are in `test_explain_loads.py`.
"""

from __future__ import annotations

from typing import Any

import pytest

from kvproof.core import Status
from kvproof.runtime import EncoderItem, Explanation, Profile, Request, Scheduler, SchedulerConfig
from kvproof.runtime.demand import Demand, Quantity
from kvproof.runtime.explanation import Doing, Event, Holder, Kind, Outlook, Queue

NEXT_STEP = (Event(Kind.NEXT_STEP),)


def end_of(*names: str) -> tuple[Event, ...]:
    """Return the ends of requests."""
    return tuple(Event(Kind.END, name) for name in names)


def explained(loop: Any, name: str) -> Explanation:
    """Explain a request twice and to everybody, and demand that it is the same."""
    found: Explanation = loop.scheduler.explain(name)
    assert found in loop.scheduler.explain_all()
    assert found == loop.scheduler.explain(name)
    assert str(found).startswith(name)
    return found


# --- Nothing refuses it ---------------------------------------------------------------------------


def test_a_new_request_is_admitted_in_the_next_step(new_loop: Any) -> None:
    """Where all that it asks is there, the next step is all that it waits for."""
    loop = new_loop()
    loop.add("a", 5)

    found = explained(loop, "a")
    assert (found.outlook, found.tokens, found.events) == (Outlook.ADMITTED, 5, NEXT_STEP)
    assert (found.status, found.queue, found.place) == (Status.WAITING, Queue.WAITING, 0)
    assert found.demand is None
    assert str(found) == (
        "a (WAITING, place 1 of waiting) is admitted in the next step. Ends with the next step."
    )


def test_a_running_request_gets_tokens(new_loop: Any) -> None:
    """It says how many tokens the next step gives."""
    loop = new_loop()
    loop.add("a", 5)
    loop.step()

    found = explained(loop, "a")
    assert (found.outlook, found.tokens, found.queue) == (Outlook.SCHEDULED, 1, Queue.RUNNING)


def test_who_is_in_flight_waits_for_its_samples(new_loop: Any) -> None:
    """The event is named: the samples of that very step."""
    loop = new_loop()
    loop.add("a", 5)
    loop.step()
    output = loop.scheduler.schedule()

    found = explained(loop, "a")
    assert (found.outlook, found.tokens) == (Outlook.IN_FLIGHT, 0)
    assert found.events == (Event(Kind.SAMPLES, step=output.step),)
    assert "the samples of step 2" in str(found)


def test_an_aborted_request_leaves_with_the_samples_of_its_step(new_loop: Any) -> None:
    """It has ended, and is there until the step in flight is back."""
    loop = new_loop()
    loop.add("a", 5)
    output = loop.scheduler.schedule()
    loop.scheduler.abort("a")

    found = explained(loop, "a")
    assert (found.status, found.outlook) == (Status.FINISHED_ABORTED, Outlook.ENDED)
    assert found.events == (Event(Kind.SAMPLES, step=output.step),)
    loop.finish_step(output)
    with pytest.raises(KeyError, match="a"):
        loop.scheduler.explain("a")


def test_parked_requests_wait_for_their_callers(new_loop: Any) -> None:
    """The call that ends the wait is named."""
    loop = new_loop()
    loop.add("g", 3, needs_grammar=True)
    loop.add("s", 3, 1, resumable=True)
    loop.step()

    assert explained(loop, "g").events == (Event(Kind.GRAMMAR, "g"),)
    found = explained(loop, "s")
    assert (found.outlook, found.queue) == (Outlook.PARKED, Queue.NONE)
    assert found.events == (Event(Kind.INPUT, "s"),)
    assert str(found).endswith("Ends with a call of continue_session for s.")


# --- Something is short ---------------------------------------------------------------------------


@pytest.mark.rule("vllm#53130")
def test_blocks_are_short(new_loop: Any) -> None:
    """The guard in numbers, and each holder with all of its blocks."""
    loop = new_loop(num_blocks=11)
    loop.add("a", 6, 6)
    loop.add("b", 4, 6)
    loop.step()
    loop.add("c", 12, 2)

    found = explained(loop, "c")
    free = loop.scheduler.statistics().num_free_blocks
    assert found.outlook is Outlook.REFUSED
    assert found.demand == Demand("admit", Quantity.BLOCKS, needed=6, free=free - 2)
    assert found.first == 2, "a and b take a block each before c is looked at"
    assert found.holders == (
        Holder("a", Doing.RUNS, blocks=3, alone=3),
        Holder("b", Doing.RUNS, blocks=2, alone=2),
    )
    assert found.events == end_of("a", "b")
    assert str(found) == (
        "c (WAITING, place 1 of waiting) is refused. admit: 6 blocks needed, 3 free; 3 missing,"
        " after 2 that others take first. a has 3 blocks and runs; b has 2 blocks and runs. Ends"
        " with the end of a or the end of b."
    )


def test_the_watermark_is_named(new_loop: Any) -> None:
    """What must stay free while others run is part of the arithmetic."""
    loop = new_loop(num_blocks=11, watermark=0.2)
    loop.add("a", 8, 2)
    loop.step()
    loop.add("b", 10, 2)

    found = explained(loop, "b")
    assert found.demand == Demand("admit", Quantity.BLOCKS, needed=5, free=5, kept=2)
    assert "5 blocks needed, 5 free, 2 kept by the watermark; 2 missing" in str(found)


def test_shared_blocks_count_as_there(new_loop: Any) -> None:
    """Hits that others hold need not be taken; who shares holds few blocks alone."""
    loop = new_loop(num_blocks=10, enable_prefix_caching=True)
    loop.add("a", [1, 2, 3, 4, 5, 6, 7], 8)
    loop.step()
    loop.add("b", [1, 2, 3, 4, 9], 8)
    loop.step()
    loop.add("c", [1, 2, 3, 4, *range(50, 62)], 2)

    found = explained(loop, "c")
    assert found.demand is not None
    assert (found.demand.needed, found.demand.there) == (8, 2)
    assert found.holders == (
        Holder("a", Doing.RUNS, blocks=4, alone=2),
        Holder("b", Doing.RUNS, blocks=3, alone=1),
    )
    assert "a has 4 blocks (2 of them alone) and runs" in str(found)


def test_a_first_chunk_can_be_all_that_is_asked(new_loop: Any) -> None:
    """Without the rule of the whole prompt the row is another, and so are its numbers."""
    loop = new_loop(num_blocks=6, scheduler_reserve_full_isl=False, long_prefill_token_threshold=6)
    loop.add("a", 6, 4)
    loop.step()
    loop.add("b", 9, 1)

    found = explained(loop, "b")
    assert found.demand == Demand("admit_chunk", Quantity.BLOCKS, needed=3, free=1)


def test_places_are_short(new_loop: Any) -> None:
    """Whoever runs has a place, however few blocks it has; the rest stands behind the first."""
    loop = new_loop(max_num_seqs=1)
    loop.add("a", 2)
    loop.add("b", 2)
    loop.add("c", 2)
    loop.step()

    found = explained(loop, "b")
    assert found.demand == Demand("admit", Quantity.PLACES, needed=1, free=0)
    assert found.holders == (Holder("a", Doing.RUNS, blocks=1, alone=1),)
    assert found.events == end_of("a")
    behind = explained(loop, "c")
    assert (behind.outlook, behind.behind, behind.place) == (Outlook.BEHIND, "b", 1)
    assert (behind.demand, behind.holders) == (found.demand, found.holders)
    assert "stands behind b, at which the pass stops. b is refused by admit: 1 place" in str(behind)


def test_tokens_of_the_step_are_short(new_loop: Any) -> None:
    """A step whose tokens are used up has none for the next request, running or waiting."""
    loop = new_loop(max_num_batched_tokens=4)
    loop.add("a", 12)
    loop.add("b", 6)
    loop.step()

    found = explained(loop, "b")
    assert found.demand == Demand("schedule", Quantity.TOKENS, needed=1, free=0)
    assert found.events == (*NEXT_STEP, *end_of("a"))


def test_a_victim_says_for_whom(new_loop: Any) -> None:
    """A request that the next step preempts names the one in need, what it needs and who has it."""
    loop = new_loop(num_blocks=7)
    loop.add("a", 5, 8)
    loop.add("b", 5, 8)
    loop.until(lambda _: explained(loop, "b").outlook is Outlook.PREEMPTED)

    found = explained(loop, "b")
    assert (found.behind, found.events) == ("a", NEXT_STEP)
    assert found.demand == Demand("schedule", Quantity.BLOCKS, needed=1, free=0)
    assert found.holders == (Holder("b", Doing.RUNS, blocks=3, alone=3),)
    output = loop.step()
    assert output.preempted_req_ids == {"b"}
    assert explained(loop, "b").status is Status.PREEMPTED


def test_a_step_that_preempts_admits_nobody(new_loop: Any) -> None:
    """Who waits meanwhile stands behind the request in need."""
    loop = new_loop(num_blocks=7)
    loop.add("a", 5, 8)
    loop.add("b", 5, 8)
    loop.until(lambda _: explained(loop, "b").outlook is Outlook.PREEMPTED)
    loop.add("c", 1, 1)

    found = explained(loop, "c")
    assert (found.outlook, found.behind) == (Outlook.BEHIND, "a")
    assert found.events == (*NEXT_STEP, *end_of("b"))


def test_embeddings_are_short(new_loop: Any) -> None:
    """An item that the encoder cache has no room for, and who uses the cache."""
    loop = new_loop(
        encoder_cache_size=6, max_num_encoder_input_tokens=6, long_prefill_token_threshold=2
    )
    loop.add("a", 8, 2, mm_features=(EncoderItem("x", 1, 5),))
    loop.step()
    loop.add("b", 8, 2, mm_features=(EncoderItem("y", 0, 4),))

    found = explained(loop, "b")
    assert found.demand == Demand("encode", Quantity.EMBEDDINGS, needed=4, free=1)
    assert found.holders == (Holder("a", Doing.RUNS, blocks=1, alone=1, embeddings=5),)
    assert found.events == end_of("a")
    assert "a has 1 block, 5 embeddings and runs" in str(found)


@pytest.mark.rule("vllm#53130")
def test_blocks_behind_a_fence_come_back_with_a_step(new_loop: Any) -> None:
    """What a step in flight may touch names the step, and whose it was."""
    loop = new_loop(num_blocks=6, max_steps_in_flight=2)
    loop.add("a", 7, 3)
    first = loop.scheduler.schedule()
    loop.scheduler.abort("a")
    loop.add("b", 6, 2)

    found = explained(loop, "b")
    assert found.demand == Demand("admit", Quantity.BLOCKS, needed=3, free=1)
    assert found.holders == (Holder("a", Doing.FENCED, blocks=4, alone=4, until=first.step),)
    assert found.events == (Event(Kind.SAMPLES, step=first.step),)
    assert "a has 4 blocks and has given them up until step 1 is back" in str(found)


def test_a_victim_in_flight_is_waited_for(new_loop: Any) -> None:
    """Where the victim is in flight, the samples of its step are what the needy waits for."""
    loop = new_loop(num_blocks=7, max_steps_in_flight=2)
    loop.add("a", 5, 8)
    loop.add("b", 5, 8)
    refused = None
    flying = [loop.scheduler.schedule()]
    for _ in range(20):
        found = {e.request_id: e for e in loop.scheduler.explain_all()}
        refused = next((e for e in found.values() if e.outlook is Outlook.REFUSED), None)
        if refused is not None:
            break
        flying.append(loop.scheduler.schedule())
        loop.finish_step(flying.pop(0))

    assert refused is not None
    assert refused.demand is not None
    assert refused.demand.quantity is Quantity.BLOCKS
    assert Event(Kind.SAMPLES, step=flying[0].step) in refused.events


# --- Whose guards they are ------------------------------------------------------------------------


def test_the_guards_of_the_last_step_are_said_to_be_old(new_loop: Any) -> None:
    """While no other step may be scheduled, the last pass is what there is to read."""
    loop = new_loop(max_num_seqs=1)
    loop.add("a", 2)
    loop.add("b", 2)
    output = loop.scheduler.schedule()
    loop.add("late", 2)

    found = explained(loop, "b")
    assert (found.outlook, found.step) == (Outlook.REFUSED, output.step)
    assert "is refused (as of step 1)" in str(found)
    assert explained(loop, "late").behind == "b"
    loop.scheduler.abort("b")
    late = explained(loop, "late")
    assert (late.outlook, late.events) == (Outlook.UNSEEN, NEXT_STEP)
    loop.finish_step(output)
    assert explained(loop, "late").step is None


def test_a_throttled_step_is_told(new_loop: Any) -> None:
    """Who waits because prefills are deferred waits for a step that does not defer them."""
    loop = new_loop()
    loop.add("a", 2)
    loop.step()
    loop.add("b", 4)
    output = loop.scheduler.schedule(throttle_prefills=True)

    during = explained(loop, "b")
    assert during.demand is not None
    assert during.demand.quantity is Quantity.RELEASE
    assert during.events == (Event(Kind.RELEASE),)
    loop.finish_step(output)
    found = explained(loop, "b")
    assert (found.outlook, found.events) == (Outlook.ADMITTED, (Event(Kind.RELEASE),))
    assert "The last step deferred prefills." in str(found)


def test_a_policy_that_fails_is_named(new_loop: Any) -> None:
    """If the next step cannot be decided, the explanation says what its policy said."""
    loop = new_loop(num_blocks=7, choose_victim=lambda running: -7)
    loop.add("a", 5, 8)
    loop.add("b", 5, 8)
    for _ in range(20):
        if "cannot be decided" in (text := str(explained(loop, "a"))):
            break
        loop.step()

    assert "The next step cannot be decided: choose_victim returned -7" in text


def test_what_can_never_fit_is_frozen() -> None:
    """Under the rules of the reference a request can be larger than the pool; only its abort helps.

    Those behind it, too.
    """
    config = SchedulerConfig(num_blocks=4, block_size=2, profile=Profile.vllm_0_25_1())
    scheduler = Scheduler(config, on_freeze=lambda _: None)
    scheduler.add_request(Request("a", (1, 2), 4))
    output = scheduler.schedule()
    scheduler.update(output, {"a": 0})
    scheduler.add_request(Request("giant", tuple(range(20)), 4))
    scheduler.add_request(Request("b", (1, 2), 4))

    found, behind = scheduler.explain("giant"), scheduler.explain("b")
    assert (found.is_frozen, found.abortable) == (True, ("giant", "a"))
    assert (behind.is_frozen, behind.behind) == (True, "giant")
    assert not scheduler.explain("a").is_frozen
    assert str(found).endswith("Frozen: nothing ends this wait but the abort of giant or a.")


# --- What it does not do --------------------------------------------------------------------------


def test_explaining_changes_nothing(new_loop: Any, unchanged: Any) -> None:
    """Not the state, not an order, not a count, though a step is tried for it."""
    loop = new_loop(num_blocks=7, enable_prefix_caching=True)
    loop.add("a", 5, 8)
    loop.add("b", 5, 8)
    for number in range(12):
        loop.add(f"c{number}", 3, 2)
        before = loop.scheduler.statistics()
        with unchanged(loop.scheduler):
            loop.scheduler.explain(f"c{number}")
            loop.scheduler.explain_all()
        assert loop.scheduler.statistics() == before
        output = loop.scheduler.schedule()
        with unchanged(loop.scheduler):
            loop.scheduler.explain_all()
        loop.finish_step(output)


def test_freed_blocks_of_a_trial_are_not_poisoned() -> None:
    """The memory of a victim that is preempted in the trial alone is left as it is."""
    scheduler = Scheduler(SchedulerConfig(num_blocks=7, block_size=2), debug=True)
    poisoned: list[Any] = []
    scheduler._books.fences._on_free = poisoned.append
    scheduler.add_request(Request("a", (1, 2, 3, 4, 5), 8))
    scheduler.add_request(Request("b", (6, 7, 8, 9, 10), 8))
    while scheduler.explain("b").outlook is not Outlook.PREEMPTED:
        output = scheduler.schedule()
        scheduler.update(output, dict.fromkeys(output.sampled_req_ids, 0))

    assert poisoned == []
