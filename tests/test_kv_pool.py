"""The KV pool: its views, its writes, its sizes, and what debug mode catches."""

from typing import Any, cast

import pytest
import torch

from kvproof.runtime.kv_geometry import available_bytes
from kvproof.runtime.kv_pool import KVPool, Layout, StaleRead

LAYERS, BLOCKS, HEADS, HEAD_DIM, BLOCK = 3, 5, 2, 4, 4


def new_pool(device: torch.device, layout: Layout = "NHD", debug: bool = False) -> KVPool:
    """Return a small pool."""
    return KVPool(LAYERS, BLOCKS, HEADS, HEAD_DIM, BLOCK, device=device, layout=layout, debug=debug)


def entries(device: torch.device, count: int, seed: int = 0) -> torch.Tensor:
    """Return keys or values for ``count`` tokens, none of them zero."""
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(count, HEADS, HEAD_DIM, generator=generator) + 1).to(device)


def numbers(device: torch.device, *values: int) -> torch.Tensor:
    """Return an i64 tensor."""
    return torch.tensor(values, dtype=torch.int64, device=device)


def stamped_pool(device: torch.device) -> KVPool:
    """Return a pool in which owner 7 has written positions 0 to 5 to blocks 3 and 1."""
    pool = new_pool(device, debug=True)
    slots = numbers(device, 12, 13, 14, 15, 4, 5)
    pool.stamp(slots, torch.full_like(slots, 7), torch.arange(6, device=device))
    return pool


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_layout_changes_strides_only(device: torch.device, layout: Layout) -> None:
    """Both layouts show one layer in the same shape, over one contiguous run of bytes a block."""
    pool = new_pool(device, layout)
    block_elements = pool.block_bytes // pool.storage.element_size()

    assert pool.layer(0).shape == (BLOCKS, 2, BLOCK, HEADS, HEAD_DIM)
    assert pool.k(2).shape == pool.v(2).shape == (BLOCKS, BLOCK, HEADS, HEAD_DIM)
    assert pool.layer(1).stride(0) == block_elements
    assert pool.data_ptr == pool.k(0).data_ptr()
    assert pool.storage.untyped_storage().nbytes() == BLOCKS * pool.block_bytes


def test_hnd_keeps_each_head_together(device: torch.device) -> None:
    """In the HND layout the tokens of one head are neighbours, in NHD the heads of one token."""
    assert new_pool(device, "HND").k(0).stride()[1:] == (HEAD_DIM, BLOCK * HEAD_DIM, 1)
    assert new_pool(device, "NHD").k(0).stride()[1:] == (HEADS * HEAD_DIM, HEAD_DIM, 1)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_write_scatters_by_slot(device: torch.device, layout: Layout) -> None:
    """Each token lands in block slot // size at offset slot % size, of its layer only."""
    pool = new_pool(device, layout)
    key, value = entries(device, 3), entries(device, 3, seed=1)

    pool.write(1, key, value, numbers(device, 19, 4, 9))

    for token, (block, offset) in enumerate([(4, 3), (1, 0), (2, 1)]):
        assert torch.equal(pool.k(1)[block, offset], key[token])
        assert torch.equal(pool.v(1)[block, offset], value[token])
    assert int(pool.storage.count_nonzero()) == key.numel() + value.numel()


def test_write_skips_padding(device: torch.device) -> None:
    """A row with slot -1 is written nowhere, whatever it holds, and the null block stays zero."""
    pool = new_pool(device)
    key = entries(device, 3)
    key[1:] = float("nan")

    pool.write(0, key, key, numbers(device, 6, -1, -1))

    assert int(pool.storage.count_nonzero()) == 2 * HEADS * HEAD_DIM
    assert not pool.storage.isnan().any()


@pytest.mark.parametrize("slot", [-2, 0, BLOCK - 1, BLOCKS * BLOCK])
def test_write_refuses_a_bad_slot(device: torch.device, slot: int) -> None:
    """A slot of the null block or outside the pool is refused and nothing is written."""
    pool = new_pool(device, debug=True)
    before = pool.storage.clone()
    key = entries(device, 2)

    with pytest.raises(ValueError, match=f"slot_mapping: got {slot}, expected 4 to 19"):
        pool.write(0, key, key, numbers(device, 8, slot))

    assert torch.equal(pool.storage.nan_to_num(), before.nan_to_num())


@pytest.mark.parametrize("layer", [-1, LAYERS])
def test_an_unknown_layer_is_refused(device: torch.device, layer: int) -> None:
    """A layer that does not exist is named, and a negative one never counts from the end."""
    with pytest.raises(IndexError, match=f"layer: got {layer}, expected 0 to 2"):
        new_pool(device).layer(layer)


