"""Who wrote each KV slot: the debug record that turns a stale read into an error.

A wrong block table seldom changes the text a model writes: one stale slot in a long context mostly
goes unnoticed. So each slot carries a stamp, the pair (owner, position) of the token written there,
and a read is checked against the pair it should find.

An owner is any int64 from 0 up that the caller likes: a request's number or, where requests share
blocks, a hash of the tokens up to that position. Stamps compare owners and never interpret them.
"""

import torch
from torch import Tensor

NOT_STAMPED = -1


class StaleRead(RuntimeError):  # noqa: N818  (it names what happened, not whose mistake it was)
    """A request was about to read a slot that holds another request's token, or nobody's.

    The fault is with whoever built the block table or freed the block, not with the model's caller.
    ``row`` is the request's row in the step, ``seen`` and ``expected`` are (owner, position).
    """

    def __init__(
        self, row: int, block: int, slot: int, *, seen: tuple[int, int], expected: tuple[int, int]
    ) -> None:
        self.row, self.block, self.slot = row, block, slot
        self.seen_owner, self.seen_position = seen
        self.expected_owner, self.expected_position = expected
        super().__init__(
            f"request row {row} would read slot {slot} (block {block}): saw {_describe(seen)}, "
            f"expected {_describe(expected)}; the block was freed, reused or never written while "
            "this request's table still names it"
        )


class SlotStamps:
    """One (owner, position) stamp for each slot of ``num_blocks`` blocks."""

    def __init__(self, num_blocks: int, block_size: int, device: torch.device) -> None:
        self._block_size = block_size
        self._stamps = torch.full((num_blocks, block_size, 2), NOT_STAMPED, device=device)
        self._by_slot = self._stamps.view(-1, 2)

    def record(self, slots: Tensor, owners: Tensor, positions: Tensor) -> None:
        """Stamp ``slots`` with ``owners`` and ``positions``, all i64 ``[T]``; slot -1 is skipped.

        Raises ValueError if lengths differ or one slot is given to two tokens.
        """
        _check_same_length(slot_mapping=slots, owners=owners, positions=positions)
        written = slots >= 0
        kept = slots[written]
        _check_distinct(kept)
        self._by_slot[kept] = torch.stack((owners, positions), dim=1)[written]

    def forget(self, blocks: Tensor) -> None:
        """Remove every stamp of ``blocks``, i64 ``[N]``."""
        self._stamps.index_fill_(0, blocks, NOT_STAMPED)

    def verify(self, block_table: Tensor, seq_lens: Tensor, owners: Tensor) -> None:
        """Raise StaleRead for the first slot that is not stamped as its reader expects.

        ``block_table`` is ``[B, W]``, ``seq_lens`` ``[B]``, ``owners`` i64 ``[B]`` or ``[B, L]``.
        Raises ValueError for differing lengths or a table too narrow for its tokens.
        """
        _check_same_length(block_table=block_table, seq_lens=seq_lens, owners=owners)
        longest = int(seq_lens.max()) if len(seq_lens) else 0
        _check_width("block_table", block_table.shape[1] * self._block_size, longest)
        position = torch.arange(longest, device=block_table.device)
        expected = _expected(owners, position)
        block = block_table.long()[:, position // self._block_size]
        slot = block * self._block_size + position % self._block_size
        wrong = (self._by_slot[slot] != expected).any(dim=-1) & (position < seq_lens[:, None])
        if wrong.any():
            row, at = (int(index) for index in wrong.nonzero()[0])
            raise self._stale_read(row, int(slot[row, at]), _pair(expected[row, at]))

    def _stale_read(self, row: int, slot: int, expected: tuple[int, int]) -> StaleRead:
        seen = _pair(self._by_slot[slot])
        return StaleRead(row, slot // self._block_size, slot, seen=seen, expected=expected)


def _expected(owners: Tensor, position: Tensor) -> Tensor:
    """Return the stamp each request should find at each position, i64 ``[B, L, 2]``."""
    shape = (len(owners), len(position))
    if owners.dim() == 1:
        owners = owners[:, None].expand(shape)
    _check_width("owners", owners.shape[1], len(position))
    return torch.stack((owners[:, : len(position)], position.expand(shape)), dim=-1)


def _pair(stamp: Tensor) -> tuple[int, int]:
    return int(stamp[0]), int(stamp[1])


def _describe(stamp: tuple[int, int]) -> str:
    owner, position = stamp
    if position == NOT_STAMPED:
        return "a slot that nobody has written"
    return f"owner {owner} at position {position}"


def _check_same_length(**tensors: Tensor) -> None:
    lengths = {name: len(tensor) for name, tensor in tensors.items()}
    if len(set(lengths.values())) > 1:
        raise ValueError(f"lengths differ: {lengths}; give one entry a row in each")


def _check_width(name: str, covered: int, needed: int) -> None:
    if covered < needed:
        raise ValueError(f"{name}: covers {covered} tokens, a request has {needed}; widen it")


def _check_distinct(slots: Tensor) -> None:
    ordered = slots.sort().values
    repeated = ordered[1:][ordered[1:] == ordered[:-1]]
    if len(repeated):
        raise ValueError(
            f"slot_mapping: slot {int(repeated[0])} is given to two tokens of one step; two "
            "requests hold the same block"
        )
