"""Requests that are refused at once, with the arithmetic in the message."""

from __future__ import annotations

from collections.abc import Container

from kvproof.runtime.config import SchedulerConfig
from kvproof.runtime.errors import RequestRefused
from kvproof.runtime.request import Request

_TOKEN_MAX = 2**63 - 1


def token_limit(config: SchedulerConfig, request: Request) -> int:
    """Return the number of known tokens at which a request has its length."""
    return min(len(request.prompt_token_ids) + request.max_tokens, config.max_model_len)


def token_ceiling(config: SchedulerConfig, request: Request) -> int:
    """Return the tokens that a request may have computed at most, draft tokens among them."""
    if config.profile.drafts_beyond_limit:
        return config.max_model_len
    return token_limit(config, request) - 1


def check_request(config: SchedulerConfig, request: Request, live: Container[str]) -> None:
    """Raise RequestRefused for a request that cannot be taken."""
    _well_formed(request)
    _fits_the_model(config, request)
    _items_fit(config, request)
    if not config.profile.accepts_what_never_fits:
        check_fits_the_pool(config, request)
    if request.request_id in live:
        _refuse(request, "the id is in use by a live request; choose another.")


def _refuse(request: Request, message: str) -> None:
    raise RequestRefused(f"request {request.request_id!r}: {message}")


def _well_formed(request: Request) -> None:
    if not (isinstance(request.request_id, str) and request.request_id):
        _refuse(request, "the id must be a string that is not empty.")
    if not request.prompt_token_ids:
        _refuse(request, "the prompt is empty; expected at least one token.")
    for name, tokens in (
        ("token", request.prompt_token_ids),
        ("stop token", request.stop_token_ids),
    ):
        wrong = [t for t in tokens if not (isinstance(t, int) and 0 <= t <= _TOKEN_MAX)]
        if wrong:
            _refuse(
                request,
                f"saw the {name} {wrong[0]!r}; expected whole numbers from 0 to {_TOKEN_MAX}.",
            )
    if not isinstance(request.max_tokens, int) or request.max_tokens < 1:
        _refuse(request, f"max_tokens is {request.max_tokens!r}; expected 1 or more.")


def _items_fit(config: SchedulerConfig, request: Request) -> None:
    """Refuse items that could never be computed, or that stand for tokens that are not there."""
    prompt, end = len(request.prompt_token_ids), 0
    most = min(config.encoder_cache_size, config.max_num_encoder_input_tokens)
    for item in request.mm_features:
        if item.length < 1 or item.offset < end or item.end > prompt:
            _refuse(
                request,
                f"the item {item.identifier!r} stands for tokens {item.offset} to {item.end},"
                f" expected some within {end} to {prompt}, one item after the other.",
            )
        if item.length > most:
            _refuse(
                request,
                f"the item {item.identifier!r} has {item.length} embeddings, but a step computes"
                f" and the encoder cache holds at most {most}.",
            )
        end = item.end


def _fits_the_model(config: SchedulerConfig, request: Request) -> None:
    prompt = len(request.prompt_token_ids)
    if prompt >= config.max_model_len:
        _refuse(
            request,
            f"the prompt has {prompt} tokens and at least one is sampled, but max_model_len is"
            f" {config.max_model_len}; shorten the prompt.",
        )


def check_fits_the_pool(config: SchedulerConfig, request: Request) -> None:
    """Refuse what an empty pool could not hold (vllm#39734); the last sample needs no slot."""
    tokens = token_ceiling(config, request) + config.num_lookahead_tokens
    needed = -(-tokens // config.block_size)
    if needed > config.num_usable_blocks:
        _refuse(
            request,
            f"{tokens} tokens need {needed} blocks of {config.block_size}, but the pool has"
            f" {config.num_usable_blocks}; lower max_tokens or enlarge the pool.",
        )
