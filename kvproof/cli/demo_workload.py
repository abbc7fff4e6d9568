"""What the demo runs: prompts, and two pools, one with room for all and one without."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from attrs import frozen

from kvproof.runtime import Request, Scheduler, SchedulerConfig
from kvproof.runtime.engine import InferenceEngine, Model, chat_prompt
from kvproof.runtime.engine.loop import MakeConnector

PROMPTS = (
    "Name three fruits.",
    "Why is the sky blue?",
    "Write one sentence about the sea.",
    "Explain to a child why we sleep at night.",
    "What is the capital of France, and what is it known for?",
    "Give me a short recipe for a simple tomato soup with bread.",
    "How do I say 'good morning' in French, and when do people say it?",
    "I have two cats and a dog, and my neighbour has one parrot. Who has more animals, and why?",
)
INSTRUCTIONS = (
    "You are a patient assistant who answers in plain words, says so when something is not known,"
    " and never writes more than is needed."
)
PREEMPTIONS_WANTED = 10
POOL_SIZES_TRIED = 24


@frozen
class Sampling:
    """How every request of the demo is continued; each has a seed of its own, from `seed` on."""

    max_tokens: int
    temperature: float
    seed: int


@frozen
class Workload:
    """Requests, each a prompt in words and in tokens.

    The replies of a random model mean nothing, so there the end token does not end them.
    """

    model: Model
    is_random: bool
    sampling: Sampling
    prompts: tuple[str, ...]
    token_ids: tuple[tuple[int, ...], ...]
    shared_prefix: bool = False

    @classmethod
    def of(
        cls,
        model: Model,
        is_random: bool,
        requests: int,
        sampling: Sampling,
        *,
        shared_prefix: bool = False,
    ) -> Workload:
        """Return a workload of that many requests; the prompts come round again after the last.

        With `shared_prefix` every prompt begins with the same instructions, and blocks are shared.
        """
        prompts = tuple(PROMPTS[number % len(PROMPTS)] for number in range(requests))
        if shared_prefix:
            prompts = tuple(f"{INSTRUCTIONS} {prompt}" for prompt in prompts)
        asked = prompts if is_random else tuple(map(_as_conversation, prompts))
        tokens = tuple(tuple(model.tokenizer.encode(text)) for text in asked)
        return cls(model, is_random, sampling, prompts, tokens, shared_prefix)

    def config(self, blocks: int, block_size: int) -> SchedulerConfig:
        """Return the limits for a pool of which `blocks` can be held."""
        return SchedulerConfig(
            num_blocks=blocks + 1,
            block_size=block_size,
            max_num_seqs=len(self.prompts),
            max_model_len=self.model.config.context_length,
            enable_prefix_caching=self.shared_prefix,
        )

    def engine(
        self,
        config: SchedulerConfig,
        *,
        debug: bool,
        make_connector: MakeConnector | None = None,
    ) -> InferenceEngine:
        """Return an engine to which every request has been added.

        Raises RequestRefused if one could never fit, MemoryError if the pool cannot.
        """
        engine = InferenceEngine.build(
            self.model, config, make_connector=make_connector, debug=debug
        )
        try:
            self._add_all(engine)
        except BaseException:
            engine.close()
            raise
        return engine

    def _add_all(self, engine: InferenceEngine) -> None:
        how = self.sampling
        for number, tokens in enumerate(self.token_ids):
            engine.add(
                tokens,
                how.max_tokens,
                temperature=how.temperature,
                seed=how.seed + number,
                ignore_eos=self.is_random,
            )

    def blocks_needed(self, block_size: int) -> list[int]:
        """Return how many blocks each request holds at its longest; the last token needs none."""
        context, more = self.model.config.context_length, self.sampling.max_tokens
        lengths = [min(len(tokens) + more, context) - 1 for tokens in self.token_ids]
        return [-(-length // block_size) for length in lengths]

    def blocks_for_preemption(self, block_size: int) -> int:
        """Return the largest pool of those tried in which enough requests are preempted.

        Scheduling takes no model, so it is rehearsed. If no pool preempts enough, the one that
        preempts most is taken.
        """
        preemptions: dict[int, int] = {}
        for blocks in _pool_sizes(self.blocks_needed(block_size)):
            preemptions[blocks] = self._rehearse(self.config(blocks, block_size))
            if preemptions[blocks] >= PREEMPTIONS_WANTED:
                return blocks
        return max(preemptions, key=preemptions.__getitem__)

    def _rehearse(self, config: SchedulerConfig) -> int:
        """Return the preemptions of a run in which nobody stops early."""
        scheduler = Scheduler(config)
        for number, tokens in enumerate(self.token_ids):
            scheduler.add_request(Request(str(number), tokens, self.sampling.max_tokens))
        while scheduler.has_unfinished_requests():
            step = scheduler.schedule()
            scheduler.update(step, [0] * len(step.sampling_places))
        return scheduler.statistics().num_preemptions


def _as_conversation(prompt: str) -> str:
    return chat_prompt([{"role": "user", "content": prompt}])


def _pool_sizes(needed: Sequence[int]) -> Iterator[int]:
    """Yield sizes from almost enough for all down to what the longest request needs alone."""
    largest, least = sum(needed) - 1, max(needed)
    yield from range(largest, least, -max(1, (largest - least) // POOL_SIZES_TRIED))
    yield least
