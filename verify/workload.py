"""Random limits, victims and requests, small enough that blocks run short again and again."""

from __future__ import annotations

from typing import Any

from attrs import frozen
from hypothesis import strategies as st

from kvproof.runtime import EncoderItem, Request, SchedulerConfig
from kvproof.verify.victim_rule import VictimRule

TOKENS = range(16)
NO_STOP = len(TOKENS)  # a token at which no drawn request stops
STEMS = 2  # beginnings that prompts share
SIZES = {"small": 1, "medium": 2, "large": 3}  # embeddings of the items that requests share


@frozen
class Draft:
    """A request before it is known what fits.

    Attributes:
        prompt: tokens of the prompt.
        length: tokens to sample.
        stops: stop tokens.
        stem: which of the shared beginnings it has.
        shared: how many tokens of that.
        items: identifiers of items, and the gap before each.
        kind: "grammar" or "session" if the request is parked at some time.

    """

    prompt: int
    length: int
    stops: int = 0
    stem: int = 0
    shared: int = 0
    priority: int = 0
    arrival: int = 0
    salt: str = ""
    items: tuple[tuple[int, str], ...] = ()
    kind: str = ""


samples = st.lists(st.sampled_from(TOKENS), min_size=1, max_size=4)
proposals = st.lists(st.sampled_from(TOKENS), max_size=3)
items = st.lists(st.tuples(st.integers(0, 3), st.sampled_from(list(SIZES))), max_size=3)
drafts = st.lists(
    st.builds(
        Draft,
        prompt=st.integers(1, 14),
        length=st.integers(1, 24),
        stops=st.integers(0, 2),
        stem=st.integers(0, STEMS - 1),
        shared=st.integers(0, 14),
        priority=st.integers(0, 2),
        arrival=st.integers(0, 2),
        salt=st.sampled_from(("", "", "", "", "", "x")),
        items=items.map(tuple),
        kind=st.sampled_from(("", "", "", "", "grammar", "session")),
    ),
    min_size=1,
    max_size=4,
)

_policies = st.sampled_from(("fcfs", "priority"))
_watermarks = st.sampled_from((0.0, 0.0, 0.2))


def _small(**more: st.SearchStrategy[Any]) -> st.SearchStrategy[SchedulerConfig]:
    """Return configurations of a pool that holds two or three requests, with all that is usual."""
    limits: dict[str, st.SearchStrategy[Any]] = {
        "num_blocks": st.integers(4, 16),
        "block_size": st.integers(1, 3),
        "max_num_seqs": st.integers(2, 5),
        "max_num_batched_tokens": st.integers(4, 20),
        "max_model_len": st.sampled_from((48, 24)),
        "long_prefill_token_threshold": st.sampled_from((0, 0, 2, 3)),
        "policy": _policies,
        "scheduler_reserve_full_isl": st.booleans(),
    }
    return st.builds(SchedulerConfig, **(limits | more))


