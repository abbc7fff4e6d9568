"""The scheduler written the slow and obvious way: one request at a time, lists and plain counts.

It shares nothing with the runtime or the core and holds no blocks, only numbers of them. What the
fast one decides must be what this one decides. It knows no prefix cache, draft tokens or encoder;
`PlainScheduler.models` says for which configurations it speaks. Rule: vLLM Scheduler.schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define, evolve, field

from kvproof.runtime import Profile, Request, SchedulerConfig
from kvproof.verify.victim_rule import VictimRule


@define(eq=False)
class PlainRequest:
    """A request and how far it is; `held` is its number of blocks.

    `attempt` counts how often it has started over, `last_step` is the last step that ran it.
    """

    request: Request
    limit: int
    tokens: list[int]
    computed: int = 0
    held: int = 0
    state: str = "WAITING"
    decoding: bool = False
    attempt: int = 0
    last_step: int = 0

    @property
    def name(self) -> str:
        """The request's id."""
        return self.request.request_id

    @property
    def urgency(self) -> tuple[int, float]:
        """The least is the most urgent."""
        return self.request.priority, self.request.arrival_time

    @property
    def decodes(self) -> bool:
        """Whether it has its first sample, or a step in flight brings it."""
        return self.decoding or self.computed >= len(self.tokens)

    @property
    def expected(self) -> int:
        """Tokens known once every step in flight has come back."""
        return max(len(self.tokens), self.computed + 1)

    def start_over(self, state: str) -> None:
        """Give up everything but the tokens."""
        self.state, self.computed, self.held, self.decoding = state, 0, 0, False
        self.attempt += 1


@define
class Decision:
    """What a step is to do, by request and in order; `undone` were in it and left again.

    `awaits` says that a victim has to wait for steps in flight; `attempts` are those of the
    requests that sample.
    """

    number: int = 0
    defers: bool = False
    awaits: bool = False
    chunks: list[tuple[PlainRequest, int]] = field(factory=list)
    new: list[PlainRequest] = field(factory=list)
    resumed: list[PlainRequest] = field(factory=list)
    preempted: list[PlainRequest] = field(factory=list)
    sampling: list[PlainRequest] = field(factory=list)
    attempts: list[int] = field(factory=list)
    undone: int = 0

    @property
    def tokens(self) -> int:
        """Tokens in the step so far."""
        return sum(tokens for _, tokens in self.chunks)


