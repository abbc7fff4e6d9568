"""What a scheduler is configured with."""

from __future__ import annotations

from typing import Any

from attrs import Attribute, field, frozen

from kvproof.core import Configuration
from kvproof.runtime.block_hash import ALGORITHMS
from kvproof.runtime.errors import CallerError
from kvproof.runtime.profile import Profile


def _at_least(minimum: int) -> Any:
    def check(_: object, attribute: Attribute[int], value: int) -> None:
        if not isinstance(value, int) or value < minimum:
            message = (
                f"{attribute.name} is {value!r}; expected a whole number of at least {minimum}."
            )
            raise CallerError(message)

    return check


def _one_of(*choices: str) -> Any:
    def check(_: object, attribute: Attribute[str], value: str) -> None:
        if value not in choices:
            message = f"{attribute.name} is {value!r}; expected one of {', '.join(choices)}."
            raise CallerError(message)

    return check


def _share(_: object, attribute: Attribute[float], value: float) -> None:
    if not 0 <= value < 1:
        message = f"{attribute.name} is {value!r}; expected a share from 0 up to, not with, 1."
        raise CallerError(message)


@frozen(kw_only=True)
class SchedulerConfig:
    """The limits of one scheduler; names and defaults are vLLM's (SchedulerConfig, CacheConfig).

    Attributes:
        num_blocks: blocks of the pool, the null block included, so one less can be used.
        block_size: tokens of KV in a block.
        max_num_seqs: requests that may run at once.
        max_num_batched_tokens: tokens that one step may schedule.
        max_steps_in_flight: steps that may be scheduled before the first of them is given to
            `update`; a request then runs ahead of its samples (vLLM async_scheduling: 2).
        max_model_len: tokens of prompt and output together that a request may have.
        long_prefill_token_threshold: most tokens of one request in one step; 0 for no limit.
        policy: "fcfs", or "priority": the least (priority, arrival time) first.
        enable_prefix_caching: share the blocks of equal prefixes.
        prefix_caching_hash_algo: "sha256"; "xxh3", which is faster, and compares tokens as well; or
            "sha256_cbor", whose hashes are those of vLLM. The last two need `kvproof[hash]`.
        hash_seed: part of every block hash; processes with another seed share nothing.
        watermark: share of the blocks, 0 to 1, that admissions keep free while others run.
        scheduler_reserve_full_isl: admit a request only if all of its known tokens fit.
        num_speculative_tokens: draft tokens that a request may have.
        num_lookahead_tokens: slots kept beyond the tokens of a request, for a drafter with KV.
        encoder_cache_size: embeddings that the encoder cache holds.
        max_num_encoder_input_tokens: embeddings that one step may compute.
        kv_load_failure_policy: "recompute" what a load did not bring, or "fail" the request.
        profile: the rules in which kvproof differs from vLLM 0.25.1.

    Raises:
        CallerError: for a value below its least; it says which, what was seen and expected.

    """

    num_blocks: int = field(validator=_at_least(2))
    block_size: int = field(default=16, validator=_at_least(1))
    max_num_seqs: int = field(default=128, validator=_at_least(1))
    max_num_batched_tokens: int = field(default=2048, validator=_at_least(1))
    max_steps_in_flight: int = field(default=1, validator=_at_least(1))
    max_model_len: int = field(default=8192, validator=_at_least(2))
    long_prefill_token_threshold: int = field(default=0, validator=_at_least(0))
    policy: str = field(default="fcfs", validator=_one_of("fcfs", "priority"))
    enable_prefix_caching: bool = False
    prefix_caching_hash_algo: str = field(default="sha256", validator=_one_of(*ALGORITHMS))
    hash_seed: str = "0"
    watermark: float = field(default=0.0, validator=_share)
    scheduler_reserve_full_isl: bool = True
    num_speculative_tokens: int = field(default=0, validator=_at_least(0))
    num_lookahead_tokens: int = field(default=0, validator=_at_least(0))
    encoder_cache_size: int = field(default=0, validator=_at_least(0))
    max_num_encoder_input_tokens: int = field(default=0, validator=_at_least(0))
    kv_load_failure_policy: str = field(default="recompute", validator=_one_of("recompute", "fail"))
    profile: Profile = field(factory=Profile)

    @property
    def num_usable_blocks(self) -> int:
        """Blocks that requests can hold: all but the null block."""
        return self.num_blocks - 1

    @property
    def max_blocks_per_request(self) -> int:
        """Blocks that the longest request can hold, slots for look-ahead among them."""
        tokens = self.max_model_len + self.num_lookahead_tokens
        return min(-(-tokens // self.block_size), self.num_usable_blocks)

    def constants(self) -> Configuration:
        """Return the constants of the declaration that this configuration stands for."""
        return Configuration(
            block_size=self.block_size,
            total_blocks=self.num_usable_blocks,
            token_budget=self.max_num_batched_tokens,
            max_running=self.max_num_seqs,
            watermark=int(self.watermark * self.num_blocks),
            max_drafts=self.num_speculative_tokens,
            lookahead=self.num_lookahead_tokens,
            encoder_slots=self.encoder_cache_size,
            encoder_budget=self.max_num_encoder_input_tokens,
        )
