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
        config = self.config
        if batch.max_seq_len > config.context_length:
            raise ValueError(
                f"max_seq_len: got {batch.max_seq_len}, the model's context is "
                f"{config.context_length} tokens; reject the request or shorten it"
            )
        seen = (pool.num_layers, pool.num_kv_heads, pool.head_dim, pool.dtype, pool.device)
        layers, heads = config.num_layers, config.num_kv_heads
        expected = (layers, heads, config.head_dim, self.dtype, self.device)
        if seen != expected:
            raise ValueError(
                f"pool: got (layers, kv_heads, head_dim, dtype, device) = {seen}, the model needs "
                f"{expected}; make it with new_pool"
            )
        if batch.input_ids.device != self.device:
            raise ValueError(f"step: is on {batch.input_ids.device}, the model on {self.device}")
        self._check_tokens(batch.input_ids)

    def _check_tokens(self, tokens: Tensor) -> None:
        # On another device the look would make the host wait.
        if self.device.type != "cpu":
            return
        bad = tokens[(tokens < 0) | (tokens >= self.config.vocabulary_size)]
        if len(bad):
            raise ValueError(
                f"input_ids: got token {int(bad[0])}, expected 0 to "
                f"{self.config.vocabulary_size - 1}; encode with the model's own tokenizer"
            )