class PlainScheduler:
    """First come, first served or by priority, with chunked prefill, preemption and throttle.

    `frames` are the steps in flight. `fences` are the blocks of requests that have ended while one
    of those might still write them: how many there are, by the last step in flight at that time.
    """

    def __init__(self, config: SchedulerConfig, victim: VictimRule | None = None) -> None:
        """Make a scheduler without requests; without a victim rule the policy chooses."""
        self.config, self.victim = config, victim
        self.waiting: list[PlainRequest] = []
        self.running: list[PlainRequest] = []
        self.parked: list[PlainRequest] = []
        self.frames: list[Decision] = []
        self.fences: dict[int, int] = {}
        self.number = self.processed = 0
        self.is_capacity_bound = False

    @staticmethod
    def models(config: SchedulerConfig) -> bool:
        """Return whether a scheduler of that configuration is to decide as this one does."""
        return config == evolve(
            config,
            enable_prefix_caching=False,
            num_speculative_tokens=0,
            encoder_cache_size=0,
            profile=Profile(),
        )

    @property
    def num_free(self) -> int:
        """Blocks that can be had."""
        held = sum(r.held for r in self.running)
        return self.config.num_usable_blocks - held - sum(self.fences.values())

    def add(self, request: Request) -> None:
        """Put a request into the waiting queue, or park it until its grammar is there."""
        prompt = list(request.prompt_token_ids)
        r = PlainRequest(request, self._limit(len(prompt), request.max_tokens), prompt)
        if request.needs_grammar:
            r.state = "WAITING_FOR_GRAMMAR"
            self.parked.append(r)
        else:
            self._enqueue(r)

    def grammar_ready(self, name: str) -> None:
        """Let a parked request wait for admission."""
        self._enqueue(self._unpark(name))

    def continue_session(self, name: str, tokens: Sequence[int], max_tokens: int) -> None:
        """Append the next input of a session, which waits for admission again."""
        r = self._unpark(name)
        r.tokens += tokens
        r.limit = self._limit(len(r.tokens), max_tokens)
        self._enqueue(r)

    def schedule(self, throttle: bool = False) -> Decision:
        """Decide a step, and let its frame fly."""
        decodes = any(r.decodes for r in self.running)
        self.number += 1
        step = Decision(self.number, throttle and decodes and not self.is_capacity_bound)
        self._visit_running(step)
        if not (step.preempted or step.awaits):
            self._visit_waiting(step)
        for r, tokens in step.chunks:
            r.computed, r.last_step = r.computed + tokens, self.number
            if r.computed >= len(r.tokens):
                step.sampling.append(r)
                step.attempts.append(r.attempt)
        if not step.defers and not step.preempted:
            self.is_capacity_bound = bool(self.waiting)
        self.frames.append(step)
        return step

    def account(self, sampled: Mapping[str, int]) -> None:
        """Append the samples of the oldest step in flight to those that still run."""
        frame = self.frames.pop(0)
        self.processed = frame.number
        for r, attempt in zip(frame.sampling, frame.attempts, strict=True):
            if r.state == "RUNNING" and r.attempt == attempt:
                r.tokens.append(sampled[r.name])
                r.decoding = True
                self._end(r)
        self.fences = {last: held for last, held in self.fences.items() if last > frame.number}

    def abort(self, names: Sequence[str]) -> None:
        """End the live ones among the named."""
        for group in (self.running, self.waiting, self.parked):
            for r in [r for r in group if r.name in names]:
                self._leave(r, "FINISHED_ABORTED")
                group.remove(r)

    def _is_in_flight(self, r: PlainRequest) -> bool:
        return r.last_step > self.processed

    def _leave(self, r: PlainRequest, state: str) -> None:
        """Take the blocks of a request; those that a step in flight may write come back later."""
        if r.held and self._is_in_flight(r):
            last = max(frame.number for frame in self.frames if frame.chunks)
            self.fences[last] = self.fences.get(last, 0) + r.held
        r.start_over(state)

    def _limit(self, known: int, max_tokens: int) -> int:
        return min(known + max_tokens, self.config.max_model_len)

    def _unpark(self, name: str) -> PlainRequest:
        found = next(r for r in self.parked if r.name == name)
        self.parked.remove(found)
        found.state = "WAITING"
        return found

    def _enqueue(self, r: PlainRequest) -> None:
        """Put a request at the end of the queue, a preempted one at the front, or by urgency."""
        self.waiting.insert(0 if r.state == "PREEMPTED" else len(self.waiting), r)
        if self.config.policy == "priority":
            self.waiting.sort(key=lambda r: (*r.urgency, r.name))

    def _visit_running(self, step: Decision) -> None:
        place = 0
        while place < len(self.running) and self._budget(step) > 0:
            needy = self.running[place]
            if needy.expected >= needy.limit or (step.defers and not needy.decodes):
                place += 1
                continue
            tokens = self._next_chunk(needy, step)
            while self._lacks(needy, tokens) > self.num_free:
                victim = self._victim()
                if self._is_in_flight(victim):
                    step.awaits = True
                    self._leave_out(victim, step)
                    return
                self._preempt(victim, step)
                if needy.state == "PREEMPTED":
                    return
            self._give(needy, tokens, step)
            place = self.running.index(needy) + 1

    def _victim(self) -> PlainRequest:
        if self.victim is not None:
            return self.running[self.victim.position(len(self.running))]
        if self.config.policy == "priority":
            return max(reversed(self.running), key=lambda r: r.urgency)
        return self.running[-1]

    def _visit_waiting(self, step: Decision) -> None:
        while self.waiting and self._budget(step) > 0:
            first = self.waiting[0]
            if len(self.running) == self.config.max_num_seqs:
                return
            if step.defers and len(first.tokens) > 1:
                return
            chunk = self._next_chunk(first, step)
            whole = self.config.scheduler_reserve_full_isl
            spare = self.num_free - (self._watermark() if self.running else 0)
            if self._lacks(first, len(first.tokens) if whole else chunk) > spare:
                return
            self.running.append(self.waiting.pop(0))
            (step.new if first.state == "WAITING" else step.resumed).append(first)
            first.state = "RUNNING"
            self._give(first, chunk, step)

    def _watermark(self) -> int:
        return int(self.config.watermark * self.config.num_blocks)

    def _budget(self, step: Decision) -> int:
        return self.config.max_num_batched_tokens - step.tokens

    def _next_chunk(self, r: PlainRequest, step: Decision) -> int:
        limit = self.config.long_prefill_token_threshold or r.expected
        return min(r.expected - r.computed, limit, self._budget(step))

    def _lacks(self, r: PlainRequest, tokens: int) -> int:
        """Return how many more blocks a request needs to compute so many more tokens."""
        end = r.computed + tokens + self.config.num_lookahead_tokens
        return max(0, -(-end // self.config.block_size) - r.held)

    def _give(self, r: PlainRequest, tokens: int, step: Decision) -> None:
        r.held += self._lacks(r, tokens)
        step.chunks.append((r, tokens))

    def _leave_out(self, victim: PlainRequest, step: Decision) -> None:
        kept = [(r, tokens) for r, tokens in step.chunks if r is not victim]
        step.undone += len(step.chunks) - len(kept)
        step.chunks = kept

    def _preempt(self, victim: PlainRequest, step: Decision) -> None:
        self._leave_out(victim, step)
        step.preempted.append(victim)
        self.running.remove(victim)
        victim.start_over("PREEMPTED")
        self._enqueue(victim)

    def _end(self, r: PlainRequest) -> None:
        """Let a complete request go, or park it if it is a session."""
        if len(r.tokens) < r.limit and r.tokens[-1] not in r.request.stop_token_ids:
            return
        self.running.remove(r)
        self._leave(r, "WAITING_FOR_STREAMING")
        if r.request.resumable:
            self.parked.append(r)
