"""Sampling: the likeliest token, or a draw that depends on seed and position only."""

import math

import pytest
import torch

from kvproof.runtime.engine.sampling import NotANumberError, greedy, gumbel_noise, sample


def column(device: torch.device, *values: float) -> torch.Tensor:
    """Return one value a row: i64 for whole numbers, f32 otherwise."""
    return torch.tensor(values, device=device)


def test_temperature_zero_is_greedy(device: torch.device) -> None:
    """A row at temperature 0 takes its largest logit whatever the other rows do."""
    logits = torch.randn(4, 50, generator=torch.Generator().manual_seed(0)).to(device)
    temperatures = column(device, 0.0, 5.0, 0.0, 5.0)

    tokens = sample(logits, temperatures, column(device, 1, 2, 3, 4), column(device, 9, 9, 9, 9))

    assert torch.equal(tokens[::2], greedy(logits)[::2])
    assert torch.equal(greedy(logits), logits.argmax(dim=-1))


def test_a_draw_does_not_depend_on_its_batch(device: torch.device) -> None:
    """A request draws the same token alone, in any row of any batch, and when asked again."""
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 300, generator=generator).to(device)
    temperatures = column(device, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0)
    seeds, positions = column(device, 3, 3, 4, 5, 5, -1), column(device, 0, 1, 0, 7, 8, 9)
    together = sample(logits, temperatures, seeds, positions)

    shuffled = torch.randperm(6, generator=generator).to(device)
    again = sample(logits[shuffled], temperatures[shuffled], seeds[shuffled], positions[shuffled])
    alone = [
        sample(logits[r : r + 1], temperatures[r : r + 1], seeds[r : r + 1], positions[r : r + 1])
        for r in range(6)
    ]

    assert torch.equal(again, together[shuffled])
    assert torch.equal(torch.cat(alone), together)


def test_seed_and_position_change_the_draw(device: torch.device) -> None:
    """Equal logits give many different tokens over seeds, and over positions of one seed."""
    count = 200
    logits = torch.zeros(count, 1000, device=device)
    warm, counter = torch.ones(count, device=device), torch.arange(count, device=device)

    by_seed = sample(logits, warm, counter, torch.zeros_like(counter))
    by_position = sample(logits, warm, torch.zeros_like(counter), counter)

    assert len(set(by_seed.tolist())) > 150
    assert len(set(by_position.tolist())) > 150


def test_draws_follow_the_softmax(device: torch.device) -> None:
    """Over many positions each token is drawn as often as its probability says."""
    count = 20_000
    logits = torch.tensor([2.0, 1.0, 0.0, -1.0, float("-inf")], device=device)
    temperature = 0.8
    probability = (logits / temperature).softmax(dim=-1)
    positions = torch.arange(count, device=device)

    tokens = sample(
        logits.expand(count, -1),
        torch.full((count,), temperature, device=device),
        torch.full_like(positions, 11),
        positions,
    )

    frequency = torch.bincount(tokens, minlength=5) / count
    assert float((frequency - probability).abs().max()) < 0.015
    assert frequency[4] == 0


def mixed(value: int) -> int:
    """Return SplitMix64's output step of a value times its increment, in whole numbers."""
    value = value * 0x9E3779B97F4A7C15 % 2**64
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 % 2**64
    value = (value ^ value >> 27) * 0x94D049BB133111EB % 2**64
    return value ^ value >> 31


@pytest.mark.parametrize(("seed", "position"), [(0, 0), (42, 7), (-1, 10**6)])
def test_noise_is_the_same_everywhere(device: torch.device, seed: int, position: int) -> None:
    """The noise is a formula over whole numbers, so a run can be replayed on any device."""
    row = mixed(mixed(seed) + position)
    uniform = [((mixed(row + index) >> 12) + 0.5) / 2**52 for index in range(50)]

    noise = gumbel_noise(column(device, seed), column(device, position), 50)

    assert noise[0].tolist() == pytest.approx([-math.log(-math.log(u)) for u in uniform])


def test_noise_is_finite_at_the_extremes(device: torch.device) -> None:
    """Any 64-bit seed and any position give finite noise."""
    seeds = column(device, 0, -1, 2**63 - 1, -(2**63))

    assert gumbel_noise(seeds, seeds.flip(0), 1000).isfinite().all()


def test_nan_is_loud(device: torch.device) -> None:
    """A row with one NaN is refused by number, greedy or not, instead of giving some token."""
    logits = torch.zeros(3, 5, device=device)
    logits[1, 3] = float("nan")
    zeros = column(device, 0, 0, 0)

    with pytest.raises(NotANumberError, match="row 1 is NaN; the request read KV that nobody"):
        greedy(logits)
    with pytest.raises(NotANumberError, match="row 1 is NaN"):
        sample(logits, column(device, 1.0, 1.0, 1.0), zeros, zeros)


def test_bad_rows_are_refused(device: torch.device) -> None:
    """One seed too few, and a temperature below zero or unknown, are refused."""
    logits, one = torch.zeros(1, 5, device=device), column(device, 0)

    with pytest.raises(ValueError, match=r"rows: got \[1, 2, 1, 1\]"):
        sample(logits, column(device, 0.0, 0.0), one, one)
    for temperature in (-0.5, float("nan")):
        with pytest.raises(ValueError, match=f"temperatures: got {temperature}"):
            sample(logits, column(device, temperature), one, one)
