"""A small Llama-family engine in plain torch, driven step by step over a KV pool.

``load_model`` gives a model; ``model.forward(step, pool)`` gives logits; ``sample`` gives tokens;
``InferenceEngine`` does all of it for the requests of a scheduler.
"""

from kvproof.runtime.engine.config import LlamaConfig
from kvproof.runtime.engine.generate import generate
from kvproof.runtime.engine.gguf import GGUFError
from kvproof.runtime.engine.loop import InferenceEngine
from kvproof.runtime.engine.model import Model, load_model
from kvproof.runtime.engine.sampling import NotANumberError, greedy, sample
from kvproof.runtime.engine.tokenizer import Tokenizer, chat_prompt

__all__ = [
    "GGUFError",
    "InferenceEngine",
    "LlamaConfig",
    "Model",
    "NotANumberError",
    "Tokenizer",
    "chat_prompt",
    "generate",
    "greedy",
    "load_model",
    "sample",
]