def test_write_refuses_wrong_entries_before_writing(device: torch.device) -> None:
    """A value of another shape or dtype is refused before the key is written."""
    pool = new_pool(device)
    key, slots = entries(device, 2), numbers(device, 4, 5)

    with pytest.raises(ValueError, match=r"value: got shape \(1, 2, 4\), expected \(2, 2, 4\)"):
        pool.write(0, key, key[:1], slots)
    with pytest.raises(TypeError, match=r"value: got torch\.float64, expected torch\.float32"):
        pool.write(0, key, key.double(), slots)
    with pytest.raises(TypeError, match=r"slot_mapping: got torch\.int32"):
        pool.write(0, key, key, slots.int())

    assert not pool.storage.any()


def test_sizes_leave_out_the_null_block(device: torch.device) -> None:
    """Usage counts the blocks that requests can hold; block 0 is none of them."""
    pool = new_pool(device)

    assert pool.num_usable_blocks == 4
    assert pool.num_slots == 20
    assert [pool.usage(free) for free in (4, 3, 0)] == [0.0, 0.25, 1.0]
    with pytest.raises(ValueError, match="free_blocks: got 5, expected 0 to 4"):
        pool.usage(5)


def test_block_bytes_count_all_layers() -> None:
    """A block of bf16 takes layers x 2 x tokens x heads x dim x 2 bytes."""
    pool = KVPool(30, 2, 3, 64, dtype=torch.bfloat16)

    assert pool.block_bytes == 30 * 2 * 16 * 3 * 64 * 2


def test_num_blocks_for_fills_the_budget() -> None:
    """The largest pool that fits is returned, and a budget under two blocks is refused."""
    each = new_pool(torch.device("cpu")).block_bytes

    def fitting(budget_bytes: int) -> int:
        return KVPool.num_blocks_for(
            budget_bytes,
            num_layers=LAYERS,
            num_kv_heads=HEADS,
            head_dim=HEAD_DIM,
            block_size=BLOCK,
        )

    assert fitting(7 * each - 1) == 6
    with pytest.raises(ValueError, match=f"expected at least {2 * each} for the null block"):
        fitting(2 * each - 1)


def test_memory_fraction_sizes_the_pool(device: torch.device) -> None:
    """On CUDA a fraction of the free memory sizes the pool; on the CPU the caller has to choose."""
    if device.type == "cpu":
        with pytest.raises(ValueError, match="works on CUDA only, got device cpu"):
            KVPool.from_memory_fraction(0.5, num_layers=1, num_kv_heads=1, head_dim=8, device="cpu")
        return
    free = torch.cuda.mem_get_info(device)[0]
    pool = KVPool.from_memory_fraction(
        0.01, num_layers=1, num_kv_heads=1, head_dim=8, device=device
    )

    assert 0.9 * 0.01 * free < pool.num_blocks * pool.block_bytes < 1.1 * 0.01 * free


def test_a_pool_larger_than_memory_is_refused(device: torch.device) -> None:
    """A pool that does not fit is refused with the size that would, before it is allocated."""
    assert (available_bytes(device) or 0) > 0
    with pytest.raises(MemoryError, match=r"needs \d+ bytes, but .* has \d+ available; ask for"):
        KVPool(LAYERS, 10**12, HEADS, HEAD_DIM, device=device)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"num_blocks": 1}, "num_blocks: got 1, expected at least 2"),
        ({"num_layers": 0}, "num_layers: got 0, expected at least 1"),
        ({"block_size": -1}, "block_size: got -1, expected at least 1"),
        ({"dtype": torch.int8}, r"dtype: got torch\.int8, expected a floating point type"),
        ({"layout": "DNH"}, "layout: got 'DNH', expected 'NHD' or 'HND'"),
    ],
)
def test_a_bad_size_is_refused(wrong: dict[str, Any], message: str) -> None:
    """Each size, dtype and layout that makes no sense is named."""
    sizes = {"num_layers": 1, "num_blocks": 2, "num_kv_heads": 1, "head_dim": 2}
    with pytest.raises(ValueError, match=message):
        KVPool(**cast("dict[str, Any]", sizes | wrong))


def test_debug_pool_starts_poisoned(device: torch.device) -> None:
    """In debug mode every block but the null block holds NaN until somebody writes it."""
    pool = new_pool(device, debug=True)

    assert not pool.storage[0].any()
    assert pool.storage[1:].isnan().all()


@pytest.mark.parametrize("layout", ["NHD", "HND"])
def test_poison_fills_the_named_blocks_only(device: torch.device, layout: Layout) -> None:
    """Poison puts NaN into all layers of the freed blocks and into no other."""
    pool = new_pool(device, layout, debug=True)
    pool.storage.zero_()

    pool.poison([2, 4])

    assert pool.storage.isnan().all(dim=(1, 2, 3, 4, 5)).tolist() == [
        False,
        False,
        True,
        False,
        True,
    ]
    assert not pool.storage[[0, 1, 3]].any()


@pytest.mark.parametrize("block", [0, -1, BLOCKS])
def test_poison_refuses_a_block_nobody_can_hold(device: torch.device, block: int) -> None:
    """The null block is never poisoned, nor one outside the pool."""
    with pytest.raises(ValueError, match=f"block_ids: got {block}, expected 1 to 4"):
        new_pool(device, debug=True).poison([1, block])


