"""The watermark: blocks that admissions leave free for those that run."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.rule("12", "vllm#37307")
def test_an_admission_leaves_the_watermark_free(new_loop: Any) -> None:
    """While others run, a request is admitted only if so many blocks are free afterwards."""
    loop = new_loop(watermark=0.25, num_blocks=17)  # 4 of 16 blocks
    loop.add("a", 9, 2)
    loop.step()
    assert len(loop.scheduler.free_block_ids()) == 11
    loop.add("eight", 15, 1)
    assert loop.step().req_ids == ["a"]
    loop.scheduler.abort("eight")

    loop.add("a", 9, 3)
    loop.step()
    loop.add("seven", 14, 1)
    assert "seven" in loop.step().req_ids


def test_without_others_the_whole_pool_can_be_used(new_loop: Any) -> None:
    """A request that would be alone is not kept out by the watermark."""
    loop = new_loop(watermark=0.9)
    loop.add("a", 31, 1)

    assert loop.step().req_ids == ["a"]
    loop.add("b", 31, 1)
    assert loop.step().req_ids == ["b"]


@pytest.mark.rule("12")
def test_running_requests_may_use_the_watermark(new_loop: Any) -> None:
    """Those that run grow into the blocks that admissions leave free, without a preemption."""
    loop = new_loop(watermark=0.4, num_blocks=9)  # 3 of 8 blocks
    loop.add("a", 4, 5)
    loop.add("b", 4, 5)
    loop.until(lambda _: not loop.scheduler.free_block_ids())
    loop.run()

    assert loop.scheduler.statistics().num_preemptions == 0


@pytest.mark.parametrize(("watermark", "admitted"), [(0.1, True), (0.2, False)])
def test_a_preempted_request_minds_the_watermark(
    new_loop: Any, watermark: float, admitted: bool
) -> None:
    """A victim comes back only if the watermark stays free, so that it is not a victim again."""
    loop = new_loop(watermark=watermark, num_blocks=10)  # 1 or 2 of 9 blocks
    for name in ("first", "other", "victim"):
        loop.add(name, 3, 9)
    output = loop.until(lambda output: output.preempted_req_ids)
    assert output.preempted_req_ids == {"victim"}

    # The victim needs 4 of the 5 blocks that are free without the other one.
    loop.scheduler.abort("other")
    assert len(loop.scheduler.free_block_ids()) == 5
    assert ("victim" in loop.step().resumed_req_ids) is admitted
    loop.run()
    assert loop.is_empty()


def test_idle_hits_are_not_the_watermark(new_loop: Any) -> None:
    """Blocks that a request takes over from the free queue are no longer free for others."""
    loop = new_loop(enable_prefix_caching=True, watermark=0.25, num_blocks=9)  # 2 of 8 blocks
    loop.add("owner", [1, 2, 3, 4, 5], 1)
    loop.run()
    loop.add("a", 8, 1, resumable=False)
    loop.add("late", [1, 2, 3, 4, 9], 1)

    assert loop.step().req_ids == ["a"]


def test_the_first_chunk_minds_the_watermark_too(new_loop: Any) -> None:
    """Without the check of whole sequences, the watermark is asked of the first chunk."""
    loop = new_loop(
        watermark=0.5, num_blocks=9, scheduler_reserve_full_isl=False, max_num_batched_tokens=6
    )
    loop.add("a", 4, 4)
    loop.step()
    loop.add("long", 12, 1)
    output = loop.step()

    assert output.num_scheduled_tokens == {"a": 1}
    assert len(loop.scheduler.free_block_ids()) == 5
