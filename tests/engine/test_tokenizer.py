"""The tokenizer of a GGUF file, the byte tokenizer, and the chat format."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvproof.runtime.engine.gguf import GGUFError, GGUFFile
from kvproof.runtime.engine.tokenizer import ByteTokenizer, GGUFTokenizer, chat_prompt

WriteGGUF = Callable[..., Path]


def tokens_of(metadata: dict[str, Any], token_ids: list[int]) -> list[str]:
    """Return the spelling of each token."""
    return [metadata["tokenizer.ggml.tokens"][token] for token in token_ids]


def test_merges_make_words(write_gguf: WriteGGUF, tokenizer_metadata: dict[str, Any]) -> None:
    """Text is cut by the merges of the file, a space belongs to the word behind it."""
    tokenizer = GGUFTokenizer(GGUFFile(write_gguf(tokenizer_metadata)))

    token_ids = tokenizer.encode("the the xth")

    assert tokens_of(tokenizer_metadata, token_ids) == ["the", "\u0120the", "\u0120", "x", "th"]
    assert tokenizer.decode(token_ids) == "the the xth"


def test_digits_stand_alone(write_gguf: WriteGGUF, tokenizer_metadata: dict[str, Any]) -> None:
    """The smollm pre-tokeniser separates digits, so that no merge can join them."""
    tokenizer_metadata["tokenizer.ggml.tokens"].append("12")
    tokenizer_metadata["tokenizer.ggml.token_type"].append(1)
    tokenizer_metadata["tokenizer.ggml.merges"].append("1 2")

    def pieces(pre: str) -> list[str]:
        path = write_gguf(tokenizer_metadata | {"tokenizer.ggml.pre": pre})
        return tokens_of(tokenizer_metadata, GGUFTokenizer(GGUFFile(path)).encode("12"))

    assert pieces("smollm") == ["1", "2"]
    assert pieces("gpt-2") == ["12"]


def test_control_tokens(write_gguf: WriteGGUF, tokenizer_metadata: dict[str, Any]) -> None:
    """A control token is one token wherever it stands, and is left out of the text."""
    tokenizer = GGUFTokenizer(GGUFFile(write_gguf(tokenizer_metadata)))

    token_ids = tokenizer.encode("<|im_start|>the<|im_end|>")

    assert token_ids[0] == 0
    assert token_ids[-1] == tokenizer.eos_token_id == 1
    assert tokenizer.decode(token_ids) == "the"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"tokenizer.ggml.model": "llama"}, "got tokenizer model 'llama', expected 'gpt2'"),
        ({"tokenizer.ggml.pre": "other"}, "pre-tokenizer 'other' is not supported"),
        ({"tokenizer.ggml.token_type": [1]}, "tokens but 1 token types"),
        ({"tokenizer.ggml.merges": ["th"]}, "merge 'th': expected two tokens whose join is"),
        ({"tokenizer.ggml.merges": ["q z"]}, "merge 'q z': expected two tokens whose join is"),
        ({"tokenizer.ggml.eos_token_id": 999}, "the end token 999 is no token"),
        ({"tokenizer.ggml.tokens": 3}, r"'tokenizer\.ggml\.tokens': got int, expected a list"),
    ],
)
def test_other_tokenizers_are_refused(
    write_gguf: WriteGGUF, tokenizer_metadata: dict[str, Any], wrong: dict[str, Any], message: str
) -> None:
    """A tokenizer of another kind is refused by name instead of cutting text wrongly."""
    with pytest.raises(GGUFError, match=message):
        GGUFTokenizer(GGUFFile(write_gguf(tokenizer_metadata | wrong)))


def test_bytes_round_trip() -> None:
    """The byte tokenizer gives back any text, and leaves the end token out of it."""
    tokenizer = ByteTokenizer()
    text = "a caf\u00e9, \u6c34"

    assert tokenizer.decode([*tokenizer.encode(text), tokenizer.eos_token_id]) == text
    assert tokenizer.decode([0xFF]) == "\ufffd"


def test_chat_prompt_ends_at_the_assistants_turn() -> None:
    """Each turn is marked, a system turn comes first, and the assistant's is left open."""
    user = {"role": "user", "content": "Hello"}
    opened = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n"

    assert chat_prompt([user], system="Be brief") == (
        "<|im_start|>system\nBe brief<|im_end|>\n" + opened
    )
    own_system = {"role": "system", "content": "Be long"}
    assert chat_prompt([own_system, user], system="Be brief") == (
        "<|im_start|>system\nBe long<|im_end|>\n" + opened
    )


def test_an_empty_conversation_is_refused() -> None:
    """There is nothing to answer in a conversation without messages."""
    with pytest.raises(ValueError, match="messages: got none"):
        chat_prompt([])