def test_the_owner_may_read(device: torch.device) -> None:
    """A request reads what it wrote, through its own table, up to any length it has written."""
    pool = stamped_pool(device)
    table = numbers(device, 3, 1, 0).int()[None]

    for length in range(7):
        pool.verify_owner(table, numbers(device, length).int(), numbers(device, 7))


def test_another_owner_may_not_read(device: torch.device) -> None:
    """The error names the row, block and slot, who wrote it and who was expected."""
    pool = stamped_pool(device)
    table = torch.tensor([[3, 1], [3, 2]], dtype=torch.int32, device=device)

    with pytest.raises(StaleRead) as caught:
        pool.verify_owner(table, numbers(device, 6, 2).int(), numbers(device, 7, 8))

    error = caught.value
    assert (error.row, error.block, error.slot) == (1, 3, 12)
    assert (error.seen_owner, error.seen_position) == (7, 0)
    assert (error.expected_owner, error.expected_position) == (8, 0)
    assert "slot 12 (block 3): saw owner 7 at position 0, expected owner 8" in str(error)


def test_a_swapped_table_is_stale(device: torch.device) -> None:
    """The owner's own blocks in the wrong order are caught by position."""
    pool = stamped_pool(device)

    with pytest.raises(
        StaleRead, match="saw owner 7 at position 4, expected owner 7 at position 0"
    ):
        pool.verify_owner(numbers(device, 1, 3)[None], numbers(device, 6), numbers(device, 7))


def test_an_unwritten_slot_is_stale(device: torch.device) -> None:
    """One position more than was written is caught."""
    pool = stamped_pool(device)

    with pytest.raises(StaleRead, match=r"slot 6 \(block 1\): saw a slot that nobody has written"):
        pool.verify_owner(numbers(device, 3, 1)[None], numbers(device, 7), numbers(device, 7))


def test_a_poisoned_block_is_stale(device: torch.device) -> None:
    """After its block was freed, a request that still reads it is caught."""
    pool = stamped_pool(device)
    pool.poison(numbers(device, 1))

    pool.verify_owner(numbers(device, 3, 1)[None], numbers(device, 4), numbers(device, 7))
    with pytest.raises(StaleRead, match=r"slot 4 \(block 1\): saw a slot that nobody has written"):
        pool.verify_owner(numbers(device, 3, 1)[None], numbers(device, 5), numbers(device, 7))


def test_owners_may_differ_by_position(device: torch.device) -> None:
    """A request may read a shared prefix of another owner where the caller says so."""
    pool = stamped_pool(device)
    pool.stamp(numbers(device, 8), numbers(device, 9), numbers(device, 4))
    owners = numbers(device, 7, 7, 7, 7, 9)[None]

    pool.verify_owner(numbers(device, 3, 2)[None], numbers(device, 5), owners)
    with pytest.raises(StaleRead, match="saw owner 7 at position 0, expected owner 9"):
        pool.verify_owner(numbers(device, 3, 2)[None], numbers(device, 5), numbers(device, 9))


def test_stamp_skips_padding_and_refuses_a_shared_slot(device: torch.device) -> None:
    """Padding may repeat, a real slot may not: one of its two tokens would be lost."""
    pool = new_pool(device, debug=True)
    owners, positions = numbers(device, 1, 2, 3, 3), numbers(device, 0, 0, 0, 1)

    pool.stamp(numbers(device, 4, 8, -1, -1), owners, positions)
    with pytest.raises(ValueError, match="slot 9 is given to two tokens of one step"):
        pool.stamp(numbers(device, 4, 9, 5, 9), owners, positions)
    with pytest.raises(ValueError, match="slot_mapping: got 20, expected 4 to 19"):
        pool.stamp(numbers(device, 4, 20, -1, -1), owners, positions)


def test_verify_refuses_tables_that_do_not_fit(device: torch.device) -> None:
    """A table that is too narrow, names an unknown block or lacks a row is refused."""
    pool, owner = stamped_pool(device), numbers(device, 7)

    with pytest.raises(ValueError, match="block_table: covers 4 tokens, a request has 5"):
        pool.verify_owner(numbers(device, 3)[None], numbers(device, 5), owner)
    with pytest.raises(ValueError, match="block_table: expected blocks 0 to 4 only"):
        pool.verify_owner(numbers(device, 5)[None], numbers(device, 1), owner)
    with pytest.raises(ValueError, match="lengths differ"):
        pool.verify_owner(numbers(device, 3)[None], numbers(device, 1, 1), owner)


def test_debug_methods_need_debug_mode(device: torch.device) -> None:
    """Without debug mode there are no stamps, and the error says how to have them."""
    pool, one = new_pool(device), numbers(device, 1)

    with pytest.raises(RuntimeError, match="poison needs owner stamps: make the pool with debug"):
        pool.poison(one)
    with pytest.raises(RuntimeError, match="stamp needs"):
        pool.stamp(one, one, one)
    with pytest.raises(RuntimeError, match="verify_owner needs"):
        pool.verify_owner(one[None], one, one)