_prefixes: dict[str, st.SearchStrategy[Any]] = {"enable_prefix_caching": st.just(True)}
_drafts: dict[str, st.SearchStrategy[Any]] = {"num_speculative_tokens": st.integers(1, 3)}
_encoder: dict[str, st.SearchStrategy[Any]] = {
    "encoder_cache_size": st.sampled_from((4, 3, 3, 7)),
    "max_num_encoder_input_tokens": st.integers(3, 6),
}
# Several requests at once, with nothing that the plain scheduler does not model.
crowded = _small(num_blocks=st.integers(3, 14), block_size=st.integers(1, 2))
spread = st.builds(
    SchedulerConfig,
    num_blocks=st.integers(3, 40),
    block_size=st.integers(1, 4),
    max_num_seqs=st.integers(1, 8),
    max_num_batched_tokens=st.integers(1, 24),
    max_model_len=st.integers(8, 48),
    long_prefill_token_threshold=st.just(0) | st.integers(1, 6),
    policy=_policies,
    scheduler_reserve_full_isl=st.booleans(),
    watermark=_watermarks,
    num_lookahead_tokens=st.integers(0, 1),
)
sharing = _small(**_prefixes, watermark=_watermarks)
drafting = _small(**_drafts, num_lookahead_tokens=st.sampled_from((0, 0, 1, 2)))
encoding = _small(  # Items are read piece by piece, and a second one seldom fits beside the first.
    **_encoder,
    num_blocks=st.integers(8, 16),
    block_size=st.integers(2, 3),
    long_prefill_token_threshold=st.sampled_from((1, 2, 0)),
)
cramped = _small(  # No two items fit at once, and chunks end in the midst of them.
    encoder_cache_size=st.just(3),
    max_num_encoder_input_tokens=st.just(3),
    num_blocks=st.integers(12, 24),
    block_size=st.integers(2, 3),
    max_num_batched_tokens=st.integers(12, 20),
    long_prefill_token_threshold=st.sampled_from((3, 4, 5)),
)
everything = _small(**_prefixes, **_drafts, **_encoder)
# Chunks of whole blocks, and requests that come back at once: what a victim of the same step was to
# write is looked up before it is evicted.
chunked = _small(
    **_prefixes,
    num_blocks=st.integers(8, 20),
    block_size=st.just(1),
    max_num_batched_tokens=st.just(16),
    long_prefill_token_threshold=st.just(4),
    scheduler_reserve_full_isl=st.just(False),
)
# A request runs ahead of its samples, and blocks come back some steps after it has ended.
_flight = st.integers(1, 3)
in_flight = st.one_of(
    _small(
        num_blocks=st.integers(3, 14), block_size=st.integers(1, 2), max_steps_in_flight=_flight
    ),
    _small(**_prefixes, watermark=_watermarks, max_steps_in_flight=_flight),
    _small(**_prefixes, **_encoder, max_steps_in_flight=_flight),
    _small(**_prefixes, **_drafts, **_encoder, max_steps_in_flight=_flight),
)
configurations = st.one_of(
    crowded,
    in_flight,
    spread,
    sharing,
    chunked,
    drafting,
    encoding,
    cramped,
    _small(**_prefixes, **_encoder),
    everything,
)
# The policy's own choice, the last and the first of the running list, and any other.
victims = st.none() | st.builds(VictimRule, st.sampled_from((-1, 0)) | st.integers(1, 60))


def fitting_request(config: SchedulerConfig, name: str, number: int, draft: Draft) -> Request:
    """Return a request that can be taken: what would not fit is cut off.

    A prompt takes half of the pool at most, so that several run and run out of blocks together.
    Which tokens follow the shared ones depends on the request's number, so that they differ between
    requests and cost no draw.
    """
    capacity = config.num_usable_blocks * config.block_size - config.num_lookahead_tokens
    prompt = min(draft.prompt, max(1, capacity // 2), config.max_model_len - 1)
    shared = [(5 * draft.stem + place) % len(TOKENS) for place in range(draft.shared)]
    tokens = [*shared, *((number + place) % len(TOKENS) for place in range(prompt))][:prompt]
    return Request(
        name,
        tokens,
        min(draft.length, capacity + 1 - prompt),
        [(number + place) % len(TOKENS) for place in range(draft.stops)],
        arrival_time=float(draft.arrival),
        priority=draft.priority,
        cache_salt=draft.salt,
        needs_grammar=draft.kind == "grammar",
        resumable=draft.kind == "session",
        mm_features=_fitting_items(config, prompt, draft),
    )


def _fitting_items(config: SchedulerConfig, prompt: int, draft: Draft) -> list[EncoderItem]:
    most = min(config.encoder_cache_size, config.max_num_encoder_input_tokens)
    found, end = list[EncoderItem](), 0
    for gap, identifier in draft.items:
        item = EncoderItem(identifier, end + gap, SIZES[identifier])
        if item.length <= most and item.end <= prompt:
            found.append(item)
            end = item.end
    return found
