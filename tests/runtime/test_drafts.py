"""Draft tokens: tried with the next token, accepted or rejected, and never beyond what may be."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.runtime import CallerError, FinishReason, StepOrderError, StepOutput


@pytest.fixture
def loop(new_loop: Any) -> Any:
    """Return a scheduler whose request "a" decodes after three tokens, and may draft three."""
    loop = new_loop(num_speculative_tokens=3, block_size=4)
    loop.add("a", [1, 2, 3], 20, stop_token_ids=[99])
    loop.step({"a": 4})
    return loop


def draft(loop: Any, *tokens: int) -> StepOutput:
    """Propose drafts for "a" and schedule the step that tries them."""
    loop.scheduler.update_draft_tokens({"a": tokens})
    output: StepOutput = loop.scheduler.schedule()
    return output


@pytest.mark.rule("13")
def test_drafts_are_tried_with_the_next_token(loop: Any) -> None:
    """A step computes the last token and its drafts, and says which drafts they are."""
    output = draft(loop, 5, 6, 7)

    assert output.num_scheduled_tokens == {"a": 4}
    assert output.scheduled_spec_decode_tokens == {"a": [5, 6, 7]}
    assert output.most_samples.tolist() == [4]
    assert output.to_tensors().input_ids.tolist() == [4, 5, 6, 7]


def test_accepted_drafts_count_as_computed(loop: Any) -> None:
    """All drafts and one more token become known; only the last of them is not computed yet."""
    loop.finish_step(draft(loop, 5, 6, 7), {"a": [5, 6, 7, 8]})

    assert loop.scheduler.token_ids("a") == [1, 2, 3, 4, 5, 6, 7, 8]
    assert loop.scheduler.num_computed_tokens("a") == 7
    assert loop.results[-1].new_token_ids == (5, 6, 7, 8)
    assert loop.step().num_scheduled_tokens == {"a": 1}


@pytest.mark.rule("13")
def test_rejected_drafts_are_computed_again(loop: Any) -> None:
    """From the first draft that was wrong on, nothing counts as computed."""
    loop.finish_step(draft(loop, 5, 6, 7), {"a": [5, 9]})

    assert loop.scheduler.token_ids("a") == [1, 2, 3, 4, 5, 9]
    assert loop.scheduler.num_computed_tokens("a") == 5
    output = draft(loop, 11)
    assert output.to_tensors().input_ids.tolist() == [9, 11]
    assert output.to_tensors().positions.tolist() == [5, 6]


def test_samples_behind_a_stop_token_are_dropped(loop: Any) -> None:
    """A stop token among the accepted ends the request there."""
    loop.finish_step(draft(loop, 5, 99, 7), {"a": [5, 99, 7, 8]})

    assert loop.results[-1].new_token_ids == (5, 99)
    assert loop.results[-1].finish_reason is FinishReason.STOP
    assert loop.is_empty()


def test_drafts_behind_the_last_token_are_cut(new_loop: Any) -> None:
    """No draft is tried whose sample could not be accepted any more."""
    loop = new_loop(num_speculative_tokens=3)
    loop.add("a", [1, 2, 3], 3)
    loop.step({"a": 4})
    output = draft(loop, 5, 6, 7)

    assert output.scheduled_spec_decode_tokens == {"a": [5]}
    loop.finish_step(output, {"a": [5, 6]})
    assert loop.results[-1].finish_reason is FinishReason.LENGTH


def test_drafts_are_cut_to_the_budget(new_loop: Any) -> None:
    """A step that has not enough tokens left tries the first drafts only."""
    loop = new_loop(num_speculative_tokens=3, max_num_batched_tokens=3)
    loop.add("a", [1, 2, 3], 9)
    loop.step({"a": 4})
    output = draft(loop, 5, 6, 7)

    assert output.scheduled_spec_decode_tokens == {"a": [5, 6]}
    loop.finish_step(output, {"a": [5]})
    assert loop.step().scheduled_spec_decode_tokens == {}


def test_more_samples_than_drafts_are_refused(loop: Any) -> None:
    """A step brings one token for each accepted draft and one more, and at least one."""
    output = draft(loop, 5, 6)
    for tokens in ([], [5, 6, 7, 8]):
        with pytest.raises(StepOrderError, match=f"saw {len(tokens)} tokens.*expected 1 to 3"):
            loop.scheduler.update(output, {"a": tokens})
    loop.finish_step(output, {"a": [5]})


@pytest.mark.rule("1", "vllm#30916", "vllm#28558")
def test_drafts_do_not_survive_a_preemption(new_loop: Any) -> None:
    """A victim comes back without its drafts, reports vllm#30916 and vllm#28558, models E4, E5."""
    loop = new_loop(num_speculative_tokens=2, num_blocks=5)
    loop.add("a", 3, 6)
    loop.add("b", 3, 5)
    loop.step()
    loop.scheduler.update_draft_tokens({"a": [0, 0], "b": [0, 0]})
    output = loop.step({"a": [0, 0, 0]})
    assert output.preempted_req_ids == {"b"}
    assert output.scheduled_spec_decode_tokens == {"a": [0, 0]}

    loop.run()
    assert loop.outputs("b") == [0] * 5
    assert loop.is_empty()


