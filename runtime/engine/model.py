"""Load a model, and hold together what belongs to it."""

from pathlib import Path

import torch
from torch import Tensor

from kvproof.runtime.engine.config import LlamaConfig
from kvproof.runtime.engine.gguf import GGUFFile
from kvproof.runtime.engine.llama import Llama
from kvproof.runtime.engine.tokenizer import ByteTokenizer, GGUFTokenizer, Tokenizer
from kvproof.runtime.engine.weights import gguf_weights, random_weights
from kvproof.runtime.kv_pool import KVPool, Layout
from kvproof.runtime.step_tensors import StepTensors


class Model:
    """A Llama-family model with its tokenizer; the KV memory is the caller's."""

    def __init__(self, llama: Llama, tokenizer: Tokenizer) -> None:
        self._llama = llama
        self.config, self.device, self.dtype = llama.config, llama.device, llama.dtype
        self.tokenizer = tokenizer

    @property
    def eos_token_id(self) -> int:
        """The token that ends a reply."""
        return self.tokenizer.eos_token_id

    def forward(self, batch: StepTensors, pool: KVPool) -> Tensor:
        """Run one step: write its keys and values to ``pool``, return logits ``[S, vocabulary]``.

        Row ``i`` of the logits belongs to token ``batch.logits_indices[i]``. Raises TypeError or
        ValueError before the pool changes if the step or the pool does not suit the model.
        """
        return self._llama.forward(batch, pool)

    def new_pool(
        self,
        num_blocks: int,
        block_size: int = 16,
        *,
        device: torch.device | str | None = None,
        layout: Layout = "NHD",
        debug: bool = False,
    ) -> KVPool:
        """Return a pool of ``num_blocks``, the null block included, that suits this model.

        ``device`` is the model's if None; blocks elsewhere can be kept but not run. Raises what
        ``KVPool`` raises.
        """
        return KVPool(
            self.config.num_layers,
            num_blocks,
            self.config.num_kv_heads,
            self.config.head_dim,
            block_size,
            dtype=self.dtype,
            device=self.device if device is None else device,
            layout=layout,
            debug=debug,
        )


def load_model(
    path: Path | str | None = None,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    config: LlamaConfig | None = None,
    seed: int = 0,
) -> Model:
    """Return the model of a GGUF file, or without a path a random one of ``config``.

    ``config`` (``LlamaConfig.tiny()`` if None) and ``seed`` are for the random model only. Raises
    FileNotFoundError for no file, GGUFError for one this engine cannot run, and ValueError for a
    ``config`` given with a path.
    """
    where = torch.device(device)
    if path is None:
        config = config or LlamaConfig.tiny()
        return Model(Llama(config, random_weights(config, seed, where, dtype)), ByteTokenizer())
    if config is not None:
        raise ValueError(
            "config: got one and a path, but the file states its own; give one of them"
        )
    file = GGUFFile(path)
    config = LlamaConfig.from_gguf(file)
    return Model(Llama(config, gguf_weights(file, config, where, dtype)), GGUFTokenizer(file))
