"""The forward pass of a Llama-family model over one step and a KV pool."""

import torch
from attrs import frozen
from torch import Tensor
from torch.nn.functional import linear, rms_norm, silu

from kvproof.runtime.engine.attention import AttentionPlan, attend
from kvproof.runtime.engine.config import LlamaConfig
from kvproof.runtime.engine.rotary import rotary_table, rotate
from kvproof.runtime.engine.weights import LayerWeights, Weights
from kvproof.runtime.kv_pool import KVPool
from kvproof.runtime.step_tensors import StepTensors


@frozen(eq=False)
class _Step:
    """What every layer of one step shares."""

    slot_mapping: Tensor
    turns: Tensor
    pool: KVPool
    plan: AttentionPlan


class Llama:
    """A model ready to run: weights on a device, and the rotary table of every position."""

    def __init__(self, config: LlamaConfig, weights: Weights) -> None:
        self.config, self.weights = config, weights
        self.device, self.dtype = weights.embedding.device, weights.embedding.dtype
        self._turns = rotary_table(
            config.context_length, config.head_dim, config.rope_theta, self.device, self.dtype
        )

    @torch.inference_mode()
    def forward(self, batch: StepTensors, pool: KVPool) -> Tensor:
        """Run one step: write its keys and values to ``pool``, return logits ``[S, vocabulary]``.

        Row ``i`` of the logits belongs to token ``batch.logits_indices[i]``. Raises TypeError or
        ValueError before the pool changes if the step or the pool does not suit the model.
        """
        self._check(batch, pool)
        plan = AttentionPlan.of(batch, pool.block_size)
        step = _Step(batch.slot_mapping, self._turns[batch.positions], pool, plan)
        hidden = self.weights.embedding[batch.input_ids]
        for index, layer in enumerate(self.weights.layers):
            hidden = hidden + self._attention(hidden, layer, index, step)
            hidden = hidden + self._feed_forward(hidden, layer)
        last = self._norm(hidden[batch.logits_indices], self.weights.norm)
        return linear(last, self.weights.output)

    def _attention(self, hidden: Tensor, layer: LayerWeights, index: int, step: _Step) -> Tensor:
        projected = linear(self._norm(hidden, layer.attention_norm), layer.qkv)
        heads = projected.view(len(hidden), -1, self.config.head_dim)
        queries, keys = self.config.num_heads, self.config.num_kv_heads
        turned = rotate(heads[:, : queries + keys], step.turns)
        query, key, value = turned[:, :queries], turned[:, queries:], heads[:, queries + keys :]
        step.pool.write(index, key, value, step.slot_mapping)
        attended = attend(query, step.pool, index, step.plan)
        return linear(attended.flatten(1), layer.attention_output)

    def _feed_forward(self, hidden: Tensor, layer: LayerWeights) -> Tensor:
        projected = linear(self._norm(hidden, layer.feed_forward_norm), layer.gate_up)
        gate, up = projected.chunk(2, dim=-1)
        return linear(silu(gate) * up, layer.down)

    def _norm(self, hidden: Tensor, weight: Tensor) -> Tensor:
        return rms_norm(hidden, (self.config.hidden_size,), weight, self.config.norm_epsilon)

    def _check(self, batch: StepTensors, pool: KVPool) -> None:
        batch.check()
        self._check_pool(pool)
        if batch.input_ids.device != self.device:
            raise ValueError(f"step: is on {batch.input_ids.device}, the model on {self.device}")
        if batch.max_seq_len > self.config.context_length:
            raise ValueError(
                f"max_seq_len: got {batch.max_seq_len}, the model's context is "
                f"{self.config.context_length} tokens; reject the request or shorten it"
            )
        covered = batch.block_table.shape[1] * pool.block_size
        if batch.max_seq_len > covered:
            raise ValueError(
                f"block_table: covers {covered} of {batch.max_seq_len} tokens; widen it"
            )
        # On another device a look at values would make the host wait.
        if self.device.type == "cpu":
            _check_below("input_ids", batch.input_ids, self.config.vocabulary_size)
            _check_below("positions", batch.positions, batch.max_seq_len)
            _check_below("block_table", batch.block_table, pool.num_blocks)
            _check_below("logits_indices", batch.logits_indices, batch.num_tokens)

    def _check_pool(self, pool: KVPool) -> None:
        config = self.config
        seen = (pool.num_layers, pool.num_kv_heads, pool.head_dim, pool.dtype, pool.device)
        sizes = (config.num_layers, config.num_kv_heads, config.head_dim)
        expected = (*sizes, self.dtype, self.device)
        if seen != expected:
            raise ValueError(
                f"pool: got (layers, kv_heads, head_dim, dtype, device) = {seen}, the model needs "
                f"{expected}; make it with new_pool"
            )


def _check_below(name: str, values: Tensor, end: int) -> None:
    if values.numel():
        smallest, largest = values.aminmax()
        if smallest < 0 or largest >= end:
            raise ValueError(
                f"{name}: got values {int(smallest)} to {int(largest)}, expected 0 to {end - 1}"
            )
