"""What a scheduler is configured with."""

from __future__ import annotations

from typing import Any

from attrs import Attribute, field, frozen

from kvproof.core import Configuration
from kvproof.runtime.errors import CallerError


def _at_least(minimum: int) -> Any:
    def check(_: object, attribute: Attribute[int], value: int) -> None:
        if not isinstance(value, int) or value < minimum:
            message = (
                f"{attribute.name} is {value!r}; expected a whole number of at least {minimum}."
            )
            raise CallerError(message)

    return check


@frozen(kw_only=True)
class SchedulerConfig:
    """The limits of one scheduler; names and defaults are vLLM's (SchedulerConfig, CacheConfig).

    Attributes:
        num_blocks: blocks of the pool, the null block included, so one less can be used.
        block_size: tokens of KV in a block.
        max_num_seqs: requests that may run at once.
        max_num_batched_tokens: tokens that one step may schedule.
        max_model_len: tokens of prompt and output together that a request may have.
        long_prefill_token_threshold: most tokens of one request in one step; 0 for no limit.

    Raises:
        CallerError: for a value below its least; it says which, what was seen and expected.

    """

    num_blocks: int = field(validator=_at_least(2))
    block_size: int = field(default=16, validator=_at_least(1))
    max_num_seqs: int = field(default=128, validator=_at_least(1))
    max_num_batched_tokens: int = field(default=2048, validator=_at_least(1))
    max_model_len: int = field(default=8192, validator=_at_least(2))
    long_prefill_token_threshold: int = field(default=0, validator=_at_least(0))

    @property
    def num_usable_blocks(self) -> int:
        """Blocks that requests can hold: all but the null block."""
        return self.num_blocks - 1

    @property
    def max_blocks_per_request(self) -> int:
        """Blocks that the longest request can hold."""
        return min(-(-self.max_model_len // self.block_size), self.num_usable_blocks)

    def constants(self) -> Configuration:
        """Return the constants of the declaration that this configuration stands for."""
        return Configuration(
            block_size=self.block_size,
            total_blocks=self.num_usable_blocks,
            token_budget=self.max_num_batched_tokens,
            max_running=self.max_num_seqs,
        )
