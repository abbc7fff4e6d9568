"""Choose the next token: the likeliest, or at random by temperature.

The noise of a draw is a function of the request's seed and the token's position, not of the order
of calls. So a request draws the same tokens whoever shares its batch, and again after it has been
preempted and recomputed; and no generator state has to survive a preemption.
"""

import torch
from torch import Tensor

# The constants of the SplitMix64 generator, whose output step is a bijection on 64 bits in which
# each input bit reaches every output bit. Negative here, because torch has no unsigned multiply.
_ROUNDS = ((30, -0x40A7B892E31B1A47), (27, -0x6B2FB644ECCEEE15))
_LAST_SHIFT = 31
_STRIDE = -0x61C8864680B583EB


class NotANumberError(RuntimeError):
    """The logits of a request are NaN: it read keys or values that nobody wrote."""


def greedy(logits: Tensor) -> Tensor:
    """Return the likeliest token of each row, i64 ``[S]``, of logits ``[S, vocabulary]``.

    Raises NotANumberError if a row has a NaN.
    """
    largest, tokens = logits.max(dim=-1)
    return _checked(tokens, largest)


def sample(logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Return a token for each row, i64 ``[S]``, of logits ``[S, vocabulary]``.

    ``temperatures`` is floating ``[S]``, 0 takes the likeliest; ``seeds`` and ``positions`` are i64
    ``[S]``: the same seed, position and logits give the same token. Raises ValueError for a length
    that differs or a temperature below 0, NotANumberError if a row has a NaN.
    """
    _check_rows(logits, temperatures, seeds, positions)
    tokens = greedy(logits)
    warm = temperatures > 0
    if warm.any():
        scaled = logits[warm].double() / temperatures[warm, None].double()
        noise = gumbel_noise(seeds[warm], positions[warm], logits.shape[-1])
        tokens[warm] = (scaled + noise).argmax(dim=-1)
    return tokens


def gumbel_noise(seeds: Tensor, positions: Tensor, count: int) -> Tensor:
    """Return standard Gumbel noise, f64 ``[S, count]``, fixed by seed, position and column.

    The likeliest token of ``logits + noise`` is a draw from ``softmax(logits)``.
    """
    columns = torch.arange(count, device=seeds.device)
    rows = _mix(_mix(seeds) + positions)
    uniform = _unit(_mix(rows[:, None] + columns))
    return -(-uniform.log()).log()


def _mix(values: Tensor) -> Tensor:
    """Return 64 well-mixed bits for each i64 value; distinct values stay distinct."""
    mixed = values * _STRIDE
    for shift, factor in _ROUNDS:
        mixed = (mixed ^ _shift_right(mixed, shift)) * factor
    return mixed ^ _shift_right(mixed, _LAST_SHIFT)


def _shift_right(values: Tensor, bits: int) -> Tensor:
    """Shift zeros in from the left; torch shifts copies of the sign bit."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def _unit(bits: Tensor) -> Tensor:
    """Return f64 strictly between 0 and 1 from the upper 52 of 64 bits."""
    return (_shift_right(bits, 12).double() + 0.5) * 2.0**-52


def _checked(tokens: Tensor, largest: Tensor) -> Tensor:
    unknown = largest.isnan()
    if unknown.any():
        raise NotANumberError(
            f"logits: row {int(unknown.nonzero()[0])} is NaN; the request read KV that nobody "
            "wrote; look for a wrong block table, with a pool of debug=True and verify_owner"
        )
    return tokens


def _check_rows(logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor) -> None:
    lengths = [len(logits), len(temperatures), len(seeds), len(positions)]
    if len(set(lengths)) > 1:
        raise ValueError(
            f"rows: got {lengths} of logits, temperatures, seeds, positions; expected the same"
        )
    bad = temperatures[~(temperatures >= 0)]
    if len(bad):
        raise ValueError(f"temperatures: got {float(bad[0])}, expected 0 or more")
