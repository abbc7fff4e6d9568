"""Generate for one request alone, without a scheduler.

The request has one block that is as long as itself, so nothing is paged, shared, chunked or
preempted: every scheduled run must give the same tokens as this one.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from kvproof.runtime.engine.model import Model
from kvproof.runtime.engine.sampling import sample
from kvproof.runtime.step_tensors import Chunk, StepTensors


def generate(
    model: Model,
    prompt_token_ids: Sequence[int],
    max_tokens: int,
    *,
    temperature: float = 0.0,
    seed: int = 0,
    ignore_eos: bool = False,
) -> list[int]:
    """Return up to ``max_tokens`` tokens that follow the prompt, the end token included.

    Raises ValueError for an empty prompt, ``max_tokens`` below 1, and a request longer than the
    model's context.
    """
    total = len(prompt_token_ids) + max_tokens
    _check_request(len(prompt_token_ids), max_tokens, model.config.context_length)
    pool = model.new_pool(num_blocks=2, block_size=total)
    tokens, computed = list(prompt_token_ids), 0
    while len(tokens) < total:
        chunk = Chunk(tokens[computed:], [1], start=computed)
        batch = StepTensors.from_chunks([chunk], total, model.device)
        computed = len(tokens)
        tokens.append(_draw(model.forward(batch, pool), temperature, seed, computed))
        if tokens[-1] == model.eos_token_id and not ignore_eos:
            break
    return tokens[len(prompt_token_ids) :]


def _draw(logits: Tensor, temperature: float, seed: int, position: int) -> int:
    def row(value: float, dtype: torch.dtype) -> Tensor:
        return torch.tensor([value], dtype=dtype, device=logits.device)

    temperatures, seeds = row(temperature, torch.float32), row(seed, torch.int64)
    return int(sample(logits, temperatures, seeds, row(position, torch.int64)))


def _check_request(prompt_tokens: int, max_tokens: int, context_length: int) -> None:
    if prompt_tokens < 1 or max_tokens < 1:
        raise ValueError(
            f"request: got {prompt_tokens} prompt tokens and max_tokens {max_tokens}, expected at "
            "least 1 of each"
        )
    if prompt_tokens + max_tokens > context_length:
        raise ValueError(
            f"request: {prompt_tokens} prompt tokens and {max_tokens} more exceed the model's "
            f"context of {context_length}; shorten one of them"
        )
