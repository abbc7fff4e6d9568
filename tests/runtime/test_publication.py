"""When a hash is published: a resumed victim hits a block that nobody wrote, or it does not.

A, with little priority, runs in chunks. B comes, urgent, and needs A's blocks in the very step in
which A has just been given its third chunk. vLLM 0.25.1 has published the blocks of that chunk by
then, so that A resumes on blocks whose content was never computed (vllm#43569, vllm#57580).
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from attrs import evolve, frozen

from kvproof.runtime import SchedulerConfig
from kvproof.runtime.engine import InferenceEngine, Model, generate, load_model
from kvproof.runtime.kv_pool import StaleRead
from kvproof.runtime.profile import Profile

A, A_TOKENS = [(37 * place + 5) % 256 for place in range(26)], 4
B, B_TOKENS = [(11 * place + 3) % 256 for place in range(8)], 3
LIMITS = SchedulerConfig(
    num_blocks=9,
    block_size=4,
    max_num_seqs=4,
    max_num_batched_tokens=64,
    max_model_len=32,
    policy="priority",
    enable_prefix_caching=True,
    long_prefill_token_threshold=8,
)


@frozen
class Run:
    """What the scenario left: tokens by request, and the blocks that A read."""

    engine: InferenceEngine
    tokens: dict[str, list[int]]
    blocks_of_a: list[int]

    @property
    def unwritten(self) -> list[int]:
        """The blocks of A whose keys and values are still what they were allocated as: zeros."""
        storage = self.engine.pool.storage
        return [block for block in self.blocks_of_a if not storage[block].any()]


def engine_of(
    model: Model, profile: Profile, *, debug: bool = False, **limits: Any
) -> InferenceEngine:
    """Return an engine under the limits of the scenario."""
    return InferenceEngine.build(model, evolve(LIMITS, profile=profile, **limits), debug=debug)


def play(engine: InferenceEngine) -> Run:
    """Run the scenario to its end."""
    engine.add(A, A_TOKENS, request_id="A", priority=10, ignore_eos=True)
    tokens: dict[str, list[int]] = {"A": [], "B": []}
    blocks: list[int] = []
    for output in steps(engine):
        tokens[output[0]] += output[1]
        if engine.scheduler.status("A") is not None:
            blocks = engine.scheduler.block_ids("A") or blocks
    assert engine.scheduler.statistics().num_preemptions == 1
    return Run(engine, tokens, blocks)


def steps(engine: InferenceEngine) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield what each request gets; B comes before the second step."""
    number = 0
    while engine.scheduler.has_unfinished_requests():
        number += 1
        if number == 2:
            engine.add(B, B_TOKENS, request_id="B", ignore_eos=True)
        for output in engine.step():
            yield output.request_id, output.new_token_ids


def alone(model: Model) -> dict[str, list[int]]:
    """Return what both sample when nothing is scheduled."""
    return {
        "A": generate(model, A, A_TOKENS, ignore_eos=True),
        "B": generate(model, B, B_TOKENS, ignore_eos=True),
    }


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.rule("6", "vllm#43569")
def test_publishing_at_allocation_gives_wrong_tokens(seed: int, device: torch.device) -> None:
    """Under vLLM's rule A resumes on a block of zeros, and samples other tokens than alone."""
    model = load_model(seed=seed, device=device)

    run = play(engine_of(model, Profile.vllm_0_25_1()))

    assert len(run.unwritten) == 1
    assert run.tokens["A"] != alone(model)["A"]
    assert run.tokens["B"] == alone(model)["B"]


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("debug", [False, True])
@pytest.mark.rule("6", "vllm#43569")
def test_publishing_what_is_written_gives_the_right_tokens(
    seed: int, debug: bool, device: torch.device
) -> None:
    """By default A resumes on written blocks alone, and both sample what they sample alone."""
    model = load_model(seed=seed, device=device)

    run = play(engine_of(model, Profile(), debug=debug))

    assert run.unwritten == []
    assert run.tokens == alone(model)


def test_without_the_cache_the_rule_makes_no_difference() -> None:
    """It is the early hash that does it: with the cache off vLLM's rules give the right tokens."""
    model = load_model()

    run = play(engine_of(model, Profile.vllm_0_25_1(), enable_prefix_caching=False))

    assert run.tokens == alone(model)


def test_debug_mode_stops_before_the_unwritten_block_is_read() -> None:
    """With stamps on the slots the engine names the block that nobody has written."""
    engine = engine_of(load_model(), Profile.vllm_0_25_1(), debug=True)

    with pytest.raises(StaleRead, match="a slot that nobody has written"):
        play(engine)
