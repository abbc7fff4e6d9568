"""Random limits, victims and requests, small enough that blocks run short again and again."""

from __future__ import annotations

from hypothesis import strategies as st

from kvproof.runtime import Request, SchedulerConfig
from kvproof.verify.victim_rule import VictimRule

TOKENS = range(16)
NO_STOP = len(TOKENS)  # a token at which no drawn request stops

samples = st.lists(st.sampled_from(TOKENS), min_size=1, max_size=4)
prompts = st.integers(1, 14)
lengths = st.integers(1, 30)
stops = st.integers(0, 2)
drafts = st.lists(st.tuples(prompts, lengths, stops), min_size=1, max_size=4)

# Several requests at once in a pool that holds two or three of them.
crowded = st.builds(
    SchedulerConfig,
    num_blocks=st.integers(3, 14),
    block_size=st.integers(1, 2),
    max_num_seqs=st.integers(2, 8),
    max_num_batched_tokens=st.integers(8, 24),
    max_model_len=st.just(48),
)
configurations = crowded | st.builds(
    SchedulerConfig,
    num_blocks=st.integers(3, 40),
    block_size=st.integers(1, 4),
    max_num_seqs=st.integers(1, 8),
    max_num_batched_tokens=st.integers(1, 24),
    max_model_len=st.integers(8, 48),
    long_prefill_token_threshold=st.just(0) | st.integers(1, 6),
)
# The last and the first of the running list, and any other.
victims = st.builds(VictimRule, st.sampled_from((-1, 0)) | st.integers(1, 60))

Draft = tuple[int, int, int]


def fitting_request(config: SchedulerConfig, name: str, number: int, draft: Draft) -> Request:
    """Return a request that can be taken: what would not fit is cut off.

    A prompt takes half of the pool at most, so that several run and run out of blocks together.
    A draft is the lengths of prompt and output and the number of stop tokens. Which tokens they are
    follows from the request's number, so that they differ between requests and cost no draw.
    """
    prompt, length, stops = draft
    capacity = config.num_usable_blocks * config.block_size
    prompt = min(prompt, max(1, capacity // 2), config.max_model_len - 1)
    tokens = [(number + place) % len(TOKENS) for place in range(prompt)]
    stop_tokens = [(number + place) % len(TOKENS) for place in range(stops)]
    return Request(name, tokens, min(length, capacity + 1 - prompt), stop_tokens)
