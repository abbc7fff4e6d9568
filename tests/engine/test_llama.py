"""The model over a paged pool: against a dense one without a cache, and whatever the step holds."""

from typing import Any

import attrs
import pytest
import torch
from torch import Tensor

from kvproof.runtime.engine import LlamaConfig, Model, NotANumberError, greedy, load_model
from kvproof.runtime.engine.weights import LayerWeights, Weights, random_weights
from kvproof.runtime.kv_pool import KVPool, Layout
from kvproof.runtime.step_tensors import Chunk, StepTensors

BLOCK = 4
TOKENS = [(7 * index + 3) % 250 for index in range(19)]
TABLE = [4, 1, 9, 2, 6]


def tiny(device: torch.device, dtype: torch.dtype = torch.float32) -> Model:
    """Return the random tiny model."""
    return load_model(device=device, dtype=dtype)


def run(model: Model, pool: KVPool, *chunks: Chunk) -> Tensor:
    """Run one step and return its logits."""
    return model.forward(StepTensors.from_chunks(chunks, pool.block_size, model.device), pool)


def run_chunked(model: Model, pool: KVPool, table: list[int], size: int) -> Tensor:
    """Feed the tokens in chunks of ``size`` and return the logits of the last one."""
    for start in range(0, len(TOKENS), size):
        logits = run(model, pool, Chunk(TOKENS[start : start + size], table, start=start))
    return logits


def dense_logits(config: LlamaConfig, weights: Weights, tokens: list[int]) -> Tensor:
    """Return the logits after every token, in float64, from the definition of the model."""
    hidden = weights.embedding[tokens]
    for layer in weights.layers:
        hidden = hidden + dense_attention(config, layer, normed(hidden))
        inner = layer.gate_up @ normed(hidden).T
        gate, up = inner[: config.intermediate_size], inner[config.intermediate_size :]
        hidden = hidden + (layer.down @ (gate / (1 + torch.exp(-gate)) * up)).T
    return normed(hidden) @ weights.output.T


def normed(hidden: Tensor) -> Tensor:
    """Divide each row by its root mean square; the random model's norm weights are one."""
    return hidden / (hidden.square().mean(dim=-1, keepdim=True) + 1e-5).sqrt()


def dense_attention(config: LlamaConfig, layer: LayerWeights, hidden: Tensor) -> Tensor:
    """Return causal attention over all tokens at once, keys repeated for each query head."""
    heads = (hidden @ layer.qkv.T).view(len(hidden), -1, config.head_dim)
    counts = [config.num_heads, config.num_kv_heads, config.num_kv_heads]
    query, key, value = torch.split(heads, counts, dim=1)
    key = turned(config, key).repeat_interleave(config.group_size, dim=1)
    value = value.repeat_interleave(config.group_size, dim=1)
    scores = torch.einsum("qhd,khd->hqk", turned(config, query), key) / config.head_dim**0.5
    future = torch.ones(scores.shape[1:], dtype=torch.bool, device=scores.device).triu(1)
    weights = scores.masked_fill(future, float("-inf")).softmax(dim=-1)
    return torch.einsum("hqk,khd->qhd", weights, value).flatten(1) @ layer.attention_output.T


def turned(config: LlamaConfig, heads: Tensor) -> Tensor:
    """Turn each interleaved pair of each token as a complex number."""
    position = torch.arange(len(heads), device=heads.device)[:, None, None]
    pair = torch.arange(0, config.head_dim, 2, device=heads.device)
    angle = position * config.rope_theta ** (-pair.double() / config.head_dim)
    numbers = torch.view_as_complex(heads.reshape(*heads.shape[:2], -1, 2))
    return torch.view_as_real(numbers * torch.polar(torch.ones_like(angle), angle)).flatten(-2)


@pytest.mark.parametrize("size", [1, 3, 4, 7, 19])
def test_paged_equals_dense(device: torch.device, size: int) -> None:
    """Chunks of any size over scattered blocks give what the whole sequence gives at once."""
    model = tiny(device, torch.float64)
    weights = random_weights(model.config, 0, device, torch.float64)

    paged = run_chunked(model, model.new_pool(12, BLOCK, debug=True), TABLE, size)

    dense = dense_logits(model.config, weights, TOKENS)
    assert torch.allclose(paged[0], dense[-1], atol=1e-9)