@pytest.mark.rule("4")
def test_a_victim_of_this_step_takes_its_drafts_along(new_loop: Any) -> None:
    """Nothing of a victim that was scheduled with drafts stays in the step, its budget included."""
    loop = new_loop(
        num_speculative_tokens=2,
        num_blocks=7,
        policy="priority",
        max_num_batched_tokens=6,
    )
    loop.add("low", 3, 6, priority=1)
    loop.step()
    loop.add("high", 3, 6, priority=0)
    loop.step()
    loop.scheduler.update_draft_tokens({"low": [0, 0], "high": [0, 0]})
    output = loop.step()

    assert output.preempted_req_ids == {"low"}
    assert output.num_scheduled_tokens == {"high": 3}
    assert list(output.scheduled_spec_decode_tokens) == ["high"]
    loop.run()
    assert loop.is_empty()


@pytest.mark.parametrize(("lookahead", "blocks"), [(0, 1), (1, 2), (4, 2), (5, 3)])
@pytest.mark.rule("13")
def test_look_ahead_slots_are_kept_free(new_loop: Any, lookahead: int, blocks: int) -> None:
    """A table always has slots for a drafter behind the tokens of its request."""
    loop = new_loop(num_lookahead_tokens=lookahead, block_size=4)
    loop.add("a", 4, 9)
    loop.step()

    assert len(loop.scheduler.block_ids("a")) == blocks


def test_look_ahead_counts_for_admission(new_loop: Any) -> None:
    """A request is admitted only if its look-ahead slots can be had as well."""
    loop = new_loop(num_lookahead_tokens=2, num_blocks=5)
    loop.add("a", 4, 2)
    loop.add("b", 2, 1)

    assert loop.step().req_ids == ["a"]


def test_drafts_for_nobody_are_passed_over(loop: Any) -> None:
    """An engine may offer drafts for a request that has left, waits, or has not sampled yet."""
    loop.add("new", [5, 6])
    loop.scheduler.update_draft_tokens({"gone": [1], "new": [1, 2, 3]})

    assert loop.scheduler.schedule().scheduled_spec_decode_tokens == {}


def test_later_drafts_replace_earlier_ones(loop: Any) -> None:
    """What was proposed last is what is tried, an empty proposal included."""
    loop.scheduler.update_draft_tokens({"a": [5, 6, 7]})
    assert draft(loop, 8).scheduled_spec_decode_tokens == {"a": [8]}
    loop.finish_step(loop.scheduler._in_flight[0], {"a": 8})

    loop.scheduler.update_draft_tokens({"a": [5, 6, 7]})
    assert draft(loop).scheduled_spec_decode_tokens == {}


@pytest.mark.parametrize(
    ("tokens", "seen"),
    [
        ([1, 2, 3, 4], "saw 4 draft tokens for 'a', expected at most num_speculative_tokens, 3"),
        ([1.5], r"saw \[1.5\] as drafts of 'a'"),
        (["x"], r"saw \['x'\] as drafts of 'a'"),
        ([[1]], r"saw \[\[1\]\] as drafts of 'a'"),
    ],
)
def test_wrong_drafts_are_refused(loop: Any, tokens: list[Any], seen: str, unchanged: Any) -> None:
    """Too many drafts, or something that is no token, change nothing."""
    with unchanged(loop.scheduler), pytest.raises(CallerError, match=seen):
        loop.scheduler.update_draft_tokens({"a": tokens})


def test_drafts_in_flight_are_refused(loop: Any) -> None:
    """Drafts come after the samples of a step, not while it is in flight."""
    loop.scheduler.schedule()
    with pytest.raises(StepOrderError, match="give drafts after update"):
        loop.scheduler.update_draft_tokens({"a": [1]})


def plain_logits(output: StepOutput) -> list[int]:
    """Return which tokens of the batch need logits, worked out request by request."""
    found, start = [], 0
    for computed, tokens, known in zip(
        output.computed.tolist(), output.tokens.tolist(), output.stretch.known.tolist(), strict=True
    ):
        found += [start + place for place in range(tokens) if computed + place >= known - 1]
        start += tokens
    return found


PLAN = st.lists(
    st.tuples(st.lists(st.integers(0, 3), min_size=4, max_size=4), st.integers(1, 4)),
    min_size=1,
    max_size=12,
)


@settings(max_examples=60)
@given(plan=PLAN, prompts=st.lists(st.integers(1, 9), min_size=1, max_size=4))
def test_logits_are_wanted_of_the_last_token_and_of_drafts(
    new_loop: Any, plan: list[tuple[list[int], int]], prompts: list[int]
) -> None:
    """Each sampling request has a row of logits for its last known token and for each draft."""
    loop = new_loop(num_speculative_tokens=3, max_num_batched_tokens=9, num_blocks=33)
    for number, length in enumerate(prompts):
        loop.add(f"request-{number}", length, 12)
    for drafts, accepted in plan:
        output = loop.scheduler.schedule()
        if output.num_requests:
            tensors = output.to_tensors()
            tensors.check()
            assert tensors.logits_indices.tolist() == plain_logits(output)
            assert len(tensors.logits_indices) == int(np.sum(output.most_samples))
        most = dict(zip(output.sampled_req_ids, output.most_samples.tolist(), strict=True))
        loop.finish_step(output, {name: [0] * min(accepted, n) for name, n in most.items()})
        loop.scheduler.update_draft_tokens(
            {f"request-{number}": [0] * count for number, count in enumerate(drafts)}
        )
    loop.run()
    assert loop.is_empty()
