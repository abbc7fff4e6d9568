"""A request's tokens are its own, whoever shares its steps and however it is cut or preempted."""

import random
from collections.abc import Iterator

import pytest
import torch

from kvproof.runtime.engine import Model, generate, load_model, sample
from kvproof.runtime.kv_pool import KVPool
from kvproof.runtime.step_tensors import Chunk, StepTensors

BLOCK, BLOCKS, MAX_TOKENS, REQUESTS = 4, 40, 10, 6


class Running:
    """One request of the random run: its tokens, its table, and how much is in the pool."""

    def __init__(self, seed: int, prompt: list[int], temperature: float) -> None:
        self.seed, self.temperature = seed, temperature
        self.prompt_length, self.tokens = len(prompt), list(prompt)
        self.table: list[int] = []
        self.computed = 0

    @property
    def is_finished(self) -> bool:
        """Whether it has all its tokens."""
        return len(self.tokens) == self.prompt_length + MAX_TOKENS

    def chunk(self, size: int) -> Chunk:
        """Return its next tokens, at most ``size``, over the blocks it holds."""
        end = min(self.computed + size, len(self.tokens))
        return Chunk(
            self.tokens[self.computed : end],
            self.table,
            start=self.computed,
            samples=end == len(self.tokens),
        )


def prompts() -> Iterator[list[int]]:
    """Yield prompts of several lengths."""
    for index in range(REQUESTS):
        yield [(31 * index + 7 * place) % 256 for place in range(1 + 3 * index)]


def preempt(request: Running, free: list[int], pool: KVPool) -> None:
    """Take all blocks away; the request starts over, with the tokens it has drawn."""
    pool.poison(request.table)
    free += request.table
    request.table, request.computed = [], 0


def run_step(model: Model, pool: KVPool, chosen: list[Running], sizes: list[int]) -> None:
    """Run the next chunk of each request, check who owns what is read, and draw tokens."""
    chunks = [request.chunk(size) for request, size in zip(chosen, sizes, strict=True)]
    step = StepTensors.from_chunks(chunks, BLOCK, model.device)
    owners = torch.tensor([request.seed for request in chosen], device=model.device)
    counts = step.query_start_loc.diff().long()
    pool.stamp(step.slot_mapping, owners.repeat_interleave(counts), step.positions)
    pool.verify_owner(step.block_table, step.seq_lens, owners)
    logits = model.forward(step, pool)
    for request, chunk in zip(chosen, chunks, strict=True):
        request.computed = chunk.end
    drawing = [r for r, chunk in zip(chosen, chunks, strict=True) if chunk.samples]
    drawn = sample(
        logits,
        torch.tensor([request.temperature for request in drawing], device=model.device),
        torch.tensor([request.seed for request in drawing], device=model.device),
        torch.tensor([request.computed for request in drawing], device=model.device),
    )
    for request, token in zip(drawing, drawn.tolist(), strict=True):
        request.tokens.append(token)


def run_at_random(model: Model, requests: list[Running], chooser: random.Random) -> int:
    """Run all requests in random company, chunks and block order; return the preemptions."""
    pool = model.new_pool(BLOCKS, BLOCK, debug=True)
    free, preemptions = list(range(1, BLOCKS)), 0
    while unfinished := [request for request in requests if not request.is_finished]:
        chosen = chooser.sample(unfinished, chooser.randint(1, len(unfinished)))
        sizes = [chooser.choice([1, 2, 5, 100]) for _ in chosen]
        chooser.shuffle(free)
        for request in chosen:
            if request.computed and chooser.random() < 0.1:
                preempt(request, free, pool)
                preemptions += 1
            while len(request.table) * BLOCK < len(request.tokens):
                request.table.append(free.pop())
        run_step(model, pool, chosen, sizes)
        for request in chosen:
            if request.is_finished:
                preempt(request, free, pool)
    return preemptions


@pytest.mark.parametrize("temperature", [0.0, 4.0])
def test_scheduling_does_not_change_tokens(device: torch.device, temperature: float) -> None:
    """Random batches, chunks, block orders and preemptions give what each request gives alone."""
    model = load_model(device=device)
    expected = [
        generate(model, prompt, MAX_TOKENS, temperature=temperature, seed=seed, ignore_eos=True)
        for seed, prompt in enumerate(prompts())
    ]
    preemptions = 0

    for run in range(4):
        requests = [Running(seed, p, temperature) for seed, p in enumerate(prompts())]
        preemptions += run_at_random(model, requests, random.Random(run))
        assert [r.tokens[r.prompt_length :] for r in requests] == expected

    assert preemptions > 4


def test_temperature_and_seed_change_the_text(device: torch.device) -> None:
    """A warm request differs from a greedy one, and from one with another seed."""
    model = load_model(device=device)
    prompt = list(b"The sea")

    texts = [
        generate(model, prompt, 12, temperature=temperature, seed=seed, ignore_eos=True)
        for temperature, seed in ((0.0, 0), (0.0, 1), (4.0, 0), (4.0, 1))
    ]

    assert texts[0] == texts[1]
    assert len({tuple(text) for text in texts}) == 3


def test_generation_stops_at_the_end_token(
    device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The end token is the last one, unless the caller asks to go on."""
    model = load_model(device=device)
    prompt = list(b"The sea")
    text = generate(model, prompt, 8, ignore_eos=True)
    monkeypatch.setattr(model.tokenizer, "eos_token_id", text[3])

    assert generate(model, prompt, 8) == text[: text.index(text[3]) + 1]
    assert generate(model, prompt, 8, ignore_eos=True) == text


@pytest.mark.parametrize(
    ("prompt_tokens", "max_tokens", "message"),
    [
        (0, 1, "got 0 prompt tokens and max_tokens 1, expected at least 1 of each"),
        (1, 0, "got 1 prompt tokens and max_tokens 0"),
        (2000, 49, "exceed the model's context of 2048"),
    ],
)
def test_a_request_that_cannot_run_is_refused(
    prompt_tokens: int, max_tokens: int, message: str
) -> None:
    """An empty prompt, nothing to generate, and more than the context are refused."""
    with pytest.raises(ValueError, match=message):
        generate(load_model(), [1] * prompt_tokens, max_tokens)
