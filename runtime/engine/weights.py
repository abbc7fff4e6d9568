"""The parameters of a Llama-family model: from a GGUF file, or random."""

import re
from collections.abc import Sequence

import torch
from attrs import frozen
from torch import Tensor

from kvproof.runtime.engine.config import LlamaConfig
from kvproof.runtime.engine.gguf import GGUFError, GGUFFile

# Large enough that attention is far from uniform, so that outputs depend on every KV slot.
_RANDOM_STD = 0.25

_KNOWN = re.compile(
    r"(token_embd|output|output_norm"
    r"|blk\.\d+\.(attn_(norm|q|k|v|output)|ffn_(norm|gate|up|down)))\.weight"
)


@frozen(eq=False)
class LayerWeights:
    """One layer; matrices are ``[outputs, inputs]``.

    ``qkv`` stacks the query, key and value projections, ``gate_up`` those of the feed-forward part.
    """

    attention_norm: Tensor
    qkv: Tensor
    attention_output: Tensor
    feed_forward_norm: Tensor
    gate_up: Tensor
    down: Tensor


@frozen(eq=False)
class Weights:
    """The whole model; ``embedding`` and ``output`` are ``[vocabulary, hidden]``, often one."""

    embedding: Tensor
    layers: Sequence[LayerWeights]
    norm: Tensor
    output: Tensor


def random_weights(
    config: LlamaConfig, seed: int, device: torch.device, dtype: torch.dtype
) -> Weights:
    """Return random weights that depend on ``config`` and ``seed`` only, not on the device."""
    generator = torch.Generator().manual_seed(seed)

    def matrix(outputs: int, inputs: int) -> Tensor:
        values = torch.randn(outputs, inputs, generator=generator) * _RANDOM_STD
        return values.to(device, dtype)

    ones = torch.ones(config.hidden_size, device=device, dtype=dtype)
    attention = config.num_heads * config.head_dim
    projections = attention + 2 * config.num_kv_heads * config.head_dim

    def layer() -> LayerWeights:
        return LayerWeights(
            attention_norm=ones,
            qkv=matrix(projections, config.hidden_size),
            attention_output=matrix(config.hidden_size, attention),
            feed_forward_norm=ones,
            gate_up=matrix(2 * config.intermediate_size, config.hidden_size),
            down=matrix(config.hidden_size, config.intermediate_size),
        )

    embedding = matrix(config.vocabulary_size, config.hidden_size)
    layers = tuple(layer() for _ in range(config.num_layers))
    return Weights(embedding, layers, ones, embedding)


def gguf_weights(
    file: GGUFFile, config: LlamaConfig, device: torch.device, dtype: torch.dtype
) -> Weights:
    """Return the weights in a GGUF file; without an output matrix, the embedding serves as one.

    Raises GGUFError for a tensor that is missing, has another shape than ``config`` implies, or
    belongs to a variant of Llama that this engine does not run (biases, scaled rotary embedding).
    """
    _check_known(file)
    source = _Source(file, config, device, dtype)
    embedding = source.matrix("token_embd", config.vocabulary_size, config.hidden_size)
    output = embedding
    if "output.weight" in file.tensors:
        output = source.matrix("output", config.vocabulary_size, config.hidden_size)
    layers = tuple(source.layer(index) for index in range(config.num_layers))
    return Weights(embedding, layers, source.vector("output_norm"), output)


def _check_known(file: GGUFFile) -> None:
    unknown = [name for name in file.tensors if not _KNOWN.fullmatch(name)]
    if unknown:
        raise GGUFError(
            f"{file.path}: tensors {unknown[:4]} are not part of a plain Llama, and leaving them "
            "out would change the text; use another model file"
        )


@frozen
class _Source:
    """Reads tensors of one file, checks their shapes, and puts them on a device."""

    file: GGUFFile
    config: LlamaConfig
    device: torch.device
    dtype: torch.dtype

    def layer(self, index: int) -> LayerWeights:
        prefix, hidden = f"blk.{index}.", self.config.hidden_size
        inner, query = self.config.intermediate_size, self.config.num_heads * self.config.head_dim
        kv = self.config.num_kv_heads * self.config.head_dim
        return LayerWeights(
            attention_norm=self.vector(prefix + "attn_norm"),
            qkv=self.stack(prefix, {"attn_q": query, "attn_k": kv, "attn_v": kv}),
            attention_output=self.matrix(prefix + "attn_output", hidden, query),
            feed_forward_norm=self.vector(prefix + "ffn_norm"),
            gate_up=self.stack(prefix, {"ffn_gate": inner, "ffn_up": inner}),
            down=self.matrix(prefix + "ffn_down", hidden, inner),
        )

    def stack(self, prefix: str, rows: dict[str, int]) -> Tensor:
        hidden = self.config.hidden_size
        parts = [self.matrix(prefix + name, count, hidden) for name, count in rows.items()]
        return torch.cat(parts)

    def vector(self, name: str) -> Tensor:
        return self._tensor(name, (self.config.hidden_size,))

    def matrix(self, name: str, outputs: int, inputs: int) -> Tensor:
        return self._tensor(name, (outputs, inputs))

    def _tensor(self, name: str, shape: tuple[int, ...]) -> Tensor:
        values = self.file.values(f"{name}.weight")
        if values.shape != shape:
            raise GGUFError(
                f"{self.file.path}: tensor {name}.weight: got shape {values.shape}, expected "
                f"{shape}"
            )
        return torch.from_numpy(values).to(self.device, self.dtype)
