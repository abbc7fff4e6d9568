"""Rotary embedding: interleaved pairs turn by an angle that grows with position."""

import torch

from kvproof.runtime.engine.rotary import rotary_table, rotate

THETA = 100.0


def turned(heads: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """Turn heads by their positions, in float64."""
    table = rotary_table(64, heads.shape[-1], THETA, heads.device, torch.float64)
    return rotate(heads, table[positions])


def test_pairs_turn_as_complex_numbers(device: torch.device) -> None:
    """Entries 2i and 2i + 1 are one complex number, multiplied by exp(j p theta^(-2i / d))."""
    heads = torch.randn(3, 2, 8, dtype=torch.float64, device=device)
    positions = torch.tensor([0, 5, 63], device=device)
    pair = torch.arange(4, dtype=torch.float64, device=device)
    angle = positions[:, None, None] * THETA ** (-2 * pair / 8)

    expected = torch.view_as_complex(heads.view(3, 2, 4, 2)) * torch.exp(1j * angle)

    assert torch.allclose(turned(heads, positions), torch.view_as_real(expected).flatten(-2))


def test_only_the_distance_counts(device: torch.device) -> None:
    """The product of a turned query and a turned key depends on how far apart they are."""
    query, key = torch.randn(2, 1, 1, 8, dtype=torch.float64, device=device)

    def product(query_position: int, key_position: int) -> torch.Tensor:
        first = turned(query, torch.tensor([query_position], device=device))
        second = turned(key, torch.tensor([key_position], device=device))
        return (first * second).sum()

    assert torch.allclose(product(7, 3), product(41, 37))
    assert not torch.allclose(product(7, 3), product(7, 4))
