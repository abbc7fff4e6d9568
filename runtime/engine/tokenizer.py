"""Text to tokens and back: the tokenizer of a GGUF file, and one for the random model."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from tokenizers import AddedToken
from tokenizers import Tokenizer as BackendTokenizer
from tokenizers.decoders import ByteLevel as ByteLevelDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer
from tokenizers.pre_tokenizers import Sequence as InOrder

from kvproof.runtime.engine.gguf import GGUFError, GGUFFile

# The token type of a GGUF file that marks a control token, such as the end of a turn.
_CONTROL = 3
_SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"


class Tokenizer(Protocol):
    """What the engine needs from a tokenizer."""

    @property
    def eos_token_id(self) -> int:
        """The token that ends a reply."""

    def encode(self, text: str) -> list[int]:
        """Return the tokens of ``text``."""

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, control tokens left out."""


class ByteTokenizer:
    """One token a byte of UTF-8, and 256 for the end: for the random model, which has no text."""

    eos_token_id = 256
    vocabulary_size = 257

    def encode(self, text: str) -> list[int]:
        """Return the bytes of ``text``."""
        return list(text.encode())

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens; what is not UTF-8 becomes the replacement character."""
        return bytes(token for token in token_ids if token < self.eos_token_id).decode(
            errors="replace"
        )


class GGUFTokenizer:
    """The byte-level BPE tokenizer that a GGUF file carries.

    Raises GGUFError for another kind of tokenizer, or metadata that is missing or inconsistent.
    """

    def __init__(self, file: GGUFFile) -> None:
        self._backend = _backend(file)
        self.eos_token_id = file.get("tokenizer.ggml.eos_token_id", int)
        if self._backend.id_to_token(self.eos_token_id) is None:
            raise GGUFError(f"{file.path}: the end token {self.eos_token_id} is no token")

    def encode(self, text: str) -> list[int]:
        """Return the tokens of ``text``; control tokens written out in it count as such."""
        return self._backend.encode(text, add_special_tokens=False).ids

    def decode(self, token_ids: Sequence[int]) -> str:
        """Return the text of tokens, control tokens left out."""
        return self._backend.decode(list(token_ids), skip_special_tokens=True)


def chat_prompt(messages: Sequence[Mapping[str, str]], system: str = _SYSTEM) -> str:
    """Return a conversation in ChatML, ending where the assistant is to speak.

    Each message has a ``role`` (system, user, assistant) and a ``content``. ``system`` comes first
    unless the first message is a system one. Raises ValueError for an empty conversation.
    """
    if not messages:
        raise ValueError("messages: got none, expected at least one with a role and a content")
    if messages[0]["role"] != "system":
        messages = [{"role": "system", "content": system}, *messages]
    turns = (f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    return "".join(turns) + "<|im_start|>assistant\n"


def _backend(file: GGUFFile) -> BackendTokenizer:
    model = file.get("tokenizer.ggml.model", str)
    if model != "gpt2":
        raise GGUFError(f"{file.path}: got tokenizer model {model!r}, expected 'gpt2'")
    tokens = file.get_list("tokenizer.ggml.tokens", str)
    vocabulary = {token: number for number, token in enumerate(tokens)}
    backend = BackendTokenizer(BPE(vocabulary, list(_merges(file, vocabulary))))
    backend.pre_tokenizer = _pre_tokenizer(file)
    backend.decoder = ByteLevelDecoder()
    backend.add_special_tokens(_control_tokens(file, tokens))
    return backend


def _merges(file: GGUFFile, vocabulary: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    for merge in file.get_list("tokenizer.ggml.merges", str):
        left, _, right = merge.partition(" ")
        if not {left, right, left + right} <= vocabulary.keys():
            raise GGUFError(
                f"{file.path}: merge {merge!r}: expected two tokens whose join is a token, with a "
                "space between them"
            )
        yield left, right


def _pre_tokenizer(file: GGUFFile) -> PreTokenizer:
    name = file.get("tokenizer.ggml.pre", str, "gpt-2")
    byte_level = ByteLevel(add_prefix_space=False)
    match name:
        case "smollm":
            return InOrder([Digits(individual_digits=True), byte_level])
        case "gpt-2" | "default":
            return byte_level
    raise GGUFError(
        f"{file.path}: pre-tokenizer {name!r} is not supported, expected 'smollm' or 'gpt-2'"
    )


def _control_tokens(file: GGUFFile, tokens: Sequence[str]) -> list[AddedToken]:
    types = file.get_list("tokenizer.ggml.token_type", int)
    if len(types) != len(tokens):
        raise GGUFError(f"{file.path}: {len(tokens)} tokens but {len(types)} token types")
    pairs = zip(tokens, types, strict=True)
    return [AddedToken(token, special=True) for token, kind in pairs if kind == _CONTROL]
