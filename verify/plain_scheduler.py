"""The scheduler written the slow and obvious way: one request at a time, lists and plain counts.

It shares nothing with the runtime or the core and holds no blocks, only numbers of them. What the
fast one decides must be what this one decides. Rule: vLLM Scheduler.schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attrs import define, field

from kvproof.runtime import Request, SchedulerConfig
from kvproof.verify.victim_rule import VictimRule


@define(eq=False)
class PlainRequest:
    """A request and how far it is; `table` is what the steps said about its blocks."""

    request: Request
    limit: int
    tokens: list[int]
    computed: int = 0
    held: int = 0
    table: list[int] = field(factory=list)
    state: str = "WAITING"

    @property
    def name(self) -> str:
        """The request's id."""
        return self.request.request_id


@define
class Decision:
    """What a step is to do, by request and in order; `undone` were in it and left again."""

    chunks: list[tuple[PlainRequest, int]] = field(factory=list)
    new: list[PlainRequest] = field(factory=list)
    resumed: list[PlainRequest] = field(factory=list)
    preempted: list[PlainRequest] = field(factory=list)
    sampling: list[PlainRequest] = field(factory=list)
    undone: int = 0

    @property
    def tokens(self) -> int:
        """Tokens in the step so far."""
        return sum(tokens for _, tokens in self.chunks)


class PlainScheduler:
    """First come, first served, with chunked prefill and preemption by recomputation.

    `finished` are the ids that left since the last step, `num_fenced` the blocks of requests that
    were aborted while a frame might still write them.
    """

    def __init__(self, config: SchedulerConfig, victim: VictimRule) -> None:
        """Make a scheduler without requests."""
        self.config, self.victim = config, victim
        self.waiting: list[PlainRequest] = []
        self.running: list[PlainRequest] = []
        self.leaving: list[PlainRequest] = []
        self.frame: Decision | None = None
        self.finished: set[str] = set()
        self.num_fenced = self.num_preemptions = 0

    @property
    def live(self) -> dict[str, PlainRequest]:
        """The requests that wait or run, by id."""
        return {r.name: r for r in (*self.running, *self.waiting)}

    @property
    def num_free(self) -> int:
        """Blocks that can be had."""
        held = sum(r.held for r in self.running)
        return self.config.num_usable_blocks - held - self.num_fenced

    def add(self, request: Request) -> None:
        """Put a request at the end of the waiting queue."""
        prompt = list(request.prompt_token_ids)
        limit = min(len(prompt) + request.max_tokens, self.config.max_model_len)
        self.waiting.append(PlainRequest(request, limit, prompt))

    def schedule(self) -> Decision:
        """Decide a step, and let its frame fly."""
        self.finished.clear()
        decision = Decision()
        self._visit_running(decision)
        if not decision.preempted:
            self._visit_waiting(decision)
        for r, tokens in decision.chunks:
            r.computed += tokens
            if r.computed == len(r.tokens):
                decision.sampling.append(r)
        self.num_preemptions += len(decision.preempted)
        self.frame = decision
        return decision

    def account(self, sampled: Mapping[str, int]) -> list[tuple[str, tuple[int], str | None]]:
        """Append the samples; return (id, token, why it ended or None) for each accepted one."""
        assert self.frame is not None
        outputs = []
        for r in self.frame.sampling:
            if r.state == "RUNNING":
                r.tokens.append(sampled[r.name])
                outputs.append((r.name, (sampled[r.name],), self._end(r)))
        for r in self.leaving:
            self._leave(r)
        self.leaving, self.frame, self.num_fenced = [], None, 0
        return outputs

    def abort(self, names: Sequence[str]) -> list[str]:
        """End the live ones among the named; return their ids."""
        live = [r for name in dict.fromkeys(names) if (r := self.live.get(name))]
        frame = self.frame or Decision()
        for r in live:
            self.num_fenced += r.held if r in dict(frame.chunks) else 0
            (self.running if r in self.running else self.waiting).remove(r)
            self.leaving.append(r) if r in frame.sampling else self._leave(r)
            r.state, r.held, r.table = "FINISHED_ABORTED", 0, []
        return [r.name for r in live]

    def _visit_running(self, step: Decision) -> None:
        place = 0
        while place < len(self.running) and self._budget(step) > 0:
            needy = self.running[place]
            tokens = self._next_chunk(needy, step)
            if self._lacks(needy, tokens) <= self.num_free:
                self._give(needy, tokens, step)
                place += 1
                continue
            self._preempt(self.running[self.victim.position(len(self.running))], step)
            if needy.state == "PREEMPTED":
                return
            place = self.running.index(needy)

    def _visit_waiting(self, step: Decision) -> None:
        while self.waiting and self._budget(step) > 0:
            first = self.waiting[0]
            if len(self.running) == self.config.max_num_seqs:
                return
            if self._lacks(first, len(first.tokens)) > self.num_free:
                return
            self.running.append(self.waiting.pop(0))
            (step.new if first.state == "WAITING" else step.resumed).append(first)
            first.state = "RUNNING"
            self._give(first, self._next_chunk(first, step), step)

    def _budget(self, step: Decision) -> int:
        return self.config.max_num_batched_tokens - step.tokens

    def _next_chunk(self, r: PlainRequest, step: Decision) -> int:
        limit = self.config.long_prefill_token_threshold or len(r.tokens)
        return min(len(r.tokens) - r.computed, limit, self._budget(step))

    def _lacks(self, r: PlainRequest, tokens: int) -> int:
        """Return how many more blocks a request needs to compute so many more tokens."""
        return max(0, -(-(r.computed + tokens) // self.config.block_size) - r.held)

    def _give(self, r: PlainRequest, tokens: int, step: Decision) -> None:
        r.held += self._lacks(r, tokens)
        step.chunks.append((r, tokens))

    def _preempt(self, victim: PlainRequest, step: Decision) -> None:
        kept = [(r, tokens) for r, tokens in step.chunks if r is not victim]
        step.undone += len(step.chunks) - len(kept)
        step.chunks = kept
        step.preempted.append(victim)
        self.running.remove(victim)
        self.waiting.insert(0, victim)
        victim.state, victim.computed, victim.held, victim.table = "PREEMPTED", 0, 0, []

    def _end(self, r: PlainRequest) -> str | None:
        """Let a complete request go; return why it ended, or None if it goes on."""
        reason = "length" if len(r.tokens) == r.limit else None
        reason = "stop" if r.tokens[-1] in r.request.stop_token_ids else reason
        if reason:
            self.running.remove(r)
            self._leave(r)
        return reason

    def _leave(self, r: PlainRequest) -> None:
        self.finished.add(r.name)