@pytest.mark.parametrize("block_size", [1, 3, 16, 32])
def test_block_size_does_not_matter(device: torch.device, block_size: int) -> None:
    """The same tokens give the same logits over blocks of any size."""
    model = tiny(device, torch.float64)
    table = list(range(20, 0, -1))
    expected = run_chunked(model, model.new_pool(12, BLOCK), TABLE, 19)

    actual = run_chunked(model, model.new_pool(21, block_size), table, 5)

    assert torch.allclose(actual, expected, atol=1e-9)


@pytest.mark.parametrize("layout", ["NHD", "HND"])
@pytest.mark.parametrize("size", [1, 7, 19])
def test_block_names_do_not_matter_to_a_bit(
    device: torch.device, layout: Layout, size: int
) -> None:
    """Other block ids, other noise in the pool and another layout give bitwise equal logits."""
    model = tiny(device)
    clean, noisy = model.new_pool(12, BLOCK), model.new_pool(12, BLOCK, layout=layout)
    noisy.storage[1:].normal_()

    first = run_chunked(model, clean, [1, 2, 3, 4, 5], size)
    second = run_chunked(model, noisy, [11, 3, 8, 10, 1], size)

    assert torch.equal(first, second)


def test_a_shared_prefix_is_equal_to_a_bit(device: torch.device) -> None:
    """A request that finds its first blocks written by another gives bitwise equal logits."""
    model = tiny(device)
    pool = model.new_pool(12, BLOCK, debug=True)
    run(model, pool, Chunk(TOKENS[:8], [1, 2]))
    own = run(model, pool, Chunk(TOKENS[8:], [1, 2, 3, 4, 5], start=8))

    shared = run(model, pool, Chunk(TOKENS[8:], [1, 2, 6, 7, 8], start=8))

    assert torch.equal(own, shared)


def test_company_does_not_matter(device: torch.device) -> None:
    """A request's logits are those it has alone, in a step with decodes, chunks and prompts."""
    model = tiny(device, torch.float64)
    pool = model.new_pool(40, BLOCK, debug=True)
    alone = run_chunked(model, model.new_pool(12, BLOCK), TABLE, 19)
    run(model, pool, Chunk(TOKENS[:18], [11, 12, 13, 14, 15]), Chunk(TOKENS[:6], [21, 22]))

    together = run(
        model,
        pool,
        Chunk([8, 9], [31]),
        Chunk(TOKENS[18:], [11, 12, 13, 14, 15], start=18),
        Chunk(TOKENS[6:], [21, 22, 23, 24, 25], start=6),
        Chunk([5], [32]),
        Chunk(TOKENS, [5, 4, 3, 2, 1]),
    )

    for row in (1, 2, 4):
        assert torch.allclose(together[row], alone[0], atol=1e-9)


def test_only_sampling_requests_have_logits(device: torch.device) -> None:
    """A chunk in the middle of a prompt gives no row."""
    model = tiny(device)
    pool = model.new_pool(12, BLOCK)

    logits = run(model, pool, Chunk([1, 2], [1], samples=False), Chunk([3], [2]))

    assert logits.shape == (1, model.config.vocabulary_size)
    assert torch.allclose(logits, run(model, model.new_pool(12, BLOCK), Chunk([3], [2])), atol=1e-5)


def test_padding_rows_change_nothing(device: torch.device) -> None:
    """Rows of no request, as in buffers of fixed size, leave logits and pool as they are."""
    model = tiny(device)
    plain, padded = model.new_pool(12, BLOCK), model.new_pool(12, BLOCK)
    step = StepTensors.from_chunks([Chunk(TOKENS[:6], [3, 1])], BLOCK, device)
    zeros = torch.zeros(4, dtype=torch.int64, device=device)
    longer = attrs.evolve(
        step,
        input_ids=torch.cat((step.input_ids, zeros)),
        positions=torch.cat((step.positions, zeros)),
        slot_mapping=torch.cat((step.slot_mapping, zeros - 1)),
    )

    expected, actual = model.forward(step, plain), model.forward(longer, padded)

    assert torch.allclose(actual, expected, atol=1e-5)
    assert not padded.storage[[0, 2, *range(4, 12)]].any()


