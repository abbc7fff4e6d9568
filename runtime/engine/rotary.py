"""Rotary position embedding over interleaved pairs: (0, 1), (2, 3), ... turn together.

That is the order in which GGUF files of the Llama family store query and key rows, so the weights
need no permutation.
"""

import torch
from torch import Tensor


def rotary_table(
    context_length: int, head_dim: int, theta: float, device: torch.device, dtype: torch.dtype
) -> Tensor:
    """Return cosine and sine of every position and pair, ``[context_length, 2, head_dim / 2]``."""
    pair = torch.arange(0, head_dim, 2, dtype=torch.float64)
    position = torch.arange(context_length, dtype=torch.float64)
    angle = position[:, None] / theta ** (pair / head_dim)
    return torch.stack((angle.cos(), angle.sin()), dim=1).to(device, dtype)


def rotate(heads: Tensor, turns: Tensor) -> Tensor:
    """Return ``heads``, ``[T, H, head_dim]``, turned by the table's rows of their positions.

    ``turns`` is ``rotary_table(...)[positions]``, ``[T, 2, head_dim / 2]``.
    """
    cosine, sine = turns[:, None, 0], turns[:, None, 1]
    even, odd = heads[..., 0::2], heads[..., 1::2]
    turned = (even * cosine - odd * sine, even * sine + odd * cosine)
    return torch.stack(turned, dim=-1).flatten(-2)
