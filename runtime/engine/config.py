"""The shape of a Llama-family model."""

from attrs import asdict, frozen

from kvproof.runtime.engine.gguf import GGUFError, GGUFFile


@frozen
class LlamaConfig:
    """Sizes of one model; ``context_length`` is the most tokens a request has, prompt included.

    Raises ValueError for a size below 1 and for sizes that do not go together.
    """

    vocabulary_size: int
    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    intermediate_size: int
    context_length: int
    rope_theta: float = 10_000.0
    norm_epsilon: float = 1e-5

    def __attrs_post_init__(self) -> None:
        """Check each size, that query heads form whole groups, and that rotary pairs are whole."""
        for name, value in asdict(self).items():
            if value <= 0:
                raise ValueError(f"{name}: got {value}, expected more than 0")
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads: got {self.num_heads}, expected a multiple of num_kv_heads "
                f"({self.num_kv_heads})"
            )
        if self.head_dim % 2:
            raise ValueError(f"head_dim: got {self.head_dim}, expected an even number")

    @property
    def group_size(self) -> int:
        """Query heads that share one KV head."""
        return self.num_heads // self.num_kv_heads

    @classmethod
    def tiny(cls, vocabulary_size: int = 257) -> "LlamaConfig":
        """Return a model of two layers that runs in a millisecond, for tests."""
        return cls(
            vocabulary_size=vocabulary_size,
            hidden_size=64,
            num_layers=2,
            num_heads=4,
            num_kv_heads=2,
            head_dim=16,
            intermediate_size=128,
            context_length=2048,
        )

    @classmethod
    def from_gguf(cls, file: GGUFFile) -> "LlamaConfig":
        """Return the config that a GGUF file states; GGUFError for another architecture."""
        architecture = file.get("general.architecture", str)
        if architecture != "llama":
            raise GGUFError(f"{file.path}: got architecture {architecture!r}, expected 'llama'")
        hidden_size = file.get("llama.embedding_length", int)
        num_heads = max(1, file.get("llama.attention.head_count", int))
        return cls(
            vocabulary_size=len(file.get_list("tokenizer.ggml.tokens", str)),
            hidden_size=hidden_size,
            num_layers=file.get("llama.block_count", int),
            num_heads=num_heads,
            num_kv_heads=file.get("llama.attention.head_count_kv", int, num_heads),
            head_dim=file.get("llama.rope.dimension_count", int, hidden_size // num_heads),
            intermediate_size=file.get("llama.feed_forward_length", int),
            context_length=file.get("llama.context_length", int),
            rope_theta=file.get("llama.rope.freq_base", float, 10_000.0),
            norm_epsilon=file.get("llama.attention.layer_norm_rms_epsilon", float),
        )
