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


def check_request(config: SchedulerConfig, request: Request, live: Container[str]) -> None:
    """Raise RequestRefused for a request that cannot be taken."""
    _well_formed(request)
    _fits_the_model(config, request)
    _fits_the_pool(config, request)
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


def _fits_the_model(config: SchedulerConfig, request: Request) -> None:
    prompt = len(request.prompt_token_ids)
    if prompt >= config.max_model_len:
        _refuse(
            request,
            f"the prompt has {prompt} tokens and at least one is sampled, but max_model_len is"
            f" {config.max_model_len}; shorten the prompt.",
        )


def _fits_the_pool(config: SchedulerConfig, request: Request) -> None:
    """Refuse what an empty pool could not hold (vllm#39734); the last sample needs no slot."""
    tokens = token_limit(config, request) - 1
    needed = -(-tokens // config.block_size)
    if needed > config.num_usable_blocks:
        _refuse(
            request,
            f"{tokens} tokens need {needed} blocks of {config.block_size}, but the pool has"
            f" {config.num_usable_blocks}; lower max_tokens or enlarge the pool.",
        )