def test_every_slot_matters(device: torch.device) -> None:
    """Changing what any one slot holds changes the logits of a later token."""
    model = tiny(device)
    pool = model.new_pool(12, BLOCK)
    run(model, pool, Chunk(TOKENS[:18], TABLE))
    last = Chunk(TOKENS[18:], TABLE, start=18)
    expected = run(model, pool, last)

    for position in range(18):
        slot = pool.layer(1)[TABLE[position // BLOCK], :, position % BLOCK]
        kept = slot.clone()
        slot.neg_()
        assert float((run(model, pool, last) - expected).abs().max()) > 1e-3
        slot.copy_(kept)


@pytest.mark.parametrize("position", [0, 7, 17])
def test_a_stale_read_is_loud(device: torch.device, position: int) -> None:
    """A request that reads a freed block gets NaN and no token, and its neighbours are unharmed."""
    model = tiny(device)
    pool = model.new_pool(24, BLOCK, debug=True)
    neighbour = [21, 22, 23, 20, 19]
    run(model, pool, Chunk(TOKENS[:18], TABLE), Chunk(TOKENS[:18], neighbour))

    pool.poison([TABLE[position // BLOCK]])

    last = Chunk(TOKENS[18:], TABLE, start=18), Chunk(TOKENS[18:], neighbour, start=18)
    logits = run(model, pool, *last)
    assert logits[0].isnan().all()
    assert logits[1].isfinite().all()
    with pytest.raises(NotANumberError, match="row 0 is NaN"):
        greedy(logits)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_seq_len": 4096}, "max_seq_len: got 4096, the model's context is 2048 tokens"),
        ({"max_seq_len": 9}, "block_table: covers 8 of 9 tokens; widen it"),
        ({"seq_lens": torch.tensor([2.0])}, r"seq_lens: got torch\.float32"),
    ],
)
def test_a_step_that_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    """A step beyond the context, beyond its table or of a wrong type leaves the pool unchanged."""
    model = tiny(torch.device("cpu"))
    pool = model.new_pool(12, BLOCK)
    step = StepTensors.from_chunks([Chunk([1, 2], [3, 4])], BLOCK)

    with pytest.raises((TypeError, ValueError), match=message):
        model.forward(attrs.evolve(step, **change), pool)

    assert not pool.storage.any()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("input_ids", 257, "input_ids: got values 1 to 257, expected 0 to 256"),
        ("input_ids", -1, "input_ids: got values -1 to 1"),
        ("positions", 2, "positions: got values 0 to 2, expected 0 to 1"),
        ("slot_mapping", 48, "slot_mapping: got 48, expected 4 to 47"),
        ("logits_indices", 2, "logits_indices: got values 2 to 2, expected 0 to 1"),
        ("block_table", 12, "block_table: got values 3 to 12, expected 0 to 11"),
    ],
)
def test_bad_values_are_refused_on_the_cpu(name: str, value: int, message: str) -> None:
    """A token, position, slot, row or block out of range is named and the pool is unchanged."""
    model = tiny(torch.device("cpu"))
    pool = model.new_pool(12, BLOCK)
    step = StepTensors.from_chunks([Chunk([1, 2], [3, 4])], BLOCK)
    getattr(step, name).view(-1)[-1] = value

    with pytest.raises(ValueError, match=message):
        model.forward(step, pool)

    assert not pool.storage.any()


def test_a_pool_of_another_model_is_refused(device: torch.device) -> None:
    """A pool with other sizes or another dtype than the model's is refused with both."""
    pool = KVPool(2, 4, 2, 16, dtype=torch.float64, device=device)

    with pytest.raises(ValueError, match=r"pool: got .*float64.*, the model needs .*float32"):
        run(tiny(device), pool, Chunk([1], [1]))
