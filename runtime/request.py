"""What a caller asks for, and what it gets back step by step."""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum

from attrs import field, frozen

from kvproof.core import Status


class FinishReason(StrEnum):
    """Why a request ended; the values are those of the OpenAI interface, as in vLLM."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"
    ERROR = "error"


FINISH_REASONS = {
    Status.FINISHED_STOPPED: FinishReason.STOP,
    Status.FINISHED_LENGTH: FinishReason.LENGTH,
    Status.FINISHED_ABORTED: FinishReason.ABORT,
    Status.FINISHED_ERROR: FinishReason.ERROR,
}


def _as_tuple(tokens: Iterable[int]) -> tuple[int, ...]:
    return tuple(tokens)


def _as_set(tokens: Iterable[int]) -> frozenset[int]:
    return frozenset(tokens)


@frozen
class EncoderItem:
    """An image or other input that an encoder turns into embeddings for some prompt tokens.

    Attributes:
        identifier: says what the item contains; equal items share one entry of the cache.
        offset: the first of the prompt tokens that stand for it.
        length: how many they are, one embedding each.

    """

    identifier: str
    offset: int
    length: int

    @property
    def end(self) -> int:
        """The first token behind the item."""
        return self.offset + self.length


def _as_items(items: Iterable[EncoderItem]) -> tuple[EncoderItem, ...]:
    return tuple(items)


@frozen(eq=False)
class Request:
    """One prompt to be continued.

    Attributes:
        request_id: the caller's name for it; not in use by a live request.
        prompt_token_ids: at least one token.
        max_tokens: tokens to sample at most, at least 1.
        stop_token_ids: tokens that end the request when sampled; they are part of the output.
        priority: the least runs first, under the policy "priority".
        needs_grammar: parked until `Scheduler.grammar_ready` says that its grammar is compiled.
        resumable: a session: at the end of a turn it is parked until `continue_session`.
        mm_features: items for the encoder, in the order of their tokens.
        cache_salt: requests with different salts share no blocks.
        arrival_time: seconds on the caller's clock; kept for policies and statistics.

    """

    request_id: str
    prompt_token_ids: tuple[int, ...] = field(converter=_as_tuple)
    max_tokens: int = 16
    stop_token_ids: frozenset[int] = field(default=frozenset(), converter=_as_set)
    arrival_time: float = 0.0
    priority: int = 0
    cache_salt: str = ""
    needs_grammar: bool = False
    resumable: bool = False
    mm_features: tuple[EncoderItem, ...] = field(default=(), converter=_as_items)


@frozen
class RequestOutput:
    """What one step brought for one request.

    `finish_reason` is None while the request goes on.
    """

    request_id: str
    new_token_ids: tuple[int, ...]
    finish_reason: FinishReason | None = None

    @property
    def finished(self) -> bool:
        """Whether this is the last output of the request."""
        return self.finish_reason is not None
